"""Rows go to shards by uid alone: the order of files does not count, and a changed row changes one shard."""

import json
import os
import random
import resource
from pathlib import Path
from typing import Any

import pytest

from rl_assets.base.digests import digest_bytes
from rl_assets.base.tables import TableWriter
from rl_assets.contract.files.scan import scan_files
from rl_assets.contract.gate import apply_contract
from rl_assets.contract.rules.options import ContractOptions
from rl_assets.media.store import MediaStore
from rl_assets.prompts.length import LENGTH_FILTERED_SCHEMA
from rl_assets.protocol import sharding
from rl_assets.protocol.manifest import ShardManifest, shard_of
from rl_assets.protocol.sharding import ShardBudget, shard_rows
from rl_assets.protocol.shards import read_shard
from tests.verl_wheel import ROOT

COUNT = 4
LARGE = ShardBudget(rows=10**6, bytes=10**9)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The sample dataset as the length gate hands it on."""
    manifest = scan_files("data/gsm_symbolic/train-*.parquet", root=ROOT)
    folder = tmp_path_factory.mktemp("contract")
    accepted = apply_contract(manifest, ContractOptions(), root=ROOT, folder=folder).accepted
    rows = list(accepted.rows())
    assert len(rows) > 100
    return [
        {**row, "prompt_ids": list(range(index % 7)), "prompt_length": index % 7}
        for index, row in enumerate(rows)
    ]


def shards(
    records: list[dict[str, Any]],
    folder: Path,
    count: int | None = COUNT,
    budget: ShardBudget = LARGE,
    caps: dict[str, int | None] | None = None,
) -> ShardManifest:
    folder.mkdir()
    with TableWriter(folder / "rows.parquet", LENGTH_FILTERED_SCHEMA) as writer:
        writer.write_rows(records)
    return shard_rows(
        writer.table,
        folder / "shards",
        count=count,
        budget=budget,
        caps=caps or {},
        stamps={"render": "x"},
        media=MediaStore(folder / "media"),
        folder=folder,
        log=lambda line: None,
    )


def test_every_row_is_in_the_shard_of_its_uid_in_order(records: list[dict[str, Any]], tmp_path: Path) -> None:
    manifest = shards(records, tmp_path / "a")
    assert len(manifest.shards) == COUNT
    found = [list(read_shard(tmp_path / "a/shards", ref).non_tensor_batch["uid"]) for ref in manifest.shards]
    assert sorted(uid for uids in found for uid in uids) == sorted(record["uid"] for record in records)
    for index, uids in enumerate(found):
        assert uids == sorted(uids)
        assert {shard_of(uid, COUNT) for uid in uids} == {index}


def test_another_order_of_the_files_gives_the_same_bytes(
    records: list[dict[str, Any]], tmp_path: Path
) -> None:
    shuffled = records.copy()
    random.Random(0).shuffle(shuffled)
    one, two = shards(records, tmp_path / "a"), shards(shuffled, tmp_path / "b")
    assert one == two
    for ref in one.shards:
        for file in (tmp_path / "a/shards" / ref.path).iterdir():
            assert file.read_bytes() == (tmp_path / "b/shards" / ref.path / file.name).read_bytes()


def test_a_changed_row_changes_its_shard_alone(records: list[dict[str, Any]], tmp_path: Path) -> None:
    changed = [dict(record) for record in records]
    extra_info = json.loads(changed[5]["extra_info"])
    changed[5]["extra_info"] = json.dumps({**extra_info, "note": "corrected"})
    before, after = shards(records, tmp_path / "a").shards, shards(changed, tmp_path / "b").shards
    differing = [index for index in range(COUNT) if before[index] != after[index]]
    assert differing == [shard_of(records[5]["uid"], COUNT)]


@pytest.mark.parametrize(
    "budget", [LARGE, ShardBudget(rows=60, bytes=10**9), ShardBudget(rows=10**6, bytes=30_000)], ids=str
)
def test_without_a_count_the_budget_decides(
    records: list[dict[str, Any]], tmp_path: Path, budget: ShardBudget
) -> None:
    manifest = shards(records, tmp_path / "a", count=None, budget=budget)
    assert manifest.rows == len(records)
    (count,) = {int(ref.name.rsplit("-", 1)[1]) for ref in manifest.shards}
    assert (count == 1) is (budget == LARGE)
    assert count & (count - 1) == 0, "a power of two, so that a growing dataset seldom moves its rows"
    assert max(ref.rows for ref in manifest.shards) <= budget.rows


def test_many_shards_need_few_open_files(records: list[dict[str, Any]], tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + 20, before[1]))
    try:
        manifest = shards(records, tmp_path / "a", count=200)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert len(manifest.shards) > 50
    assert manifest.rows == len(records)


@pytest.mark.parametrize("part", [1, 20_000, 10**9])
def test_the_size_of_the_parts_changes_nothing(
    records: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    whole = shards(records, tmp_path / "a", count=7)
    monkeypatch.setattr(sharding, "_PART_BYTES", part)
    assert shards(records, tmp_path / "b", count=7) == whole
    assert [ref.name for ref in whole.shards] == sorted(ref.name for ref in whole.shards)


def test_a_cap_takes_the_prompts_of_the_smallest_digests(
    records: list[dict[str, Any]], tmp_path: Path
) -> None:
    few = shards(records, tmp_path / "a", caps={"train": 30})
    taken = [
        uid for ref in few.shards for uid in read_shard(tmp_path / "a/shards", ref).non_tensor_batch["uid"]
    ]
    by_digest = sorted((record["uid"] for record in records), key=lambda uid: digest_bytes(uid.encode()))
    assert sorted(taken) == sorted(by_digest[:30])


def test_rows_with_other_columns_share_a_shard(records: list[dict[str, Any]], tmp_path: Path) -> None:
    mixed = [dict(record) for record in records]
    mixed[0]["ability"] = None
    mixed[1]["extra_columns"] = '{"level":3}'
    (ref,) = shards(mixed, tmp_path / "a", count=1).shards
    data = read_shard(tmp_path / "a/shards", ref)
    level = dict(zip(data.non_tensor_batch["uid"], data.non_tensor_batch["level"], strict=True))
    ability = dict(zip(data.non_tensor_batch["uid"], data.non_tensor_batch["ability"], strict=True))
    assert (level[mixed[1]["uid"]], level[mixed[0]["uid"]]) == (3, None)
    assert (ability[mixed[0]["uid"]], ability[mixed[1]["uid"]]) == (None, "math")


def test_bytes_of_media_are_stored_once_and_referred_to(
    records: list[dict[str, Any]], tmp_path: Path
) -> None:
    picture = b"not a real picture, but bytes"
    medium = {"item": '{"bytes":null,"path":null}', "bytes": picture, "digest": digest_bytes(picture)}
    prompt = '[{"role":"user","content":"<image> What is it?"}]'
    rows = [{**record, "prompt": prompt, "images": [medium]} for record in records[:3]]
    (ref,) = shards(rows, tmp_path / "a", count=1).shards
    data = read_shard(tmp_path / "a/shards", ref)
    for media in data.non_tensor_batch["multi_modal_data"]:
        assert media["image"][0]["bytes"] == {"digest": digest_bytes(picture)}
    stored = [path for path in (tmp_path / "a/media").rglob("*") if path.is_file()]
    assert [path.read_bytes() for path in stored] == [picture]
