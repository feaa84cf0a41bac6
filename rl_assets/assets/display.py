"""What an asset shows of itself in the UI: schemas, previews, plots."""

import base64
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dagster as dg

_CUT = 160
_WIDE_CUT = 300


def table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> dg.TableMetadataValue:
    """Rows as a table; long text is cut, since the event log is kept and shared."""
    return dg.MetadataValue.table(
        records=[dg.TableRecord({name: _cell(row.get(name)) for name in columns}) for row in rows],
        schema=dg.TableSchema(columns=[dg.TableColumn(name=name, type="string") for name in columns]),
    )


def _cell(value: Any) -> str | int | float | bool:
    return value if isinstance(value, bool | int | float) else _cut(value, _CUT)


def _cut(value: Any, length: int) -> str:
    text = "" if value is None else str(value).replace("\n", " ⏎ ")
    return text if len(text) <= length else text[: length - 1] + "…"


def wide_table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> dg.MarkdownMetadataValue:
    """Rows with long text as a table that opens over the page instead of inside a narrow cell."""
    lines = [columns, ["---"] * len(columns)]
    lines += [[escape_markdown(_cut(row.get(name), _WIDE_CUT)) for name in columns] for row in rows]
    return dg.MetadataValue.md("\n".join(f"| {' | '.join(line)} |" for line in lines))


def escape_markdown(text: str) -> str:
    """Text that Markdown shows as it stands: users' text may look like markup."""
    return re.sub(r"([\\`*_{}\[\]()#+!|~$-])", r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;"))


def histogram(
    series: Mapping[str, Sequence[float]], label: str, limit: int | None = None, *, stacked: bool = True
) -> dg.MarkdownMetadataValue:
    """A histogram as an inline picture (PNG, below 20 KB).

    Args:
        series: values by name; series without values are left out.
        label: what the values are, with their unit.
        limit: drawn as a dashed line, where there is one.
        stacked: False draws series that are no parts of a whole beside each other.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 2.6), dpi=80, layout="constrained")
    axes = figure.subplots()
    drawn = {name: list(values) for name, values in series.items() if len(values)}
    if drawn:
        axes.hist(list(drawn.values()), bins=30 if stacked else 10, stacked=stacked, label=list(drawn))
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
