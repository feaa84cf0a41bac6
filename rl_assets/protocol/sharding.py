"""Rows to collated shards: which row lies in which shard, and in what order."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from upath import UPath

from rl_assets.contract import decode_row
from rl_assets.contract.consistency import media_counts
from rl_assets.errors import InputError
from rl_assets.progress import Log, Progress
from rl_assets.protocol import (
    DataProto,
    MediaStore,
    ShardManifest,
    ShardRef,
    collate_fn,
    shard_count,
    shard_name,
    to_item,
    write_shard,
)
from rl_assets.store import Table, TableWriter, digest_bytes

_SIZED = ("prompt", "reward_model", "extra_info", "extra_columns")
_CARRIED = ("uid", "split", "source_file", "source_row", "prompt_ids")


@dataclass(frozen=True, kw_only=True)
class ShardBudget:
    """The largest a shard may be, in rows and in bytes; media are kept apart and do not count."""

    rows: int
    bytes: int


def shard_rows(
    rows: Table,
    root: Path | UPath,
    *,
    count: int | None,
    budget: ShardBudget,
    caps: Mapping[str, int | None],
    stamps: Mapping[str, str],
    media: MediaStore,
    folder: Path,
    log: Log,
) -> ShardManifest:
    """Spread the rows of the length gate over the shards of their split and collate each.

    A row's shard is its uid modulo the number of shards and rows lie in the order of their uid, so a
    shard's bytes do not depend on the order of the files, and a changed row changes one shard. One shard at
    a time is held in memory.

    Args:
        rows: rows with `uid`, `split` and `prompt_ids`.
        root: the folder that receives the shards.
        count: shards per split (one without rows is not written); None takes the smallest power of two
            that keeps every shard within `budget`.
        budget: the largest a shard may be.
        caps: per split, how many prompts to take at most (None: all). Those whose digest of the uid is
            smallest are taken: an even sample that stays the same when other rows come and go.
        stamps: kept in the manifest.
        media: receives the bytes of media, once per content; the shards refer to them.
        folder: a local folder for unfinished work.
        log: receives progress lines.

    Raises:
        InputError: a row that the field contract would not have passed, or rows that no number of shards
            brings within the budget.
    """
    plans, columns = _plan(rows, caps, count, budget)
    buckets = _spread(rows, plans, folder)
    progress = Progress(log, "shards", sum(bucket.num_rows for bucket in buckets.values()), "prompts")
    refs: list[ShardRef] = []
    for name, bucket in sorted(buckets.items()):
        records = sorted(bucket.rows(), key=lambda record: record["uid"])
        _require_uids(records)
        items = [_item(record, columns, media) for record in records]
        refs.append(write_shard(root, name, DataProto.from_single_dict(collate_fn(items))))
        progress.add(len(items))
    progress.close()
    return ShardManifest(shards=refs, stamps=dict(stamps))


def _item(record: Mapping[str, Any], columns: frozenset[str], store: MediaStore) -> dict[str, Any]:
    row = decode_row(record)
    for modality, (placeholders, media) in media_counts(row).items():
        if placeholders != media:
            raise _refusal(
                record, "prompt", f"{placeholders} <{modality}> and {media} {modality}s", "as many"
            )
    carried = {key: record[key] for key in _CARRIED}
    return to_item({**row, **carried}, columns=columns, media=store)


def _require_uids(records: Sequence[Mapping[str, Any]]) -> None:
    """Refuse rows, in the order of their uid, that the contract's uid rules would not have passed."""
    previous = None
    for record in records:
        uid = record["uid"]
        if not uid or "_" in uid or uid == previous:
            again = " for the second time" if uid and uid == previous else ""
            raise _refusal(record, "uid", f"{uid!r}{again}", "a uid of the row's own, without an underscore")
        previous = uid


def _refusal(record: Mapping[str, Any], field: str, found: str, expected: str) -> InputError:
    return InputError(
        file=record["source_file"],
        row=record["source_row"],
        field=field,
        found=found,
        expected=expected,
        remedy="Take the rows from field_contract: it sets such rows aside with a reason.",
    )


@dataclass(frozen=True)
class _Plan:
    """Where the rows of one split go.

    Attributes:
        count: number of shards.
        uids: the uids to take.
    """

    count: int
    uids: frozenset[str]


def _plan(
    rows: Table, caps: Mapping[str, int | None], count: int | None, budget: ShardBudget
) -> tuple[dict[str, _Plan], frozenset[str]]:
    """What goes where by split, and the columns that not every row need have but every shard has."""
    sizes: dict[str, dict[str, int]] = {}
    texts: set[str] = set()
    columns: set[str] = set()
    for batch in rows.batches(["uid", "split", "ability", "prompt_length", *_SIZED]):
        record = batch.to_pydict()
        texts.update(record["extra_columns"])
        if batch.column("ability").null_count < batch.num_rows:
            columns.add("ability")
        for uid, split, size in zip(record["uid"], record["split"], _sizes(batch), strict=True):
            sizes.setdefault(split, {})[uid] = size
    plans: dict[str, _Plan] = {}
    for split, by_uid in sizes.items():
        cap = caps.get(split)
        uids = sorted(by_uid, key=lambda uid: digest_bytes(uid.encode()))[:cap]
        fitting = count or shard_count(
            uids, [by_uid[uid] for uid in uids], max_rows=budget.rows, max_bytes=budget.bytes
        )
        plans[split] = _Plan(fitting, frozenset(uids))
    return plans, frozenset(columns.union(*(json.loads(text) for text in texts)))


def _sizes(batch: pa.RecordBatch) -> list[int]:
    """About how many bytes each row takes in a shard: its texts, and four per token."""
    size = pc.multiply(batch.column("prompt_length").cast(pa.int64()), 4)
    for name in _SIZED:
        size = pc.add(size, pc.binary_length(batch.column(name)).cast(pa.int64()))
    return size.to_pylist()


def _spread(rows: Table, plans: Mapping[str, _Plan], folder: Path) -> dict[str, Table]:
    """One file per shard, written in a single pass over the rows."""
    schema = rows.schema.remove_metadata()
    writers: dict[str, TableWriter] = {}
    with ExitStack() as stack:
        for batch in rows.batches():
            places: dict[str, list[int]] = {}
            splits, uids = batch.column("split").to_pylist(), batch.column("uid").to_pylist()
            for index, (split, uid) in enumerate(zip(splits, uids, strict=True)):
                if uid in plans[split].uids:
                    places.setdefault(shard_name(split, uid, plans[split].count), []).append(index)
            for name, indices in places.items():
                if name not in writers:
                    writers[name] = stack.enter_context(TableWriter(folder / f"{name}.parquet", schema))
                writers[name].write_batch(batch.take(pa.array(indices)))
    return {name: writer.table for name, writer in writers.items()}
