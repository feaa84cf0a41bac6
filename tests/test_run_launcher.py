"""Whether somebody still works on a run: its process is there, is gone, or its number is another's."""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster._core.events import DagsterEvent, EngineEventData
from dagster._core.launcher.base import WorkerStatus
from dagster._core.test_utils import create_run_for_test

from rl_assets.graph.launcher import LocalRunLauncher

ROOT = Path(__file__).parent.parent
LAUNCHER = yaml.safe_load((ROOT / "dagster.yaml").read_text())["run_launcher"]
YEAR = 365 * 24 * 3600


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump({"run_launcher": LAUNCHER}))
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        assert isinstance(instance.run_launcher, LocalRunLauncher)
        yield instance


def begun(instance: dg.DagsterInstance, process: int, seconds_ago: float = 0.0) -> dg.DagsterRun:
    """A run of which a process said, so long ago, that it works on it."""
    run = create_run_for_test(instance, status=dg.DagsterRunStatus.STARTED)
    event = DagsterEvent(
        event_type_value=dg.DagsterEventType.ENGINE_EVENT.value,
        job_name=run.job_name,
        message="Started process for run",
        event_specific_data=EngineEventData.in_process(process),
    )
    instance.handle_new_event(
        dg.EventLogEntry(
            error_info=None,
            level=logging.INFO,
            user_message="",
            run_id=run.run_id,
            timestamp=time.time() - seconds_ago,
            dagster_event=event,
        )
    )
    return run


def is_there(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    return instance.run_launcher.check_run_worker_health(run).status == WorkerStatus.RUNNING


def test_a_run_goes_on_while_its_process_is_there(instance: dg.DagsterInstance) -> None:
    assert is_there(instance, begun(instance, os.getpid()))


def test_a_run_that_has_no_process_yet_is_left_alone(instance: dg.DagsterInstance) -> None:
    assert is_there(instance, create_run_for_test(instance, status=dg.DagsterRunStatus.STARTED))


@pytest.mark.parametrize("reaped", [True, False])
def test_a_run_whose_process_was_killed_is_lost(instance: dg.DagsterInstance, reaped: bool) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    run = begun(instance, process.pid)
    assert is_there(instance, run)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    if reaped:
        process.wait()
    assert not is_there(instance, run)
    process.wait()


def test_a_process_that_is_younger_than_the_run_is_another(instance: dg.DagsterInstance) -> None:
    """After a restart of the machine, numbers are given out again."""
    assert not is_there(instance, begun(instance, os.getpid(), seconds_ago=YEAR))


@pytest.mark.parametrize("seconds", [YEAR, -YEAR, 60, -60])
def test_a_run_is_not_lost_because_the_clock_was_set(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    run, clock = begun(instance, os.getpid()), time.time
    monkeypatch.setattr("time.time", lambda: clock() + seconds)
    assert is_there(instance, run)
