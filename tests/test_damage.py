"""What is damaged in the store is named, put aside, and made again by the next run."""

import itertools
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest
from upath import UPath

from rl_assets.base.digests import digest_file
from rl_assets.base.files import DAMAGED, damage_put_aside, put_aside, write_file
from rl_assets.base.formats import UnreadableError
from rl_assets.base.manifests import last_manifest
from rl_assets.base.tables import Table
from rl_assets.cli.verify_store import Damage, verify
from rl_assets.dataset.records import RECORD
from rl_assets.graph.dataset import GraphDataset
from rl_assets.graph.unchanged import UNCHANGED
from rl_assets.rollout.journal import Journal
from rl_assets.rollout.requests import Response
from rl_assets.trainset.report import BuildReport
from tests.build import failure, make_dataset, materialize, problem

NESTED = b"[" * 200_000
"""JSON of this depth is more than a parser's stack holds."""
TABLES = ("field_contract", "length_filtered", "reward_inputs", "reward_scores", "prompt_difficulty")
MANIFESTS = ("raw_files", "proto_shards", "rollouts", "verl_dataset", "build_report", "policy")
BELOW = {
    "field_contract": "length_filtered",
    "length_filtered": "proto_shards",
    "proto_shards": "rollouts",
    "rollouts": "reward_inputs",
    "reward_inputs": "reward_scores",
    "reward_scores": "prompt_difficulty",
}
"""An asset that reads each of these and is materialised alone."""
STEP = {
    "field_contract": ("field_contract", "rejected_rows"),
    "length_filtered": ("length_filtered", "overlong_rows", "unrenderable_rows"),
}
"""The assets that one step makes together."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, small_policy: Path) -> GraphDataset:
    """A dataset after one run; not to be changed."""
    root = tmp_path_factory.mktemp("project")
    dataset = make_dataset(root, [problem(n) for n in range(3)], policy=small_policy, rollout={"n": 1})
    assert materialize(dataset).success
    return dataset


@pytest.fixture
def dataset(built: GraphDataset, tmp_path: Path) -> GraphDataset:
    """The same in a folder of its own, to be damaged."""
    shutil.copytree(built.root, tmp_path / "project", copy_function=shutil.copy2)
    return GraphDataset(built.spec, tmp_path / "project")


def contents(dataset: GraphDataset) -> dict[str, str]:
    """Digest of every file that an asset stands for, without notes of the build."""
    storage = Path(str(dataset.storage))
    return {
        path.relative_to(storage).as_posix(): digest_file(path)
        for path in storage.rglob("*")
        if path.is_file()
        and not any(
            part.startswith(".") or part.endswith(DAMAGED) for part in path.relative_to(storage).parts
        )
        and not path.name.endswith((".build.json", ".checks.json"))
    }


def file_of(dataset: GraphDataset, name: str) -> Path:
    return Path(str(dataset.storage)) / name


def a_folder(path: Path) -> None:
    path.unlink()
    (path / "in/it").mkdir(parents=True)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def other_bytes(path: Path) -> None:
    """Other bytes in the middle; size and time stay, so that nothing but the bytes tells."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 4] = bytes(byte ^ 0xFF for byte in data[middle : middle + 4])
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "nested": lambda path: path.write_bytes(NESTED),
    "not text": lambda path: path.write_bytes(b"\xff\xfe\x00"),
    "empty": lambda path: path.write_bytes(b""),
    "another kind": lambda path: path.write_bytes(b"[1, 2]"),
    "cut": cut,
    "a folder": a_folder,
}


# --- the next run makes it again ------------------------------------------------------------------------


def damage_each(paths: list[Path]) -> None:
    """Damage every file, each in the next of the ways."""
    for path, damage in zip(paths, itertools.cycle(DAMAGES.values()), strict=False):
        damage(path)


def unchanged(result: dg.ExecuteInProcessResult) -> set[str]:
    """The assets that were emitted again and not made."""
    events = result.get_asset_materialization_events()
    return {event.asset_key.path[-1] for event in events if UNCHANGED in event.materialization.metadata}


@pytest.mark.parametrize("shift", range(2))
def test_damaged_records_cost_their_steps_once(dataset: GraphDataset, shift: int) -> None:
    before = contents(dataset)
    records = sorted(file_of(dataset, "").glob("*.build.json"))
    damage_each([*records, *sorted(file_of(dataset, "").glob("*.checks.json"))][shift:])
    assert materialize(dataset).success
    assert contents(dataset) == before
    assert unchanged(materialize(dataset)) == {path.name.removesuffix(RECORD) for path in records}


def test_metadata_that_this_dagster_cannot_read_cost_their_step_once(dataset: GraphDataset) -> None:
    path = file_of(dataset, "length_filtered.build.json")
    text = path.read_text()
    newer = re.sub(r"\w+(?=MetadataEntryData)|\w+(?=MetadataValue)", "Hologram", text)
    assert newer != text
    path.write_text(newer)
    asked = ("length_filtered", "overlong_rows", "unrenderable_rows")
    assert not unchanged(materialize(dataset, *asked))
    assert unchanged(materialize(dataset, *asked)) == set(asked)


@pytest.mark.parametrize("shift", range(2))
def test_damaged_tables_and_manifests_are_made_again(dataset: GraphDataset, shift: int) -> None:
    before = contents(dataset)
    del before["build_report.json"], before["build_report.md"]  # what they were is part of what they say
    files = [*(f"{name}.parquet" for name in TABLES), *(f"{name}.json" for name in MANIFESTS)]
    damage_each([file_of(dataset, name) for name in files][shift:])
    assert materialize(dataset).success
    after = contents(dataset)
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize(
    ("asset", "damage"),
    [
        ("field_contract", cut),
        ("length_filtered", other_bytes),
        ("proto_shards", cut),
        ("rollouts", a_folder),
        ("reward_inputs", a_folder),
        ("reward_scores", cut),
    ],
)
def test_a_step_that_meets_damage_names_the_file_and_the_next_run_makes_it_again(
    dataset: GraphDataset, asset: str, damage: Callable[[Path], object]
) -> None:
    """Also where size and time of the file are as they were, so that its own step cannot know."""
    before = contents(dataset)
    path = file_of(dataset, f"{asset}{'.json' if asset in ('proto_shards', 'rollouts') else '.parquet'}")
    damage(path)
    for record in (f"{BELOW[asset]}.build.json", *(f"{name}.checks.json" for name in BELOW)):
        file_of(dataset, record).unlink()
    message = failure(materialize(dataset, *STEP.get(BELOW[asset], (BELOW[asset],))))
    assert str(path) in message
    assert f"renamed to {path.name}{DAMAGED}" in message
    assert not path.exists()
    assert materialize(dataset, *STEP.get(asset, (asset,))).success
    assert contents(dataset)[path.name] == before[path.name]


@pytest.mark.parametrize(
    ("asset", "file"),
    [("proto_shards", "rows.parquet"), ("rollouts", "meta.json"), ("rollouts", "tensors.safetensors")],
)
def test_a_damaged_shard_is_made_again(dataset: GraphDataset, asset: str, file: str) -> None:
    before = contents(dataset)
    (shard,) = [path for path in file_of(dataset, asset).iterdir() if not path.name.startswith(".")]
    other_bytes(shard / file)
    file_of(dataset, f"{BELOW[asset]}.build.json").unlink()
    if asset == "proto_shards":
        shutil.rmtree(file_of(dataset, "rollouts"))  # else no prompt is read: they are answered
    message = failure(materialize(dataset, BELOW[asset]))
    assert shard.name in message
    assert "renamed to" in message
    assert materialize(dataset, asset, BELOW[asset]).success
    assert contents(dataset) == before


def test_a_damaged_journal_is_no_obstacle(tmp_path: Path) -> None:
    response = Response([1], [0.0], [0.0], "stop")
    with Journal(tmp_path / "journal") as journal:
        journal.add("k", response)
    (tmp_path / "journal/damaged.jsonl").mkdir()
    (tmp_path / "journal/noise.jsonl").write_bytes(NESTED + b"\n\xff\n")
    assert Journal(tmp_path / "journal").get("k") == response
    assert (tmp_path / f"journal/damaged.jsonl{DAMAGED}").is_dir()
    (tmp_path / "file").write_text("in the place of a folder")
    with Journal(tmp_path / "file/p1") as journal:
        journal.add("k", response)
    assert Journal(tmp_path / "file/p1").get("k") == response


def test_the_history_of_a_damaged_report_is_put_aside(tmp_path: Path) -> None:
    (tmp_path / "build_report.json").write_bytes(NESTED)
    assert last_manifest(BuildReport, tmp_path / "build_report.json") is None
    assert (tmp_path / f"build_report.json{DAMAGED}").read_bytes() == NESTED
    assert not (tmp_path / "build_report.json").exists()


# --- putting aside --------------------------------------------------------------------------------------


def test_an_object_of_an_object_store_is_put_aside(tmp_path: Path) -> None:
    place = UPath(f"memory://{tmp_path.name}")
    write_file(place / "a.parquet", b"first")
    put_aside(place / "a.parquet", "damaged")
    write_file(place / "a.parquet", b"second")
    aside = put_aside(place / "a.parquet", "damaged")
    assert aside is not None
    assert aside.read_bytes() == b"second"
    assert not (place / "a.parquet").exists()


def test_what_cannot_be_renamed_keeps_its_own_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(UnreadableError, match=r"Materialise gone again\.$"), damage_put_aside():
        raise UnreadableError(file=tmp_path / "gone", found="nothing", remedy="Materialise gone again.")
    assert "cannot be renamed" in caplog.text


def test_an_error_of_the_disk_is_not_damage(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Table(tmp_path / "table.parquet").num_rows  # noqa: B018


# --- verify ---------------------------------------------------------------------------------------------


def damaged(dataset: GraphDataset) -> list[str]:
    storage = dataset.storage
    return [path.relative_to(storage).as_posix() for asset in verify(dataset) for path, _ in asset.damaged]


def test_an_intact_store_is_verified_whole(built: GraphDataset) -> None:
    found = list(verify(built))
    assert [asset.damaged for asset in found] == [[]] * len(found)
    looked_at = sum(asset.files for asset in found)
    assert looked_at >= len(contents(built)) - 1  # but for the list of media files, which two assets share


def test_every_file_whose_bytes_changed_is_named(dataset: GraphDataset) -> None:
    """Size and time say nothing; each file of the store is damaged in turn."""
    for name in contents(dataset):
        path = file_of(dataset, name)
        kept = path.read_bytes(), path.stat()
        if not kept[0]:
            continue
        other_bytes(path)
        expected = "/".join(name.split("/")[:2]) if name.startswith(("proto_shards/", "rollouts/")) else name
        assert damaged(dataset) == [expected], name
        path.write_bytes(kept[0])
        os.utime(path, ns=(kept[1].st_atime_ns, kept[1].st_mtime_ns))
    assert damaged(dataset) == []


def test_missing_files_and_records_are_named(dataset: GraphDataset) -> None:
    file_of(dataset, "verl_dataset/train.parquet").unlink()
    file_of(dataset, "raw_files.build.json").write_bytes(NESTED)
    assert set(damaged(dataset)) == {"verl_dataset/train.parquet", "raw_files.build.json"}
    missing = [d for asset in verify(dataset) for d in asset.damaged if d.path.name == "train.parquet"]
    assert missing == [Damage(dataset.storage / "verl_dataset/train.parquet", "nothing")]
