"""The two tables of the contract: accepted rows and rejected rows, and how to go from a record to a row."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from rl_assets.base.jsontext import decode, dump_anything
from rl_assets.base.modalities import MEDIA_COLUMNS
from rl_assets.contract.rules.code import Finding
from rl_assets.contract.rules.codes import CODES, by_precedence
from rl_assets.errors import InputError

_MEDIA = pa.list_(
    pa.struct(
        [pa.field("item", pa.string()), pa.field("bytes", pa.binary()), pa.field("digest", pa.string())]
    )
)

_FINDINGS = pa.list_(
    pa.struct(
        [pa.field("code", pa.string()), pa.field("path", pa.string()), pa.field("message", pa.string())]
    )
)

ROW_SCHEMA = pa.schema(
    [
        pa.field("uid", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("source_file", pa.string(), nullable=False),
        pa.field("source_row", pa.int64(), nullable=False),
        pa.field("data_source", pa.string(), nullable=False),
        pa.field("ability", pa.string()),
        pa.field("prompt", pa.string(), nullable=False),
        pa.field("reward_model", pa.string(), nullable=False),
        pa.field("extra_info", pa.string(), nullable=False),
        *(pa.field(name, _MEDIA) for name in MEDIA_COLUMNS),
        pa.field("extra_columns", pa.string(), nullable=False),
        pa.field("warnings", _FINDINGS),
    ]
)
"""Accepted rows. `prompt`, `reward_model`, `extra_info`, `extra_columns` and the `item` of a medium are JSON
text; a media list is null where the row has no such column; `digest` is that of the media bytes (null for
media on another host); `warnings` is null where there are none."""

REJECT_SCHEMA = pa.schema(
    [
        pa.field("source_file", pa.string(), nullable=False),
        pa.field("source_row", pa.int64(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("stage", pa.string(), nullable=False),
        pa.field("uid", pa.string()),
        pa.field("code", pa.string(), nullable=False),
        pa.field("path", pa.string()),
        pa.field("message", pa.string(), nullable=False),
        pa.field("errors", _FINDINGS, nullable=False),
        pa.field("row", pa.string(), nullable=False),
    ]
)
"""Rejected rows. `code`, `path` and `message` are those of the first error in the
order of `CODES`, `errors` holds all of them, `row` is the row as it was read, as JSON text (bytes as
``{"$bytes": base64}``; a line that is not JSON unchanged)."""


def decode_row(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record of `ROW_SCHEMA` as a row in verl's schema, every value as it stood in the raw file.

    Returns:
        A dict with `prompt` (list of messages), `data_source`, `ability` (where the row has one),
        `reward_model` and `extra_info` (dicts), `images`, `videos`, `audios` (lists, where the row has
        them), the extra columns, and `uid`.
    """
    row: dict[str, Any] = {"data_source": record["data_source"], "prompt": decode(record["prompt"])}
    if record["ability"] is not None:
        row["ability"] = record["ability"]
    row["reward_model"] = decode(record["reward_model"])
    row["extra_info"] = decode(record["extra_info"])
    for column in MEDIA_COLUMNS:
        if record[column] is not None:
            row[column] = [_decode_medium(medium) for medium in record[column]]
    if record["extra_columns"] != "{}":
        row.update(decode(record["extra_columns"]))
    row["uid"] = record["uid"]
    return row


def _decode_medium(medium: Mapping[str, Any]) -> Any:
    item = decode(medium["item"])
    if medium["bytes"] is not None:
        item["bytes"] = medium["bytes"]
    return item


def reject(
    record: Mapping[str, Any],
    errors: Sequence[tuple[str, str | None, str]],
    *,
    row: str | None = None,
) -> dict[str, Any]:
    """A record of `REJECT_SCHEMA` for a row that a stage refuses.

    Args:
        record: gives `source_file`, `source_row`, `split` and, where there is one, `uid`: a record of
            `ROW_SCHEMA`, or a plain dict of these.
        errors: code, path and message of what was found, at least one; the first in
            the order of `CODES` names the rejection.
        row: the original row as text; by default `record` decoded and written as JSON.
    """
    ordered = by_precedence([Finding(*error) for error in errors])
    first = ordered[0]
    return {
        "source_file": record["source_file"],
        "source_row": record["source_row"],
        "split": record["split"],
        "stage": CODES[first.code].stage,
        "uid": record.get("uid"),
        "code": first.code,
        "path": first.path,
        "message": first.message,
        "errors": [error._asdict() for error in ordered],
        "row": dump_anything(decode_row(record)) if row is None else row,
    }


def not_accepted(row: Mapping[str, Any], field: str, found: str, expected: str) -> InputError:
    """The error of a row that the contract would have rejected, met where accepted rows are read."""
    return InputError(
        file=row.get("source_file"),
        row=row.get("source_row"),
        field=field,
        found=found + (f" (uid {row['uid']})" if row.get("uid") else ""),
        expected=expected,
        remedy="Take the rows from field_contract: it sets such rows aside with a reason.",
    )
