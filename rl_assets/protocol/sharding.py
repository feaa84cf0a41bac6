"""Rows to collated shards: which row lies in which shard, and in what order."""

import heapq
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
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
    shard_of,
    to_item,
    write_shard,
)
from rl_assets.store import Table, TableWriter, digest_bytes

_CARRIED = ("uid", "split", "source_file", "source_row", "prompt_ids")


def shard_rows(
    rows: Table,
    root: Path | UPath,
    *,
    count: int,
    caps: Mapping[str, int | None],
    stamps: Mapping[str, str],
    media: MediaStore,
    folder: Path,
    log: Log,
) -> ShardManifest:
    """Spread the rows of the length gate over `count` shards per split and collate each.

    A row's shard is its uid modulo `count` and rows lie in the order of their uid, so a shard's bytes do
    not depend on the order of the files, and a changed row changes one shard. One shard at a time is held
    in memory.

    Args:
        rows: rows with `uid`, `split` and `prompt_ids`.
        root: the folder that receives the shards.
        count: shards per split; a shard without rows is not written.
        caps: per split, how many prompts to take at most (None: all). Those whose digest of the uid is
            smallest are taken: an even sample that stays the same when other rows come and go.
        stamps: kept in the manifest.
        media: receives the bytes of media, once per content; the shards refer to them.
        folder: a local folder for unfinished work.
        log: receives progress lines.
    """
    chosen = _choose(rows, caps)
    columns = _columns(rows)
    buckets = _spread(rows, chosen, count, folder)
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


def _columns(rows: Table) -> frozenset[str]:
    """Names of the columns that not every row need have, so that every shard has them all."""
    texts: set[str] = set()
    columns: set[str] = set()
    for row in rows.rows(["ability", "extra_columns"]):
        texts.add(row["extra_columns"])
        if row["ability"] is not None:
            columns.add("ability")
    return frozenset(columns.union(*(json.loads(text) for text in texts)))


def _choose(rows: Table, caps: Mapping[str, int | None]) -> Mapping[str, frozenset[str]]:
    """The uids to take of each split that has a cap."""
    uids: dict[str, list[str]] = {split: [] for split, cap in caps.items() if cap is not None}
    if uids:
        for row in rows.rows(["uid", "split"]):
            if row["split"] in uids:
                uids[row["split"]].append(row["uid"])
    return {
        split: frozenset(heapq.nsmallest(caps[split] or 0, found, key=lambda uid: digest_bytes(uid.encode())))
        for split, found in uids.items()
    }


def _spread(rows: Table, chosen: Mapping[str, frozenset[str]], count: int, folder: Path) -> dict[str, Table]:
    """One file per shard, written in a single pass over the rows."""
    schema = rows.schema.remove_metadata()
    writers: dict[str, TableWriter] = {}
    with ExitStack() as stack:
        for batch in rows.batches():
            places: dict[str, list[int]] = {}
            splits, uids = batch.column("split").to_pylist(), batch.column("uid").to_pylist()
            for index, (split, uid) in enumerate(zip(splits, uids, strict=True)):
                if split not in chosen or uid in chosen[split]:
                    name = f"{split}-{shard_of(uid, count):05}-of-{count:05}"
                    places.setdefault(name, []).append(index)
            for name, indices in places.items():
                if name not in writers:
                    writers[name] = stack.enter_context(TableWriter(folder / f"{name}.parquet", schema))
                writers[name].write_batch(batch.take(pa.array(indices)))
    return {name: writer.table for name, writer in writers.items()}
