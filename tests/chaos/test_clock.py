"""Clocks that are set while something runs, or between two builds."""

import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.test_utils import (
    InProcessTestWorkspaceLoadTarget,
    create_test_daemon_workspace_context,
)
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._scheduler.scheduler import launch_scheduled_runs

from rl_assets.cli.tidy import delete, find_garbage
from rl_assets.dataset.records import read_record
from rl_assets.graph.dataset import GraphDataset
from rl_assets.graph.unchanged import UNCHANGED
from rl_assets.rewards.function import RewardFunction
from rl_assets.rewards.pool import ScorePool
from rl_assets.rollout.journal import Journal
from rl_assets.rollout.requests import Response
from tests.build import materialize
from tests.chaos.kills import assets
from tests.project import make_project

HOUR = 3600
YEAR = 365 * 24 * HOUR

SLOW = """
import time
from pathlib import Path

def compute_score(data_source, solution_str, ground_truth, extra_info):
    time.sleep(float(solution_str) / 2)
    Path(__file__).with_name("half done").touch()
    time.sleep(float(solution_str) / 2)
    return 1.0
"""


@pytest.mark.parametrize("seconds", [YEAR, -YEAR])
def test_a_response_has_its_time_whatever_the_clock_is_set_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """The clock is set while one response is scored, and another hangs."""
    (tmp_path / "slow.py").write_text(SLOW)
    pool = ScorePool(RewardFunction(str(tmp_path / "slow.py")), timeout=2.0, workers=2)
    clock, begun = time.time, time.monotonic()
    monkeypatch.setattr("time.time", lambda: clock() + seconds * (tmp_path / "half done").exists())
    results = pool.score([("toy", text, "null", "null") for text in ("1", "60", "1")])
    assert [result.score for result in results] == [1.0, None, 1.0]
    assert time.monotonic() - begun < 30


# --- between two builds ----------------------------------------------------------------------------------


def built_while_the_clock_was(seconds: float, dataset: GraphDataset) -> GraphDataset:
    """The dataset with its store as it were, had the clock shown so many seconds more when it was built."""
    ahead, store = int(seconds * 1e9), Path(str(dataset.storage))
    for path in store.glob("*.build.json"):
        record, times = json.loads(path.read_bytes()), path.stat()
        for name, mark in record["files"].items():
            size, _, modified = mark.partition("-")
            record["files"][name] = f"{size}-{int(modified) + ahead}"
        path.write_text(json.dumps(record))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    for path in store.rglob("*"):
        times = path.stat()
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + ahead))
    assert read_record(dataset, "rollouts")
    return dataset


GATE = ("length_filtered", "overlong_rows", "unrenderable_rows")
CLOCKS = pytest.mark.parametrize("ahead", [HOUR, YEAR, -HOUR, -YEAR])


@CLOCKS
def test_what_did_not_change_is_not_made_again(toy: GraphDataset, ahead: float) -> None:
    built_while_the_clock_was(ahead, toy)
    before = assets(toy.root)
    result = materialize(
        toy, "raw_files", "rejected_rows", "field_contract", *GATE, "proto_shards", "rollouts"
    )
    assert result.success
    made = {event.asset_key.path[-1]: event for event in result.get_asset_materialization_events()}
    assert len(made) == 8
    assert all(UNCHANGED in event.materialization.metadata for event in made.values())
    assert made["rollouts"].materialization.metadata["generated_responses"].value == 0
    assert assets(toy.root) == before


@pytest.mark.parametrize("older", [0, HOUR, YEAR], ids=["as old", "an hour older", "a year older"])
def test_a_raw_file_rewritten_in_its_size_is_read_again(toy: GraphDataset, older: float) -> None:
    raw = toy.root / "data/toy/train.jsonl"
    text, times = raw.read_text(), raw.stat()
    raw.write_text(text.replace("What is 0 + 0?", "What is 0 + 7?"))
    os.utime(raw, ns=(times.st_atime_ns, times.st_mtime_ns - int(older * 1e9)))
    assert raw.read_text() != text
    assert raw.stat().st_size == times.st_size
    assert materialize(toy, "raw_files", "rejected_rows", "field_contract").success
    prompts = toy.table("field_contract").read().column("prompt").to_pylist()
    assert sum("What is 0 + 7?" in prompt for prompt in prompts) == 1
    assert not any("What is 0 + 0?" in prompt for prompt in prompts)


def test_a_table_of_the_same_size_and_another_time_is_made_again(toy: GraphDataset) -> None:
    path = Path(str(toy.storage / "field_contract.parquet"))
    whole, times = path.read_bytes(), path.stat()
    path.write_bytes(whole[:-1] + b"?")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns - HOUR * 10**9))
    assert materialize(toy, "raw_files", "rejected_rows", "field_contract").success
    assert path.read_bytes() == whole


@CLOCKS
def test_gc_keeps_all_that_is_in_use_and_what_a_killed_run_goes_on_from(
    toy: GraphDataset, ahead: float
) -> None:
    built_while_the_clock_was(ahead, toy)
    rollouts = Path(str(toy.storage)) / "rollouts"
    shutil.copytree(
        next(rollouts.glob("train-*")), rollouts / "train-of-a-killed-run", copy_function=shutil.copy
    )
    with Journal(rollouts / ".journal/another-policy") as journal:
        journal.add("key", Response([1], [0.0], [0.0], "stop"))
    before = assets(toy.root)
    delete(toy, find_garbage(toy))
    assert assets(toy.root) == before
    assert len(Journal(rollouts / ".journal/another-policy")) == 1


# --- the schedule ----------------------------------------------------------------------------------------


class Nights:
    """A project with a nightly schedule, and Dagster's scheduler, which is told what time it is."""

    def __init__(self, instance: dg.DagsterInstance, workspace: Any) -> None:
        self.instance, self.workspace = instance, workspace

    def runs_at(self, day: int, time: str) -> int:
        """How many runs have been asked for after the scheduler looked at this time, counted from day 0."""
        hours, minutes = map(int, time.split(":"))
        now = datetime(2026, 3, 1, hours, minutes, tzinfo=UTC) + timedelta(days=day)
        list(launch_scheduled_runs(self.workspace, logging.getLogger(), now, {}))
        return len(self.instance.get_runs())


@pytest.fixture
def nights(tmp_path: Path) -> Iterator[Nights]:
    project = make_project(tmp_path)
    target = LoadableTargetOrigin(
        executable_path=sys.executable,
        module_name="toy_project.definitions",
        working_directory=str(project),
    )
    origin = InProcessCodeLocationOrigin(loadable_target_origin=target, location_name="toy_project")
    with (
        dg.DagsterInstance.from_config(str(project / "home")) as instance,
        create_test_daemon_workspace_context(InProcessTestWorkspaceLoadTarget(origin), instance) as workspace,
    ):
        yield Nights(instance, workspace)
    for name in [name for name in sys.modules if name.partition(".")[0] == "toy_project"]:
        del sys.modules[name]


def test_no_night_is_run_twice_and_a_jump_is_one_night(nights: Nights) -> None:
    assert nights.runs_at(0, "01:00") == 0
    assert nights.runs_at(0, "02:01") == 1
    assert nights.runs_at(0, "01:01") == 1, "set back by an hour"
    assert nights.runs_at(0, "02:01") == 1
    assert nights.runs_at(1, "02:01") == 2
    assert nights.runs_at(365, "02:01") == 3, "set forward by a year"


def test_after_a_clock_that_was_ahead_the_schedule_starts_again_once_it_is_wiped(nights: Nights) -> None:
    assert nights.runs_at(364, "01:00") == 0
    assert nights.runs_at(364, "02:01") == 1
    assert nights.runs_at(0, "01:00") == 1
    assert nights.runs_at(1, "02:01") == 1, "Dagster waits until it is as late as it was"
    nights.instance.wipe_all_schedules()  # `dagster schedule wipe`
    assert nights.runs_at(2, "01:00") == 1
    assert nights.runs_at(2, "02:01") == 2
