"""What an asset shows of itself in the UI: schemas, previews, plots."""

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg
import numpy as np

from rl_assets.base import markdown
from rl_assets.errors import printable

PREVIEW_ROWS = 8
"""Rows that an asset shows of itself."""
REFUSED_COLUMNS = ("source_file", "source_row", "code", "path", "message")
"""What is shown of a row that was refused."""

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_CUT = 160
_WIDE_CUT = 300
_NAME = 60


def table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> dg.TableMetadataValue:
    """Rows as a table; long text is cut, since the event log is kept and shared."""
    return dg.MetadataValue.table(
        records=[dg.TableRecord({name: _cell(row.get(name)) for name in columns}) for row in rows],
        schema=dg.TableSchema(columns=[dg.TableColumn(name=name, type="string") for name in columns]),
    )


def counted(name: str, what: str, rows: Mapping[str, int]) -> dict[str, Any]:
    """A table of rows by code or kind, where there are any."""
    found = [{what: key, "rows": number} for key, number in sorted(rows.items()) if number]
    return {name: table(found, [what, "rows"])} if found else {}


def _cell(value: Any) -> str | int | float | bool:
    return value if isinstance(value, bool | int | float) else _cut(value, _CUT)


def one_line(text: str) -> str:
    """Text of a user's on one line that a terminal shows as it stands."""
    return printable(" ⏎ ".join(text.splitlines()))


def _cut(value: Any, length: int) -> str:
    text = "" if value is None else one_line(str(value))
    return text if len(text) <= length else text[: length - 1] + "…"


def wide_table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> dg.MarkdownMetadataValue:
    """Rows with long text as a table that opens over the page instead of inside a narrow cell."""
    cells = ([markdown.escape(_cut(row.get(name), _WIDE_CUT)) for name in columns] for row in rows)
    return dg.MetadataValue.md(markdown.table(columns, cells))


def histogram(
    series: Mapping[str, "ArrayLike"], label: str, limit: int | None = None, *, stacked: bool = True
) -> dg.MarkdownMetadataValue:
    """A histogram as an inline picture (PNG, below 20 KB).

    Args:
        series: values by name, a user's perhaps; series without values are left out.
        label: what the values are, with their unit.
        limit: drawn as a dashed line, where there is one.
        stacked: False draws series that are no parts of a whole beside each other.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 2.6), dpi=80, layout="constrained")
    axes = figure.subplots()
    # An escaped dollar is a dollar; two plain ones make a formula of what is between them.
    arrays = {name: np.asarray(values) for name, values in series.items()}
    names = [_cut(name, _NAME).replace("$", r"\$") for name, values in arrays.items() if len(values)]
    drawn = [values for values in arrays.values() if len(values)]
    if drawn:
        axes.hist(drawn, bins=30 if stacked else 10, stacked=stacked, label=names)
    if limit is not None:
        axes.axvline(limit, color="#c0392b", linestyle="--", linewidth=1, label=f"limit {limit:,}")
    axes.set_xlabel(label)
    axes.set_ylabel("rows")
    axes.spines[["top", "right"]].set_visible(False)
    if drawn or limit is not None:
        axes.legend(frameon=False, fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    picture = base64.b64encode(buffer.getvalue()).decode()
    return dg.MetadataValue.md(f"![{label}](data:image/png;base64,{picture})")


def last_message(messages: Sequence[Mapping[str, Any]]) -> str:
    """The text of a prompt's last message, media shown as their placeholder."""
    content = messages[-1].get("content") if messages else None
    if isinstance(content, list):
        return "".join(
            part.get("text") or f"<{part.get('type')}>" for part in content if isinstance(part, dict)
        )
    return content or ""
