"""The files under deploy/: as far as they can be tried without Docker and without being systemd."""

import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from compose_spec import PyCompose

from deploy.fail_lost_runs import fail_lost_runs
from rl_assets.spec.dataset import DataToRolloutSpec
from tests.postgres import PASSWORD, needs_postgres, postgres_server
from tests.project import BIN, attributes

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
PROGRAMS = "dagster-webserver", "dagster-daemon", "dagster"


# --- dagster.yaml ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    """Dagster's instance as deploy/dagster.yaml says, on a PostgreSQL of its own."""
    home = tmp_path_factory.mktemp("home")
    shutil.copy(DEPLOY / "dagster.yaml", home)
    with postgres_server() as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        with dg.DagsterInstance.from_config(str(home)) as instance:
            yield instance


@needs_postgres
def test_the_instance_keeps_runs_events_and_schedules_in_postgres(instance: dg.DagsterInstance) -> None:
    for storage in (instance.run_storage, instance.event_log_storage, instance.schedule_storage):
        assert type(storage).__name__.startswith("Postgres")


@needs_postgres
def test_the_instance_watches_its_runs_and_forgets_old_ticks(instance: dg.DagsterInstance) -> None:
    assert not instance.telemetry_enabled
    assert instance.run_monitoring_enabled
    assert instance.run_monitoring_start_timeout_seconds == 300
    assert instance.run_monitoring_max_runtime_seconds == 2 * 24 * 3600
    assert instance.run_monitoring_max_resume_run_attempts == 0
    assert (instance.run_retries_enabled, instance.run_retries_max_retries) == (True, 1)
    assert not instance.run_retries_retry_on_asset_or_op_failure
    assert instance.get_settings("retention")["schedule"] == {"purge_after_days": 90}


@needs_postgres
def test_a_developers_machine_and_a_deployment_limit_runs_alike(instance: dg.DagsterInstance) -> None:
    developer = yaml.safe_load((ROOT / "dagster.yaml").read_text())
    assert instance.get_settings("concurrency") == developer["concurrency"]


@needs_postgres
def test_the_databases_password_is_in_no_description_of_the_instance(instance: dg.DagsterInstance) -> None:
    shown = instance.info_str()  # what the UI's configuration page shows
    assert "run_monitoring" in shown
    assert os.environ["DAGSTER_POSTGRES_PASSWORD"] == PASSWORD
    assert PASSWORD not in shown


@needs_postgres
def test_runs_that_died_with_the_code_server_are_failed_and_others_left_alone(
    instance: dg.DagsterInstance,
) -> None:
    @dg.job
    def nothing() -> None: ...

    status = dg.DagsterRunStatus
    runs = {
        before: instance.create_run_for_job(nothing, status=before)
        for before in (status.NOT_STARTED, status.STARTING, status.STARTED, status.SUCCESS)
    }
    lost = {runs[status.STARTING].run_id, runs[status.STARTED].run_id}
    assert set(fail_lost_runs(instance)) == lost
    for before, run in runs.items():
        now = instance.get_run_by_id(run.run_id)
        assert now
        assert now.status == (status.FAILURE if run.run_id in lost else before)
    assert fail_lost_runs(instance) == []


# --- commands -------------------------------------------------------------------------------------------


def commands(text: str) -> Iterator[list[str]]:
    """The Dagster commands in a shell line."""
    for part in re.split(r"&&|;", text):
        words = [word.rpartition("/.venv/bin/")[2] for word in shlex.split(part) if word != "exec"]
        if words and words[0] in PROGRAMS:
            yield words


def of_compose() -> Iterator[list[str]]:
    for service in COMPOSE["services"].values():
        command = service.get("command", "")
        yield from commands(command if isinstance(command, str) else command[-1])
        if (check := service.get("healthcheck")) and check["test"][1] in PROGRAMS:
            yield check["test"][1:]


def of_units() -> Iterator[list[str]]:
    for unit in UNITS:
        for line in unit.read_text().splitlines():
            if line.startswith("ExecStart="):
                yield from commands(line.removeprefix("ExecStart="))


Help = Callable[..., str]


@pytest.fixture
def help_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Help:
    """What a command says of itself: its entry point is called here, since a process for each takes long."""
    monkeypatch.setenv("COLUMNS", "200")

    def shown(*words: str) -> str:
        (program,) = importlib.metadata.entry_points(group="console_scripts", name=words[0])
        monkeypatch.setattr(sys, "argv", [*words, "--help"])
        with pytest.raises(SystemExit) as ended:
            program.load()()
        said = capsys.readouterr()
        assert ended.value.code == 0, f"{' '.join(words)}\n{said.err}"
        return said.out

    return shown


def test_every_command_exists_with_all_of_its_options(help_of: Help) -> None:
    helps: dict[tuple[str, ...], str] = {}
    found = [*of_compose(), *of_units()]
    assert {command[0] for command in found} == set(PROGRAMS)
    assert len(found) == 7
    for command in found:
        flags = [word for word in command if word.startswith("-")]
        called = tuple(command[: command.index(flags[0])])
        if called not in helps:
            helps[called] = help_of(*called)
        for flag in flags:
            assert re.search(rf"{flag}\b", helps[called]), f"{' '.join(called)} has no {flag}"


# --- compose.yaml ---------------------------------------------------------------------------------------


def test_the_compose_file_is_one() -> None:
    project = PyCompose.from_yaml(yaml.safe_dump(COMPOSE))  # its merge keys resolved
    project.validate()
    assert set(project.service_names()) == {"code", "webserver", "daemon", "postgres"}


def test_only_the_web_server_is_published_and_only_on_loopback() -> None:
    published = {name: service.get("ports", []) for name, service in COMPOSE["services"].items()}
    assert published == {"code": [], "webserver": ["127.0.0.1:3000:3000"], "daemon": [], "postgres": []}
    assert not any("network_mode" in service for service in COMPOSE["services"].values())


def test_the_services_get_every_variable_that_their_files_ask_for() -> None:
    asked: set[str] = set()

    def collect(value: Any) -> None:
        if isinstance(value, dict):
            if set(value) == {"env"}:
                asked.add(value["env"])
            for part in value.values():
                collect(part)
        elif isinstance(value, list):
            for part in value:
                collect(part)

    for name in ("dagster.yaml", "workspace.yaml"):
        collect(yaml.safe_load((DEPLOY / name).read_text()))
    assert len(asked) == 7
    for name in ("code", "webserver", "daemon"):
        assert asked <= set(COMPOSE["services"][name]["environment"])


def test_a_password_is_nowhere_in_the_files() -> None:
    for path in DEPLOY.rglob("*"):
        if path.is_file() and path.suffix not in (".pyc", ".py"):
            for line in path.read_text().splitlines():
                if "PASSWORD:" in line or "PASSWORD=" in line:
                    assert "${DAGSTER_POSTGRES_PASSWORD:?" in line, f"{path}: {line}"


def test_what_the_image_copies_is_there() -> None:
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    copied = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY")]
    sources = [word for words in copied for word in words if not word.startswith("--")]
    assert len(sources) > 5
    assert all((ROOT / source).exists() for source in sources)


def test_the_location_is_called_the_same_everywhere() -> None:
    (deployed,) = yaml.safe_load((DEPLOY / "workspace.yaml").read_text())["load_from"]
    (developed,) = yaml.safe_load((ROOT / "workspace.yaml").read_text())["load_from"]
    assert deployed["grpc_server"]["location_name"] == developed["python_module"]["location_name"]


# --- systemd --------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_finds_nothing_to_say_about_the_units(tmp_path: Path) -> None:
    for unit in UNITS:  # in a checkout that is not at /opt, with this environment's programs
        text = unit.read_text().replace("/opt/rl-assets/.venv/bin", str(BIN))
        (tmp_path / unit.name).write_text(text)
    checked = subprocess.run(
        ["systemd-analyze", "verify", *sorted(map(str, tmp_path.glob("*.service")))],
        capture_output=True,
        text=True,
        env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"},
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_the_units_listen_on_loopback() -> None:
    listening = [command for command in of_units() if "--host" in command]
    assert len(listening) == 2
    assert {command[command.index("--host") + 1] for command in listening} == {"127.0.0.1"}


# --- docs/operations.md ---------------------------------------------------------------------------------

DOCS = (ROOT / "docs/operations.md").read_text()


def blocks(language: str) -> str:
    return "\n".join(re.findall(rf"```{language}\n(.*?)```", DOCS, re.DOTALL))


def test_the_commands_of_the_docs_exist_with_their_options(help_of: Help) -> None:
    lines = [line.partition(".venv/bin/")[2] for line in blocks("bash").splitlines() if ".venv/bin/" in line]
    assert len(lines) == 4
    for line in [*lines, *re.findall(r"`((?:dagster[\w-]*|rl-assets) [^`\n]+)`", DOCS)]:
        words = shlex.split(line)
        if words[0] == "pip":
            continue
        flags = [word for word in words if word.startswith("-")]
        shown = help_of(*(word for word in words if word not in flags))
        assert all(flag in shown for flag in flags), line


def test_the_files_that_the_docs_install_are_there() -> None:
    named = {word for line in blocks("bash").splitlines() for word in line.split() if "deploy/" in word}
    patterns = {word for word in named if word != "deploy/.env"}
    assert len(patterns) == 4
    assert all(list(ROOT.glob(pattern)) for pattern in patterns)


def test_the_docs_name_every_variable_and_every_setting_is_one() -> None:
    named = set(re.findall(r"^(\w+)=", blocks("ini"), re.MULTILINE))
    assert named == set(COMPOSE["services"]["daemon"]["environment"])
    settings = attributes(**yaml.safe_load(blocks("yaml")))
    spec = DataToRolloutSpec.model_validate(settings)
    assert spec.sensor.enabled
    assert spec.schedule.max_age_hours == 36
