"""Rows to collated shards: which row lies in which shard, and in what order."""

import heapq
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from upath import UPath

from rl_assets.base.digests import digest_bytes, digest_json
from rl_assets.base.modalities import MEDIA_COLUMNS
from rl_assets.base.progress import Log, Progress
from rl_assets.base.tables import Table, TableWriter
from rl_assets.base.workers.spread import spread
from rl_assets.contract.schema import decode_row, not_accepted
from rl_assets.media.placeholders import media_counts
from rl_assets.media.store import MediaStore
from rl_assets.protocol.collate import collate_fn
from rl_assets.protocol.dataproto import DataProto
from rl_assets.protocol.item import to_item
from rl_assets.protocol.manifest import ShardManifest, ShardRef, shard_count, shard_name, shard_of
from rl_assets.protocol.shards import is_intact, write_shard

_PART_BYTES = 32 << 20
_PART_GROUP = 512
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
    before: ShardManifest | None = None,
    code: str = "",
) -> ShardManifest:
    """Spread the rows of the length gate over the shards of their split and collate each.

    A row's shard is its uid modulo the number of shards and rows lie in the order of their uid, so a
    shard's bytes do not depend on the order of the files, and a changed row changes one shard. A few small
    shards at a time, or one large one, are held in memory. A shard of `before` whose rows are still the same,
    and which is intact, is not collated again; one with media is, since their bytes lie elsewhere.

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
        before: the manifest of the last build in `root`, where there is one.
        code: names the code that collates: what another code made is collated again.

    Raises:
        InputError: a row that the field contract would not have passed, or rows that no number of shards
            brings within the budget.
    """
    plans, columns = _plan(rows, caps, count, budget)
    parts = _spread(rows, plans, folder)
    progress = Progress(log, "shards", sum(part.num_rows for part in parts), "prompts")
    refs: list[ShardRef] = []
    recipes: dict[str, str] = {}
    collating = partial(_collating, root, columns, media, before or ShardManifest(shards=[]), code)
    for ref, recipe in spread(collating, _shards(parts, plans), ["cpu"], log):
        refs.append(ref)
        recipes[ref.name] = recipe
        progress.add(ref.rows)
    progress.close()
    return ShardManifest(shards=refs, stamps=dict(stamps), recipes=recipes)


@contextmanager
def _collating(
    root: Path | UPath,
    columns: frozenset[str],
    media: MediaStore,
    before: ShardManifest,
    code: str,
    place: str,
    log: Log,
) -> Iterator[Callable[[tuple[str, pa.Table]], tuple[ShardRef, str]]]:
    """Gives the function that collates the rows of one shard and writes it, with the recipe it has then."""
    known = {ref.name: ref for ref in before.shards}

    def collate(task: tuple[str, pa.Table]) -> tuple[ShardRef, str]:
        name, rows = task[0], task[1].sort_by("uid")
        recipe = digest_json([sorted(columns), code, _digest(rows)])
        ref = known.get(name)
        if ref and before.recipes.get(name) == recipe and not _has_media(rows) and is_intact(root, ref):
            return ref, recipe
        records = rows.to_pylist()
        _require_uids(records)
        items = [_item(record, columns, media) for record in records]
        return write_shard(root, name, DataProto.from_single_dict(collate_fn(items))), recipe

    yield collate


def _digest(rows: pa.Table) -> str:
    """Digest of the rows in their order, however they lie in memory."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows.combine_chunks())
    return digest_bytes(memoryview(sink.getvalue()))


def _has_media(rows: pa.Table) -> bool:
    return any(pc.any(pc.greater(pc.list_value_length(rows[name]), 0)).as_py() for name in MEDIA_COLUMNS)


def _item(record: Mapping[str, Any], columns: frozenset[str], store: MediaStore) -> dict[str, Any]:
    row = decode_row(record)
    for modality, (placeholders, media) in media_counts(row).items():
        if placeholders != media:
            raise not_accepted(
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
            raise not_accepted(
                record, "uid", f"{uid!r}{again}", "a uid of the row's own, without an underscore"
            )
        previous = uid


@dataclass(frozen=True)
class _Plan:
    """Where the rows of one split go.

    Attributes:
        count: number of shards.
        uids: the uids to take; None takes all.
    """

    count: int
    uids: frozenset[str] | None


def _plan(
    rows: Table, caps: Mapping[str, int | None], count: int | None, budget: ShardBudget
) -> tuple[dict[str, _Plan], frozenset[str]]:
    """What goes where by split, and the columns that not every row need have but every shard has."""
    sizes: dict[str, dict[str, int]] = {}
    columns: set[str] = set()
    for batch in rows.batches(["uid", "split", "ability", "prompt_length", *_SIZED]):
        record = batch.to_pydict()
        columns.update(*map(json.loads, set(record["extra_columns"])))
        if batch.column("ability").null_count < batch.num_rows:
            columns.add("ability")
        for uid, split, size in zip(record["uid"], record["split"], _sizes(batch), strict=True):
            sizes.setdefault(split, {})[uid] = size
    plans: dict[str, _Plan] = {}
    for split, by_uid in sizes.items():
        cap, uids = caps.get(split), None
        if cap is not None and cap < len(by_uid):
            uids = frozenset(heapq.nsmallest(cap, by_uid, key=lambda uid: digest_bytes(uid.encode())))
            by_uid = {uid: by_uid[uid] for uid in uids}
        fitting = count or shard_count(
            list(by_uid), list(by_uid.values()), max_rows=budget.rows, max_bytes=budget.bytes
        )
        plans[split] = _Plan(fitting, uids)
    return plans, frozenset(columns)


def _sizes(batch: pa.RecordBatch) -> list[int]:
    """About how many bytes each row takes in a shard: its texts, and four per token."""
    size = pc.multiply(batch.column("prompt_length").cast(pa.int64()), 4)
    for name in _SIZED:
        size = pc.add(size, pc.binary_length(batch.column(name)).cast(pa.int64()))
    return size.to_pylist()


def _shards(parts: Sequence[Table], plans: Mapping[str, _Plan]) -> Iterator[tuple[str, pa.Table]]:
    """The name and rows of each shard, in the order of their names."""
    for part in parts:
        rows = part.read()
        places: dict[str, list[int]] = {}
        splits, uids = rows.column("split").to_pylist(), rows.column("uid").to_pylist()
        for index, (split, uid) in enumerate(zip(splits, uids, strict=True)):
            places.setdefault(shard_name(split, uid, plans[split].count), []).append(index)
        for name in sorted(places):
            yield name, rows if len(places) == 1 else rows.take(pa.array(places[name]))
        part.path.unlink()


def _spread(rows: Table, plans: Mapping[str, _Plan], folder: Path) -> list[Table]:
    """The rows in parts of some megabytes, written in a single pass: one part per shard or per several that
    follow each other, so that neither the files that are open nor the rows in memory grow with the shards.
    """
    schema = rows.schema.remove_metadata()
    most = max(1, rows.num_bytes // _PART_BYTES)
    writers: dict[tuple[str, int], TableWriter] = {}
    with ExitStack() as stack:
        for batch in rows.batches():
            places: dict[tuple[str, int], list[int]] = {}
            splits, uids = batch.column("split").to_pylist(), batch.column("uid").to_pylist()
            for index, (split, uid) in enumerate(zip(splits, uids, strict=True)):
                plan = plans[split]
                if plan.uids is None or uid in plan.uids:
                    part = shard_of(uid, plan.count) * min(most, plan.count) // plan.count
                    places.setdefault((split, part), []).append(index)
            for place, indices in places.items():
                if place not in writers:
                    path = folder / f"{place[0]}-{place[1]}.parquet"
                    writers[place] = stack.enter_context(TableWriter(path, schema, group_rows=_PART_GROUP))
                writers[place].write_batch(batch.take(pa.array(indices)))
    return [writers[place].table for place in sorted(writers)]
