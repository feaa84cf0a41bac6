"""The commands that a user types: what they print, and their exit status."""

import json
import os
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from rl_assets.base.digests import digest_file
from tests.project import BIN, attributes, make_project, run, write_defs
from tests.server import dagster_server

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose dataset was materialised once by `dg launch`."""
    folder = make_project(tmp_path_factory.mktemp("finished"))
    launched = run(folder, "dg", "launch", "--job", "toy_rebuild")
    assert launched.returncode == 0, launched.stdout[-4000:]
    return folder


def stored(folder: Path) -> dict[str, str]:
    """Digest of everything that the assets stored."""
    root = folder / "data/storage"
    return {str(path.relative_to(root)): digest_file(path) for path in root.rglob("*") if path.is_file()}


def test_a_launched_job_materialises_the_graph(finished: Path) -> None:
    names = {path.name for path in (finished / "data/storage/toy").iterdir()} - {".staging"}
    assert names >= {
        "raw_files.json",
        "field_contract.parquet",
        "rejected_rows.parquet",
        "length_filtered.parquet",
        "overlong_rows.parquet",
        "unrenderable_rows.parquet",
        "proto_shards",
        "proto_shards.json",
        "rollouts",
        "rollouts.json",
        "reward_inputs.parquet",
    }


def test_a_rebuild_without_a_change_generates_nothing_and_changes_nothing(finished: Path) -> None:
    before = stored(finished)
    launched = run(finished, "dg", "launch", "--job", "toy_rebuild")
    assert launched.returncode == 0
    assert "rollouts: unchanged, nothing to do" in launched.stdout
    assert "rollouts: loading" not in launched.stdout
    assert lasting(stored(finished)) == lasting(before)


def lasting(files: dict[str, str], told: re.Pattern[str] | None = None) -> dict[str, str]:
    """Digests without those of records, which say when a source was looked at, and of what `told` matches."""
    records = re.compile(r"\.(build|checks)\.json$")
    return {
        path: digest
        for path, digest in files.items()
        if not records.search(path) and not (told and told.search(path))
    }


def a_missing_file(folder: Path) -> None:
    (folder / "data/toy/train.jsonl").unlink()


def a_line_that_is_not_json(folder: Path) -> None:
    with (folder / "data/toy/train.jsonl").open("a") as file:
        file.write('{"prompt": [\n')


def an_empty_glob(folder: Path) -> None:
    write_defs(folder, attributes(data={"train_files": "data/toy/*.parquet"}))


def an_unreadable_parquet(folder: Path) -> None:
    (folder / "data/toy/train.parquet").write_bytes(b"PAR1 and nothing else")
    write_defs(folder, attributes(data={"train_files": "data/toy/train.parquet"}))


def a_policy_that_is_not_there(folder: Path) -> None:
    write_defs(folder, attributes(policy={"path": "data/policies/absent"}))


def a_policy_without_weights(folder: Path) -> None:
    policy = Path(attributes()["policy"]["path"])
    shutil.copytree(policy, folder / "policy", ignore=shutil.ignore_patterns("*.safetensors"))
    write_defs(folder, attributes(policy={"path": "policy"}))


@pytest.mark.parametrize(
    ("breaks", "names"),
    [
        (a_missing_file, ["data/toy/train.jsonl"]),
        (a_line_that_is_not_json, ["data/toy/train.jsonl, row 2", "file.malformed_line"]),
        (an_empty_glob, ["data/toy/*.parquet", "data.train_files"]),
        (an_unreadable_parquet, ["data/toy/train.parquet"]),
        (a_policy_that_is_not_there, ["data/policies/absent", "policy.path"]),
        (a_policy_without_weights, ["policy", "weights"]),
    ],
)
def test_bad_input_is_named_ends_with_status_1_and_leaves_what_was_there(
    finished: Path, tmp_path: Path, breaks: Callable[[Path], None], names: list[str]
) -> None:
    folder = tmp_path / "project"
    shutil.copytree(finished, folder)
    before = stored(folder)
    breaks(folder)
    launched = run(folder, "dg", "launch", "--job", "toy_rebuild")
    assert launched.returncode == 1
    for name in names:
        assert name in launched.stdout
    after = stored(folder)
    # These say what is there now.
    told = re.compile(r"toy/(rejected_rows|raw_files|policy|tokenizer|reward_function)\.")
    assert lasting(after, told) == lasting(before, told)


def test_a_wrong_yaml_is_refused_with_file_line_and_field(tmp_path: Path) -> None:
    folder = make_project(
        tmp_path, data={"train_files": "data/toy/train.jsonl", "max_prompt_length": "forty"}
    )
    checked = run(folder, "dg", "check", "yaml", "toy_project/defs/toy")
    assert checked.returncode == 1
    assert "toy_project/defs/toy/defs.yaml:6" in checked.stdout
    assert "max_prompt_length" in checked.stdout
    assert "'forty' is not of type 'integer'" in checked.stdout
    loaded = run(folder, "dg", "check", "defs")
    assert loaded.returncode == 1


def test_trace_names_the_runs_that_made_what_it_shows(finished: Path) -> None:
    traced = run(finished, "rl-assets", "trace", "train.jsonl:0", "--json")
    assert traced.returncode == 0, traced.stdout
    found = json.loads(traced.stdout)
    assert found["contract"]["verdict"] == "accepted"
    assert len(found["responses"]) == 1
    assert found["made"]["rollouts"]["run_id"]
    uid = found["uid"]
    shown = run(finished, "rl-assets", "trace", uid[:16], "--dataset", "toy")
    assert f"run {found['made']['rollouts']['run_id'][:8]}" in shown.stdout
    wrong = run(finished, "rl-assets", "trace", uid, "--dataset", "tony")
    assert (wrong.returncode, "expected toy" in wrong.stdout) == (2, True)


def test_verify_names_what_changed_and_the_next_run_makes_it_again(finished: Path) -> None:
    intact = run(finished, "rl-assets", "verify")
    assert (intact.returncode, "toy/rollouts" in intact.stdout) == (0, True), intact.stdout
    before = stored(finished)
    path = finished / "data/storage/toy/verl_dataset/train.parquet"
    time, data = path.stat().st_mtime_ns, path.read_bytes()
    path.write_bytes(b"x" * len(data))
    os.utime(path, ns=(time, time))
    found = run(finished, "rl-assets", "verify")
    assert found.returncode == 1
    assert "train.parquet: found other bytes than were written" in found.stdout
    aside = run(finished, "rl-assets", "verify", "--put-aside")
    assert (aside.returncode, "renamed to train.parquet.damaged" in aside.stdout) == (1, True)
    assert run(finished, "dg", "launch", "--job", "toy_rebuild").returncode == 0
    assert run(finished, "rl-assets", "verify").returncode == 0
    assert lasting(stored(finished)) == lasting(before)


def test_gc_frees_nothing_that_is_needed(finished: Path) -> None:
    before = stored(finished)
    left = finished / "data/storage/toy/.staging/of_a_killed_run"
    left.mkdir()
    (left / "half").write_bytes(b"x" * 2000)
    for path in (left / "half", left):  # of another machine: its locks are not seen from here
        os.utime(path, (0, 0))
    shown = run(finished, "rl-assets", "gc", "--dry-run")
    assert (shown.returncode, "2.0 kB would be freed" in shown.stdout) == (0, True)
    assert left.exists()
    done = run(finished, "rl-assets", "gc")
    assert (done.returncode, "2.0 kB freed" in done.stdout) == (0, True)
    assert not left.exists()
    assert stored(finished) == before


def test_a_scaffolded_yaml_loads_as_it_stands(tmp_path: Path) -> None:
    folder = make_project(tmp_path)
    made = run(
        folder, "dg", "scaffold", "defs", "rl_assets.DataToRollout", "my_data", "--policy", "some/policy"
    )
    assert made.returncode == 0, made.stdout
    text = (folder / "toy_project/defs/my_data/defs.yaml").read_text()
    assert "train_files: data/my_data/*.jsonl" in text
    assert "path: some/policy" in text
    checked = run(folder, "dg", "check", "yaml", "toy_project/defs/my_data")
    assert checked.returncode == 0, checked.stdout
    again = run(folder, "dg", "scaffold", "defs", "rl_assets.DataToRollout", "my_data")
    assert again.returncode != 0
    assert (folder / "toy_project/defs/my_data/defs.yaml").read_text() == text


def test_every_key_is_explained_on_the_command_line(tmp_path: Path) -> None:
    shown = run(
        make_project(tmp_path),
        "dg",
        "utils",
        "inspect-component",
        "rl_assets.DataToRollout",
        "--defs-yaml-schema",
    )
    assert shown.returncode == 0
    for key in ("train_files", "max_prompt_length", "val_kwargs", "custom_reward_function", "severities"):
        assert re.search(rf"^ +{key}:.*# (Optional|Required): \S+", shown.stdout, re.MULTILINE), key


def test_a_second_dataset_is_a_second_yaml(tmp_path: Path) -> None:
    folder = make_project(tmp_path)
    write_defs(folder, attributes(dataset="other"))
    listed = run(folder, "dg", "list", "defs", "--json")
    assert listed.returncode == 0
    for name in ("toy/reward_inputs", "other/reward_inputs", "toy_rebuild", "other_rebuild", "other_nightly"):
        assert f'"{name}"' in listed.stdout


@pytest.mark.parametrize(
    "command",
    [
        ["dg", "check", "yaml"],
        ["dg", "check", "yaml", "rl_assets/defs/gsm_symbolic"],
        ["dg", "check", "yaml", "rl_assets/defs/needs_care"],
        ["dg", "check", "defs"],
        ["dg", "check", "toml"],
    ],
)
def test_the_project_itself_is_well_formed(command: list[str], tmp_path: Path) -> None:
    checked = subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        cwd=ROOT,
        env={**os.environ, "DAGSTER_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_dg_dev_serves_the_ui(tmp_path: Path) -> None:
    with dagster_server(tmp_path / "server", "dg", "dev") as address, urllib.request.urlopen(address) as page:
        assert b"Dagster" in page.read()
