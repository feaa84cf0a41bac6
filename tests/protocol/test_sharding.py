"""Rows go to shards by uid alone: the order of files does not count, and a changed row changes one shard."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from rl_assets.contract import ContractOptions, apply_contract, scan_files
from rl_assets.prompts import LENGTH_FILTERED_SCHEMA
from rl_assets.protocol import ShardManifest, read_shard, shard_of
from rl_assets.protocol.sharding import shard_rows
from rl_assets.store import TableWriter
from tests.verl_wheel import ROOT

COUNT = 4


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


def shards(records: list[dict[str, Any]], folder: Path) -> ShardManifest:
    folder.mkdir()
    with TableWriter(folder / "rows.parquet", LENGTH_FILTERED_SCHEMA) as writer:
        writer.write_rows(records)
    return shard_rows(
        writer.table,
        folder / "shards",
        count=COUNT,
        caps={},
        stamps={"render": "x"},
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
