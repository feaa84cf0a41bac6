"""`rl-assets gc`: what assets refer to stays and can be read; what nothing refers to goes."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import numpy as np
import pytest
from dagster._core.test_utils import create_run_for_test
from hypothesis import given, settings
from hypothesis import strategies as st
from upath import UPath

from rl_assets.base.files import put_aside, write_file
from rl_assets.cli.tidy import delete, find_garbage, require_no_run, unknown_folders
from rl_assets.errors import InputError
from rl_assets.graph.dataset import GraphDataset
from rl_assets.media.store import MediaStore
from rl_assets.protocol.dataproto import DataProto
from rl_assets.protocol.manifest import ShardManifest
from rl_assets.protocol.shards import read_shard, write_shard
from rl_assets.rollout.journal import Journal
from rl_assets.rollout.requests import Response
from tests.build import TRAIN, failed, materialize, problem, write_jsonl
from tests.checks.stores import bare_dataset

STORES = ("local", "memory")


@pytest.fixture(params=STORES)
def dataset(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[GraphDataset]:
    """A dataset whose store is a local folder, or an object store."""
    if request.param == "memory":
        monkeypatch.setenv("RL_ASSETS_STORAGE", f"memory://{tmp_path.name}")
    dataset = bare_dataset(tmp_path)
    yield dataset
    if request.param == "memory" and dataset.storage.exists():
        dataset.storage.fs.rm(dataset.storage.path, recursive=True)


def batch(*media: bytes, dataset: GraphDataset) -> DataProto:
    """A batch with a row for every medium."""
    store = MediaStore(dataset.storage / "media")
    rows = np.empty(len(media), dtype=object)
    rows[:] = [{"image": [{"bytes": {"digest": store.put(medium)}}]} for medium in media]
    return DataProto.from_single_dict({"multi_modal_data": rows})


def build(dataset: GraphDataset, shards: dict[str, list[bytes]], policy: str = "p1") -> None:
    """What a run leaves: shards of both stages, their media, a journal, and the manifests last."""
    for name in ("proto_shards", "rollouts"):
        refs = [
            write_shard(dataset.storage / name, shard, batch(*media, dataset=dataset))
            for shard, media in shards.items()
        ]
        manifest = ShardManifest(shards=refs, stamps={"policy": policy})
        write_file(dataset.storage / f"{name}.json", manifest.model_dump_json().encode())


def readable(dataset: GraphDataset) -> set[bytes]:
    """The media of all live shards, read through their references; every digest is verified."""
    store = MediaStore(dataset.storage / "media")
    return {
        store.get(row["image"][0]["bytes"]["digest"])
        for name in ("proto_shards", "rollouts")
        for _, data in dataset.shards(name)
        for row in data.non_tensor_batch["multi_modal_data"]
    }


def files(dataset: GraphDataset) -> set[str]:
    found = (path for path in dataset.storage.rglob("*") if not path.is_dir())
    return {path.relative_to(dataset.storage).as_posix() for path in found}


def tidy(dataset: GraphDataset) -> list[str]:
    garbage = find_garbage(dataset)
    delete(dataset, garbage)
    return sorted(item.kind for item in garbage)


def test_what_an_older_build_left_goes(dataset: GraphDataset) -> None:
    build(dataset, {"train-0": [b"a", b"b"], "train-1": [b"c"]})
    before = files(dataset)
    build(dataset, {"train-0": [b"a", b"x"], "train-1": [b"c"]})
    assert tidy(dataset) == ["medium", "prompt shard", "rollout shard"]
    assert readable(dataset) == {b"a", b"x", b"c"}
    assert len(before - files(dataset)) == 3 + 3 + 1  # two shards of three files, and a medium
    assert tidy(dataset) == []


def test_the_size_is_that_of_the_files(dataset: GraphDataset) -> None:
    build(dataset, {"train-0": [b"a" * 1000]})
    build(dataset, {"train-0": [b"b"]})
    sizes = {item.kind: item.bytes for item in find_garbage(dataset)}
    assert sizes["medium"] == 1000
    assert sizes["prompt shard"] == sizes["rollout shard"] > 0


contents = st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), min_size=1, max_size=3)
builds = st.dictionaries(st.sampled_from(["train-0", "train-1", "val-0"]), contents, min_size=1)


@settings(max_examples=25, deadline=None)
@given(history=st.lists(st.tuples(builds, st.booleans()), min_size=1, max_size=4))
def test_whatever_was_built_before_everything_referenced_is_still_readable(
    history: list[tuple[dict[str, list[bytes]], bool]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        dataset = bare_dataset(Path(folder))
        for shards, tidies in history:
            build(dataset, shards)
            if tidies:
                tidy(dataset)
        tidy(dataset)
        wanted = {medium for media in history[-1][0].values() for medium in media}
        assert readable(dataset) == wanted
        for name in ("proto_shards", "rollouts"):
            folders = {path.name for path in (dataset.storage / name).iterdir()} - {".staging"}
            assert folders == {ref.path for ref in dataset.shard_manifest(name).shards}
        assert sum(1 for path in (dataset.storage / "media").rglob("*") if path.is_file()) == len(wanted)


def test_what_a_killed_run_can_go_on_from_stays(tmp_path: Path) -> None:
    dataset = bare_dataset(tmp_path)
    rollouts = Path(str(dataset.storage)) / "rollouts"
    response = Response([1], [0.0], [0.0], "stop")
    with Journal(rollouts / ".journal/p0") as journal:
        journal.add("k", response)
    build(dataset, {"train-0": [b"a"]})
    with Journal(rollouts / ".journal/p2") as journal:
        journal.add("k", response)
    new = write_shard(dataset.storage / "rollouts", "train-0-new", batch(b"b", dataset=dataset))
    assert tidy(dataset) == ["journal of another policy"]
    assert len(Journal(rollouts / ".journal/p2")) == 1
    assert len(read_shard(dataset.storage / "rollouts", new)) == 1
    assert readable(dataset) == {b"a"}


# A week and an hour: after these, what another machine left unfinished is garbage.
AGES = {".staging/0f0f0f0f-half": 7 * 24 * 3600, ".field_contract.parquet.0123.tmp": 3600}


@pytest.mark.parametrize("name", AGES)
def test_what_a_process_elsewhere_left_unfinished_goes_once_it_is_old(tmp_path: Path, name: str) -> None:
    dataset = bare_dataset(tmp_path)
    path = Path(str(dataset.storage)) / name
    path.parent.mkdir(parents=True)
    path.mkdir() if "staging" in name else path.write_bytes(b"half")
    for age, expected in ((AGES[name] - 60, []), (AGES[name] + 60, ["unfinished file"])):
        os.utime(path, (time.time() - age,) * 2)
        assert tidy(dataset) == expected


def test_the_folder_of_a_living_process_stays_and_that_of_a_killed_one_goes(tmp_path: Path) -> None:
    dataset = bare_dataset(tmp_path)
    work = f"""
import sys, time
from upath import UPath
from rl_assets.base.files import staging
with staging(UPath({str(dataset.storage)!r})) as folder:
    (folder / "half").write_text("written so far")
    print(folder, flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", work], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert tidy(dataset) == []
        assert (folder / "half").read_text() == "written so far"
        process.kill()
    assert tidy(dataset) == ["unfinished file"]
    assert not folder.exists()


def test_a_journal_that_is_being_written_stays(tmp_path: Path) -> None:
    dataset = bare_dataset(tmp_path)
    rollouts = Path(str(dataset.storage)) / "rollouts"
    response = Response([1], [0.0], [0.0], "stop")
    with Journal(rollouts / ".journal/p0") as journal:
        journal.add("k", response)
        build(dataset, {"train-0": [b"a"]})  # another process ends meanwhile, with another policy
        assert tidy(dataset) == []
    assert tidy(dataset) == ["journal of another policy"]


def test_what_was_put_aside_goes(tmp_path: Path) -> None:
    dataset = bare_dataset(tmp_path)
    write_file(dataset.storage / "field_contract.parquet", b"damaged")
    put_aside(dataset.storage / "field_contract.parquet", "damaged")
    assert tidy(dataset) == ["damaged file"]


def test_without_a_manifest_nothing_is_garbage(dataset: GraphDataset) -> None:
    write_shard(dataset.storage / "proto_shards", "train-0", batch(b"a", dataset=dataset))
    assert find_garbage(dataset) == []


def test_the_graph_stays_whole_and_fresh(toy: GraphDataset) -> None:
    rows = [*TRAIN]
    rows[0] = problem(70)
    write_jsonl(toy.root / "data/toy/train.jsonl", rows)
    assets = ["raw_files", "rejected_rows", "field_contract", "unrenderable_rows", "overlong_rows"]
    assets += ["length_filtered", "proto_shards", "rollouts"]
    before = failed(materialize(toy, *assets))
    kinds = tidy(toy)
    assert {"prompt shard", "rollout shard"} <= set(kinds)
    again = materialize(toy, *assets)
    assert again.success
    assert failed(again) == before
    (event,) = [e for e in again.get_asset_materialization_events() if e.asset_key.path[-1] == "rollouts"]
    assert event.materialization.metadata["generated_responses"].value == 0
    assert tidy(toy) == []


@pytest.mark.parametrize(
    ("job", "keys", "status", "refused"),
    [
        ("toy_rebuild", None, dg.DagsterRunStatus.STARTED, True),
        ("toy_rebuild", None, dg.DagsterRunStatus.STARTING, True),
        ("__ASSET_JOB", [["toy", "rollouts"]], dg.DagsterRunStatus.STARTED, True),
        ("__ASSET_JOB", [["other", "rollouts"]], dg.DagsterRunStatus.STARTED, False),
        ("other_rebuild", None, dg.DagsterRunStatus.STARTED, False),
        ("toy_rebuild", None, dg.DagsterRunStatus.SUCCESS, False),
        ("toy_rebuild", None, dg.DagsterRunStatus.FAILURE, False),
    ],
)
def test_a_run_in_progress_is_not_disturbed(
    tmp_path: Path, job: str, keys: list[list[str]] | None, status: dg.DagsterRunStatus, refused: bool
) -> None:
    dataset = bare_dataset(tmp_path)
    with dg.DagsterInstance.ephemeral() as instance:
        selection = None if keys is None else frozenset(dg.AssetKey(key) for key in keys)
        run = create_run_for_test(instance, job_name=job, asset_selection=selection, status=status)
        if refused:
            with pytest.raises(InputError, match=f"run {run.run_id[:8]} of {job}"):
                require_no_run(dataset, instance)
        else:
            require_no_run(dataset, instance)


def test_folders_of_no_dataset_are_named_and_stay(tmp_path: Path) -> None:
    dataset = bare_dataset(tmp_path)
    for name in ("toy", "forgotten", ".hidden"):
        UPath(tmp_path / "data/storage" / name).mkdir(parents=True)
    assert [path.name for path in unknown_folders([dataset])] == ["forgotten"]
