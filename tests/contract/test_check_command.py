"""`rl-assets check` and `rl-assets codes`, as a data owner and as a program see them."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rl_assets.cli import app
from rl_assets.contract.rules.codes import CODES
from rl_assets.errors import InputError
from rl_assets.graph.dataset import GraphDataset
from rl_assets.policy.fingerprint import policy_files
from tests.build import TRAIN, VAL, problem
from tests.contract.rows import row, said, write_jsonl
from tests.project import attributes, make_project, run, write_defs
from tests.prompts.families import WEATHER
from tests.rollout.test_vocabulary import SPECIAL, chat_policy

BAD = [row(), row(prompt="Hi"), b"{", said("mine", data_source="mine"), row(prompt=[], reward_model=None)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    write_jsonl(tmp_path / "bad.jsonl", BAD)
    write_jsonl(tmp_path / "good.jsonl", [row()])
    return tmp_path


def call(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.output


def test_a_good_file(folder: Path) -> None:
    assert call("check", "good.jsonl") == (0, "1 of 1 rows accepted, 0 rejected, 0 with warnings\n")


def test_a_bad_file_is_shown_as_a_table_with_remedies(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    status, output = call("check", "bad.jsonl")
    assert status == 1
    lines = re.sub(r"\x1b\[[\d;]*m", "", output).splitlines()
    assert lines[0].split() == ["data_source.unknown", "error", "1", "row"]
    assert any(CODES["prompt.empty"].remedy in line for line in lines)
    expected = "bad.jsonl:1 prompt: found text of 2 characters, expected a list of messages"
    assert expected.split() in [line.split() for line in lines]
    assert lines[-1] == "1 of 5 rows accepted, 4 rejected, 0 with warnings"


def test_without_a_terminal_a_finding_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    place = "a folder with a very long name that no narrow screen can show/bad.jsonl"
    (folder / place).parent.mkdir()
    write_jsonl(folder / place, [*BAD, row()])
    lines = call("check", place)[1].splitlines()
    assert (
        f"{place}:1: prompt.not_a_list prompt: found text of 2 characters, expected a list of messages"
        in lines
    )
    assert (
        f"{place}:2: file.malformed_line: found line 3 that is not JSON: Expecting property name enclosed in "
        "double quotes at column 2" in lines
    )
    assert f"{place}:5: row.duplicate: found the content of {place}, row 0 (warning)" in lines
    assert any(line.startswith("prompt.empty") and CODES["prompt.empty"].remedy in line for line in lines)


def test_machines_get_one_object(folder: Path) -> None:
    status, output = call("check", "bad.jsonl", "good.jsonl", "--format", "json")
    report = json.loads(output)
    assert status == 1
    assert (report["accepted"], report["total"]) == (2, 6)
    assert [(one["file"], one["row"], one["code"], one["field"]) for one in report["rejected"]] == [
        ("bad.jsonl", 1, "prompt.not_a_list", "prompt"),
        ("bad.jsonl", 2, "file.malformed_line", None),
        ("bad.jsonl", 3, "data_source.unknown", "data_source"),
        ("bad.jsonl", 4, "prompt.empty", "prompt"),
        ("bad.jsonl", 4, "reward_model.missing", "reward_model"),
    ]
    assert {one["code"] for one in report["warnings"]} == {
        "row.duplicate",
        "extra_info.index_duplicate",
    }
    assert all(set(one) == {"file", "row", "code", "field", "message"} for one in report["rejected"])


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize(("arguments", "shown"), [([], 3), (["--show", "1"], 1), (["--show", "0"], 9)])
def test_each_code_shows_a_few_rows_the_most_frequent_code_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool, arguments: list[str], shown: int
) -> None:
    if terminal:
        monkeypatch.setenv("TTY_COMPATIBLE", "1")
    bad = [row(prompt="Hi"), *(row(prompt=[]) for _ in range(9)), row(), row()]
    write_jsonl(folder / "many.jsonl", bad)
    status, output = call("check", "many.jsonl", *arguments)
    lines = re.sub(r"\x1b\[[\d;]*m", "", output).splitlines()
    heads = [line.split()[0] for line in lines if re.match(r"\w+\.\w+(  | \()", line)]
    assert heads[:3] == ["prompt.empty", "prompt.not_a_list", "extra_info.index_duplicate"]
    empty = [line for line in lines if "many.jsonl:" in line and "found no message" in line]
    assert len(empty) == shown
    assert any(f"… and {9 - shown} more" in line for line in lines) is (shown < 9)
    assert (status, lines[-1]) == (1, "2 of 12 rows accepted, 10 rejected, 1 with warnings")


def test_programs_get_the_rows_of_each_code(folder: Path) -> None:
    report = json.loads(call("check", "bad.jsonl", "good.jsonl", "--format", "json")[1])
    assert report["counts"] == {
        "data_source.unknown": 1,
        "file.malformed_line": 1,
        "prompt.empty": 1,
        "prompt.not_a_list": 1,
        "reward_model.missing": 1,
        "extra_info.index_duplicate": 1,
        "row.duplicate": 1,
    }


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["gone.jsonl"], "gone.jsonl: found no file of this name"),
        (["*.parquet"], "*.parquet: found no file"),
        (["good.jsonl", "--max-prompt-length", "5"], "add --tokenizer"),
        (["good.jsonl", "--tokenizer", "nowhere"], "nowhere"),
        (["good.jsonl", "--format", "xml"], "xml"),
        (["good.jsonl", "--dataset", "toy"], "both FILES and --dataset"),
        ([], "neither FILES nor --dataset"),
    ],
)
def test_a_wrong_call(folder: Path, arguments: list[str], says: str) -> None:
    status, output = call("check", *arguments)
    assert status == 2
    assert says in output


def test_options_of_the_data_block(folder: Path) -> None:
    write_jsonl(
        folder / "text.jsonl", [{"question": "Hi", "source": "mine", "reward_model": {"ground_truth": 1}}]
    )
    options = ["--prompt-key", "question", "--reward-fn-key", "source", "--prompt-format", "text"]
    assert call("check", "text.jsonl", *options, "--known-data-source", "mine") == (
        0,
        "1 of 1 rows accepted, 0 rejected, 0 with warnings\n",
    )


def test_validation_files_are_compared_with_train(folder: Path) -> None:
    report = json.loads(call("check", "good.jsonl", "--val-files", "bad.jsonl", "--format", "json")[1])
    assert "row.shared_with_train" in {one["code"] for one in report["warnings"]}


def test_lengths_are_measured_with_a_tokenizer(folder: Path, policy: Path) -> None:
    write_jsonl(folder / "long.jsonl", [row(), said("word " * 200, extra_info={"index": 2})])
    arguments = [
        "check",
        "long.jsonl",
        "--tokenizer",
        str(policy),
        "--max-prompt-length",
        "100",
        "--format",
        "json",
    ]
    status, output = call(*arguments)
    report = json.loads(output)
    assert (status, report["accepted"]) == (0, 2)
    assert [(one["row"], one["code"]) for one in report["warnings"]] == [(1, "prompt.overlong")]


def test_a_dataset_is_judged_as_the_graph_judges_it(
    tmp_path: Path, toy_run: tuple[GraphDataset, Any]
) -> None:
    dataset, _ = toy_run
    project = make_project(tmp_path / "project")
    for split, rows in (("train", TRAIN), ("val", VAL)):
        write_jsonl(project / f"data/toy/{split}.jsonl", list(rows))
    files = {f"{split}_files": f"data/toy/{split}.jsonl" for split in ("train", "val")}
    write_defs(project, attributes(data={**files, "max_prompt_length": 96}))
    done = run(project, "rl-assets", "check", "--dataset", "toy", "--format", "json")
    report = json.loads(done.stdout[done.stdout.index("{\n") :])
    rows_of = {name: dataset.table(name).num_rows for name in ("length_filtered", "overlong_rows")}
    assert report["total"] == dataset.raw_manifest().rows
    assert report["accepted"] == sum(rows_of.values())
    assert {one["row"] for one in report["rejected"]} == {
        row["source_row"]
        for name in ("rejected_rows", "unrenderable_rows")
        for row in dataset.table(name).rows(("source_row",))
    }
    overlong = [one for one in report["warnings"] if one["code"] == "prompt.overlong"]
    assert len(overlong) == rows_of["overlong_rows"]


def test_what_a_prompt_may_lack_is_a_warning_of_its_row(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    rows = [problem(0), problem(1, tools=[WEATHER]), problem(2, tools=[WEATHER, WEATHER])]
    write_jsonl(project / "data/toy/train.jsonl", rows)
    data = {"train_files": "data/toy/train.jsonl", "max_prompt_length": 96}
    severities = {"render.tools_lost": "warning"}
    write_defs(project, attributes(data=data, contract={"severities": severities}))
    done = run(project, "rl-assets", "check", "--dataset", "toy", "--format", "json")
    report = json.loads(done.stdout[done.stdout.index("{\n") :])
    assert (done.returncode, report["accepted"], report["rejected"]) == (0, 3, [])
    found = [(one["row"], one["code"], one["field"]) for one in report["warnings"]]
    assert found == [(row, "render.tools_lost", "tools[0].function.name") for row in (1, 2)]


def checked(
    tmp_path: Path, rows: list[dict[str, Any]], code: str | None = None, **blocks: Any
) -> tuple[int, dict[str, Any]]:
    """Exit status and report of `check --dataset` on these rows, scored by `code` where it is given.

    Args:
        blocks: further attributes of the dataset.
    """
    project = make_project(tmp_path)
    write_jsonl(project / "data/toy/train.jsonl", rows)
    (project / "reward.py").write_text(code or "")
    reward = {"custom_reward_function": {"path": "reward.py"}, "num_workers": 1} if code else {}
    write_defs(project, attributes(data={"train_files": "data/toy/train.jsonl"}, reward=reward, **blocks))
    done = run(project, "rl-assets", "check", "--dataset", "toy", "--format", "json")
    return done.returncode, json.loads(done.stdout[done.stdout.index("{\n") :])


@pytest.mark.parametrize("part", ["", "huggingface"])
def test_a_folder_that_holds_no_policy_is_refused_as_the_graph_refuses_it(
    tmp_path: Path, policy: Path, part: str
) -> None:
    """What a trainer saves: weights in parts, and config and tokenizer beside them."""
    actor = tmp_path / "global_step_1/actor"
    shutil.copytree(policy, actor / "huggingface", ignore=shutil.ignore_patterns("*.safetensors"))
    (actor / "model_world_size_2_rank_0.pt").write_bytes(b"")
    project = make_project(tmp_path / "project", policy={"path": str(actor / part)})
    done = run(project, "rl-assets", "check", "--dataset", "toy")
    with pytest.raises(InputError) as refused:
        policy_files(actor / part)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (2, f"error: {refused.value}")


def test_a_download_shows_what_is_not_read_and_what_may_be_of_the_other_split(folder: Path) -> None:
    (folder / "set").mkdir()
    write_jsonl(folder / "set/train.jsonl", [row()])
    write_jsonl(folder / "set/test.jsonl", [said("Hi")])
    (folder / "set/dataset_infos.json").write_text("{}")
    status, output = call("check", "set")
    assert status == 0
    assert "Not read, since they are no raw files: set/dataset_infos.json." in output
    assert (
        "Read for training, though by their names they are for validation or test: set/test.jsonl;" in output
    )
    report = json.loads(call("check", "set", "--format", "json")[1])
    assert report["not_read"] == ["set/dataset_infos.json"]
    assert report["named_for_validation"] == ["set/test.jsonl"]


def test_right_answers_of_a_dataset_are_scored(tmp_path: Path) -> None:
    code = (
        "def compute_score(ground_truth, data_source, **_):\n"
        "    if data_source == 'broken': raise ValueError('no scorer')\n"
        "    return float(isinstance(ground_truth, list))"
    )
    rows = [
        said("one", data_source="mine", reward_model={"style": "rule", "ground_truth": ["1"]}),
        said("two", data_source="mine", reward_model={"style": "rule", "ground_truth": ["2"]}),
        said("three", data_source="mine", reward_model={"style": "rule", "ground_truth": "3"}),
        said("four", data_source="broken", reward_model={"style": "rule", "ground_truth": "4"}),
    ]
    status, report = checked(tmp_path, rows, code)
    assert (status, report["accepted"], report["total"]) == (1, 4, 4)
    (stop,) = report["stops"]
    assert (stop["row"], stop["code"]) == (3, "data_source.never_scored")
    assert "found no score for any of the 1 tried rows of 'broken'" in stop["message"]
    found = [
        (one["row"], one["code"]) for one in report["warnings"] if one["code"].startswith("reward_model")
    ]
    assert (2, "reward_model.mixed_types") in found
    assert {place for place in found if place[1] == "reward_model.right_answer_fails"} == {
        (place, "reward_model.right_answer_fails") for place in (0, 1, 2)
    }


def test_every_ground_truth_of_another_kind_is_listed_and_tags_that_verl_drops_are_named(
    tmp_path: Path,
) -> None:
    code = "def compute_score(solution_str, **_): return float(solution_str != '')"
    truths = ["72"] * 70 + [72] * 30 + [["72"]]
    rows = [
        said(f"number {n}", extra_info={"index": n}, reward_model={"style": "rule", "ground_truth": truth})
        for n, truth in enumerate(truths)
    ]
    policy = chat_policy(tmp_path / "policy", special=(*SPECIAL, "<answer>", "</answer>"))
    status, report = checked(tmp_path / "project", rows, code, policy={"path": str(policy)})
    assert (status, report["accepted"], report["counts"]) == (0, 101, {"reward_model.mixed_types": 31})
    assert [one["row"] for one in report["warnings"]] == list(range(70, 101))
    (note,) = report["notes"]
    assert note.startswith("<answer>, </answer> are special tokens of the policy: verl's reward managers")


@pytest.mark.parametrize(("severity", "status", "told"), [(None, 1, "stops"), ("warn", 0, "warnings")])
def test_what_a_trainer_does_not_read_is_said_as_the_check_of_the_graph_says_it(
    tmp_path: Path, severity: str | None, status: int, told: str
) -> None:
    rows = [said("one"), said("two", label="mine")]
    checks = {"severities": {"trainers_read_rows": severity}} if severity else {}
    found, report = checked(tmp_path, rows, curation={"forms": ["openrlhf"]}, checks=checks)
    assert (found, report["accepted"]) == (status, 2)
    (issue,) = (one for one in report[told] if one["code"] == "row.unread_by_trainer")
    assert (issue["row"], issue["field"]) == (1, "label")
    assert issue["message"].startswith("OpenRLHF does not read `label`")


def test_codes_are_listed_and_explained(folder: Path) -> None:
    status, output = call("codes")
    assert status == 0
    assert all(code in output for code in CODES)
    status, output = call("codes", "media.near_miss")
    assert status == 0
    assert CODES["media.near_miss"].remedy in output
    assert "Adjustable" in output


def test_an_unknown_code_gets_suggestions(folder: Path) -> None:
    status, output = call("codes", "prompt.emtpy")
    assert status == 2
    assert "prompt.empty" in output


def test_the_command_loads_no_heavy_library() -> None:
    heavy = "{'torch', 'transformers', 'datasets', 'dagster', 'PIL'}"
    probe = f"import sys, rl_assets.cli; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("set()", "")
