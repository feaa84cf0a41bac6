"""The length gate: which accepted rows fit once their prompt is rendered."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from rl_assets.contract import MEDIA_COLUMNS, REJECT_SCHEMA, ROW_SCHEMA, reject
from rl_assets.progress import Log, Progress
from rl_assets.prompts.render import PromptRenderer, Rendered
from rl_assets.store import Table, TableWriter, to_json

LENGTH_FILTERED_SCHEMA = ROW_SCHEMA.append(
    pa.field("prompt_ids", pa.list_(pa.int32()), nullable=False)
).append(pa.field("prompt_length", pa.int32(), nullable=False))

OVERLONG_SCHEMA = ROW_SCHEMA.append(pa.field("prompt_length", pa.int32(), nullable=False))

_STAMP_KEY = b"rl_assets.render_stamp"
_BATCH_ROWS = 1024


@dataclass(frozen=True)
class LengthResult:
    """Three tables that together hold every row of the contract exactly once.

    Attributes:
        kept: rows that fit, with `prompt_ids` and `prompt_length`; the render stamp is in its metadata.
        overlong: rows that do not fit, with their `prompt_length`.
        refused: rows whose prompt could not be rendered, each with the reason; not overlong, but broken.
    """

    kept: Table
    overlong: Table
    refused: Table


def filter_by_length(
    contract: Table, renderer: PromptRenderer, *, max_prompt_length: int, folder: Path, log: Log
) -> LengthResult:
    """Render every accepted row once and sort it by whether it fits.

    Args:
        contract: the accepted rows (`ROW_SCHEMA`).
        renderer: what makes a prompt of messages.
        max_prompt_length: longest prompt in tokens; one of exactly this length is kept.
        folder: where the three tables are written.
        log: receives progress lines.
    """
    stamp = {_STAMP_KEY: to_json(dict(renderer.stamp.parts)).encode()}
    progress = Progress(log, "length gate", contract.num_rows, "rows")
    with (
        TableWriter(folder / "length_filtered.parquet", LENGTH_FILTERED_SCHEMA.with_metadata(stamp)) as kept,
        TableWriter(folder / "overlong_rows.parquet", OVERLONG_SCHEMA) as overlong,
        TableWriter(folder / "unrenderable_rows.parquet", REJECT_SCHEMA) as refused,
    ):
        for batch in contract.batches(size=_BATCH_ROWS):
            records = batch.to_pylist()
            fitting, long, broken = [], [], []
            for record, rendered in zip(records, _render(records, renderer), strict=True):
                if rendered.ids is None:
                    broken.append(_refuse(record, rendered.error))
                elif (length := len(rendered.ids)) <= max_prompt_length:
                    fitting.append({**record, "prompt_ids": rendered.ids, "prompt_length": length})
                else:
                    long.append({**record, "prompt_length": length})
            kept.write_rows(fitting)
            overlong.write_rows(long)
            refused.write_rows(broken)
            progress.add(len(records))
    progress.close()
    return LengthResult(kept.table, overlong.table, refused.table)


def render_stamp(length_filtered: Table) -> dict[str, str]:
    """The parts of the render stamp under which the rows of `length_filtered` were measured."""
    return json.loads((length_filtered.schema.metadata or {}).get(_STAMP_KEY, b"{}"))


def _render(records: list[dict[str, Any]], renderer: PromptRenderer) -> Iterator[Rendered]:
    """One result per record, in order; rows with media are not given to the template."""
    texts = [record for record in records if not _media(record)]
    rendered = iter(renderer.render([json.loads(record["prompt"]) for record in texts]))
    for record in records:
        yield Rendered() if _media(record) else next(rendered)


def _media(record: dict[str, Any]) -> int:
    return sum(len(record[column] or ()) for column in MEDIA_COLUMNS)


def _refuse(record: dict[str, Any], error: str | None) -> dict[str, Any]:
    if error is not None:
        return reject(record, [("render.template_error", "prompt", f"the chat template refuses it: {error}")])
    column = next(column for column in MEDIA_COLUMNS if record[column])
    message = f"the row has {_media(record)} media, and prompts are rendered as text only"
    return reject(record, [("render.media_unsupported", column, message)])
