"""Rebuilds that nobody starts by hand: schedule, freshness and sensor, under a real daemon."""

import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from rl_assets.graph.automation import DELIVERED, automate, max_age
from rl_assets.graph.dataset import GraphDataset
from rl_assets.spec.schedule import ScheduleSpec
from tests.build import definitions, make_dataset, materialize, problem, write_jsonl
from tests.deployment import Deployment
from tests.graphql import ask, events, finished_run, runs, wait_until
from tests.postgres import needs_postgres, postgres_server
from tests.project import make_project
from tests.server import free_port, wait_for_server

ROOT = Path(__file__).parent.parent
EVERY_MINUTE = {"cron": "* * * * *"}


def assert_everything_was_rebuilt(address: str, run: dict[str, Any]) -> None:
    """The run succeeded, materialised what the job rebuilds, and evaluated the checks of each stage."""
    assert run["status"] == "SUCCESS"
    found = events(address, run)
    materialized = {
        event["assetKey"]["path"][-1] for event in found if event["__typename"] == "MaterializationEvent"
    }
    assert materialized >= {"raw_files", "field_contract", "proto_shards", "rollouts", *DELIVERED}
    checks = {
        f"{event['evaluation']['assetKey']['path'][-1]}.{event['evaluation']['checkName']}": event[
            "evaluation"
        ]["success"]
        for event in found
        if event["__typename"] == "AssetCheckEvaluationEvent"
    }
    for name in ("field_contract.uids", "rollouts.tensor_rules", "reward_inputs.reward_fields_unchanged"):
        assert checks[name], name


FRESHNESS = """{ assetNodes { assetKey { path } freshnessStatusInfo { freshnessStatus }
  internalFreshnessPolicy { ... on TimeWindowFreshnessPolicy { failWindowSeconds } } } }"""


def assert_fresh(address: str, seconds: int) -> None:
    """What is delivered is shown as fresh, and as overdue after `seconds`; nothing else has a policy."""

    def look() -> dict[str, tuple[int, str]]:
        return {
            node["assetKey"]["path"][-1]: (
                node["internalFreshnessPolicy"]["failWindowSeconds"],
                node["freshnessStatusInfo"]["freshnessStatus"],
            )
            for node in ask(address, FRESHNESS)["assetNodes"]
            if node["internalFreshnessPolicy"]
        }

    expected = dict.fromkeys(DELIVERED, (seconds, "HEALTHY"))
    wait_until("freshness", look, 60, lambda shown: shown == expected)


def test_a_deployed_schedule_runs_by_itself(tmp_path: Path) -> None:
    """History in SQLite, the project found by its [tool.dg], and nobody pressed a button."""
    project = make_project(tmp_path, schedule=EVERY_MINUTE)
    with Deployment(project, {}, []) as deployment:
        deployment.start_daemon()
        server = deployment.start_webserver()
        wait_for_server(server, deployment.address, deployment.log("dagster-webserver"))
        run = finished_run(deployment.address, 300, schedule_name="toy_nightly")
        assert_everything_was_rebuilt(deployment.address, run)
        assert_fresh(deployment.address, 90)


@needs_postgres
def test_a_missed_night_is_made_up_for_and_a_new_file_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As deploy/ has it: history in PostgreSQL; code server, web server and daemon by themselves."""
    schedule = {"enabled": False, "max_age_hours": 36}
    project = make_project(tmp_path, schedule=schedule, sensor={"minimum_interval_seconds": 2})
    for name in ("dagster.yaml", "workspace.yaml"):
        shutil.copy(ROOT / "deploy" / name, project / "home" / name)
    port = str(free_port())
    with postgres_server() as database:
        environment = {**database, "RL_ASSETS_CODE_HOST": "127.0.0.1", "RL_ASSETS_CODE_PORT": port}
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        workspace = ["-w", str(project / "home/workspace.yaml")]
        with Deployment(project, environment, workspace) as deployment:
            address = deployment.address
            deployment.start("dagster", "code-server", "start", "-p", port, "-m", "toy_project.definitions")
            server = deployment.start_webserver()
            wait_for_server(server, address, deployment.log("dagster-webserver"))
            switch_on(address, "Schedule", "toy_nightly")
            with dg.DagsterInstance.from_config(str(project / "home")) as instance:
                pretend_that_it_was_switched_on_earlier(instance, timedelta(days=2))
            deployment.start_daemon()
            run = finished_run(address, 300, schedule_name="toy_nightly")
            assert_everything_was_rebuilt(address, run)
            assert_fresh(address, 36 * 3600)

            switch_on(address, "Sensor", "toy_new_files")
            write_jsonl(project / "data/toy/train.jsonl", [problem(number) for number in range(3)])
            noticed = wait_until("a run", lambda: runs(address, sensor_name="toy_new_files"), 120)
            assert len(noticed) == 1


def switch_on(address: str, kind: str, name: str) -> None:
    """Press the switch of a schedule or sensor in the UI, once the code server has answered."""
    selector = {
        "repositoryLocationName": "rl_assets",
        "repositoryName": "__repository__",
        f"{kind.lower()}Name": name,
    }
    mutation = f"""mutation($of: {kind}Selector!) {{ start{kind}({kind.lower()}Selector: $of) {{
      __typename }} }}"""
    done = f"{kind}StateResult" if kind == "Schedule" else kind

    def press() -> str:
        answer: str = ask(address, mutation, of=selector)[f"start{kind}"]["__typename"]
        return answer

    wait_until(f"{name} switched on", press, 120, lambda answer: answer == done)


def pretend_that_it_was_switched_on_earlier(instance: dg.DagsterInstance, by: timedelta) -> None:
    (state,) = instance.all_instigator_state()
    data = state.instigator_data
    earlier = data._replace(start_timestamp=data.start_timestamp - by.total_seconds())
    instance.update_instigator_state(state.with_data(earlier))


# --- freshness, from the YAML ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "age"),
    [
        ({}, timedelta(hours=36)),
        ({"cron": "30 4 * * 1"}, timedelta(days=10.5)),
        ({"cron": "0 9-17 * * 1-5"}, 1.5 * timedelta(days=2, hours=16)),
        ({"cron": "0 2 * * *", "timezone": "Europe/Berlin"}, timedelta(hours=37.5)),
        ({"enabled": False}, None),
        ({"enabled": False, "max_age_hours": 48}, timedelta(hours=48)),
        ({"max_age_hours": 30}, timedelta(hours=30)),
    ],
)
def test_data_is_too_old_when_a_rebuild_is_half_a_period_late(
    schedule: dict[str, Any], age: timedelta | None
) -> None:
    assert max_age(ScheduleSpec(**schedule)) == age


# --- what a tick requests --------------------------------------------------------------------------------


def automated(dataset: GraphDataset) -> dg.Definitions:
    job = dg.define_asset_job("toy_rebuild", selection=dg.AssetSelection.groups("toy"))
    return automate(dataset, job, definitions(dataset))


def requested(root: Path, at: str, **attributes: Any) -> list[str | None]:
    """Partition keys of the runs that the schedule requests at a time of UTC."""
    dataset = make_dataset(root, [problem(0)], **attributes)
    defs = automated(dataset)
    (schedule,) = defs.schedules or []
    assert isinstance(schedule, dg.ScheduleDefinition)
    when = datetime.fromisoformat(at).replace(tzinfo=UTC)
    context = dg.build_schedule_context(
        scheduled_execution_time=when, repository_def=defs.get_repository_def()
    )
    tick = schedule.evaluate_tick(context)
    return [request.partition_key for request in tick.run_requests or []]


BY_PARTITION = {"train_files": "data/toy/{partition}.jsonl"}


def test_a_tick_rebuilds_the_dataset(tmp_path: Path) -> None:
    assert requested(tmp_path, "2026-03-02 02:00") == [None]


@pytest.mark.parametrize(
    ("at", "timezone", "days"),
    [
        ("2026-03-02 02:00", "UTC", ["2026-03-01"]),
        ("2026-03-02 02:00", "America/New_York", ["2026-02-28"]),
        ("2026-02-01 02:00", "UTC", []),
    ],
)
def test_a_tick_builds_the_last_day_that_is_over(
    tmp_path: Path, at: str, timezone: str, days: list[str]
) -> None:
    axis = {"kind": "date", "start": "2026-02-01"}
    assert (
        requested(tmp_path, at, data=BY_PARTITION, partition_by=axis, schedule={"timezone": timezone}) == days
    )


def test_a_tick_rebuilds_every_value_of_an_axis(tmp_path: Path) -> None:
    axis = {"kind": "static", "values": ["easy", "hard"]}
    assert requested(tmp_path, "2026-03-02 02:00", data=BY_PARTITION, partition_by=axis) == ["easy", "hard"]


# --- the sensor, look by look ---------------------------------------------------------------------------


class Watch:
    """The sensor of a small dataset on an instance of its own; each call is one tick of the daemon."""

    def __init__(self, root: Path, data: dict[str, Any] | None = None, **attributes: Any) -> None:
        self.dataset = make_dataset(root, [problem(0), problem(1)], data=data, **attributes)
        defs = automated(self.dataset)
        (self.sensor,) = defs.sensors or []
        self.repository = defs.get_repository_def()
        self.instance = dg.DagsterInstance.ephemeral()
        self.cursor: str | None = None
        self.file = root / "data/toy/train.jsonl"

    def __call__(self) -> tuple[list[str], str]:
        """Run keys of the runs that the tick requests, and why it requests none."""
        context = dg.build_sensor_context(
            instance=self.instance, cursor=self.cursor, repository_def=self.repository
        )
        tick = self.sensor.evaluate_tick(context)
        self.cursor = tick.cursor or self.cursor  # as the daemon does
        return [str(request.run_key) for request in tick.run_requests or []], tick.skip_message or ""

    def settle(self) -> tuple[list[str], str]:
        """The tick that sees a change, which requests nothing, and the one after it."""
        keys, why = self()
        assert keys == []
        assert "the next look decides" in why
        return self()

    def read_raw_files(self) -> None:
        assert materialize(self.dataset, "raw_files", instance=self.instance).success

    def write(self, *numbers: int) -> None:
        write_jsonl(self.file, [problem(number) for number in numbers])


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    return Watch(tmp_path)


def test_files_that_were_never_built_are_built_once(watch: Watch) -> None:
    keys, _ = watch.settle()
    assert len(keys) == 1
    assert watch() == ([], f"1 files of {watch.file.stat().st_size} bytes, as before")


def test_files_that_are_as_in_the_last_build_are_left_alone(watch: Watch) -> None:
    watch.read_raw_files()
    assert watch.settle() == ([], f"1 files of {watch.file.stat().st_size} bytes, as before")


@pytest.mark.parametrize("change", ["appended", "replaced", "touched"])
def test_a_change_of_content_requests_one_run(watch: Watch, change: str) -> None:
    watch.read_raw_files()
    watch.settle()
    if change == "appended":
        watch.write(0, 1, 2)
    elif change == "replaced":  # by as many bytes
        watch.write(0, 2)
    else:
        os.utime(watch.file, ns=(0, 0))
    keys, _ = watch.settle()
    assert len(keys) == (0 if change == "touched" else 1)
    assert watch()[0] == []


def test_a_file_that_grows_is_waited_for(watch: Watch) -> None:
    watch.settle()
    for last in range(2, 5):
        watch.write(*range(last))
        assert watch()[0] == []
    assert len(watch()[0]) == 1


def test_new_and_removed_files_of_a_folder_are_noticed(tmp_path: Path) -> None:
    watch = Watch(tmp_path, {"train_files": "data/toy"})
    watch.settle()
    write_jsonl(tmp_path / "data/toy/more.jsonl", [problem(5)])
    assert len(watch.settle()[0]) == 1
    watch.read_raw_files()
    (tmp_path / "data/toy/more.jsonl").unlink()
    assert len(watch()[0]) == 1


def test_contents_that_come_back_are_a_change_again(watch: Watch) -> None:
    keys = []
    for numbers in [(0, 1), (0, 2), (0, 1), (0, 2)]:
        watch.write(*numbers)
        keys += watch.settle()[0]
        watch.read_raw_files()
    assert len(set(keys)) == 4


def test_one_change_that_is_seen_twice_has_one_run_key(watch: Watch) -> None:
    """A daemon that dies between launching the run and keeping the cursor requests it again."""
    watch()
    before = watch.cursor
    first, _ = watch()
    watch.cursor = before
    assert watch()[0] == first


@pytest.mark.parametrize("entry", ["data/toy/train.jsonl", "data/toy/*.jsonl"])
def test_a_missing_file_is_named_and_requests_nothing(tmp_path: Path, entry: str) -> None:
    watch = Watch(tmp_path, {"train_files": entry})
    watch.settle()
    watch.file.unlink()
    keys, why = watch()
    assert keys == []
    assert entry in why
    assert "data.train_files" in why


def test_a_change_in_one_partition_requests_a_run_of_that_partition(tmp_path: Path) -> None:
    watch = Watch(tmp_path, BY_PARTITION, partition_by={"kind": "static", "values": ["easy", "hard"]})
    for key in ("easy", "hard"):
        write_jsonl(tmp_path / f"data/toy/{key}.jsonl", [problem(0)])
    assert len(watch.settle()[0]) == 2
    write_jsonl(tmp_path / "data/toy/hard.jsonl", [problem(0), problem(1)])
    (key,), _ = watch.settle()
    assert key.startswith("hard-")


def test_bytes_are_read_only_where_size_or_time_differ(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    watch.settle()

    def fail(path: str, root: Path) -> str:
        raise AssertionError(f"{path} was read again")

    monkeypatch.setattr("rl_assets.contract.files.watch.open_raw", fail)
    assert watch()[0] == []
    watch.write(0, 1, 2)
    watch()
    with pytest.raises(AssertionError, match="was read again"):
        watch()


def test_a_pipe_in_place_of_a_raw_file_is_named_and_not_waited_for(watch: Watch) -> None:
    watch.settle()
    watch.file.unlink()
    os.mkfifo(watch.file)
    keys, why = watch()
    assert keys == []
    assert "data/toy/train.jsonl" in why
    assert "no regular file" in why
    watch.file.unlink()
    watch.write(0, 1, 2)
    assert len(watch.settle()[0]) == 1
