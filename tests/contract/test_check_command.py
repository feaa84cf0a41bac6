"""`rl-assets check` and `rl-assets codes`, as a data owner and as a program see them."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rl_assets.assets.dataset import Dataset
from rl_assets.cli import app
from rl_assets.contract import CODES
from tests.build import TRAIN, VAL
from tests.contract.rows import row, said, write_jsonl
from tests.project import attributes, make_project, run, write_defs

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
    assert call("check", "good.jsonl") == (0, "1 of 1 rows accepted, 0 rejected, 0 warnings\n")


def test_a_bad_file_is_shown_as_a_table_with_remedies(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    status, output = call("check", "bad.jsonl")
    assert status == 1
    lines = re.sub(r"\x1b\[[\d;]*m", "", output).splitlines()
    assert lines[0] == "bad.jsonl"
    expected = "1 error prompt.not_a_list prompt found text of 2 characters, expected a list of messages"
    assert lines[2].split() == expected.split()
    assert any(CODES["prompt.empty"].remedy in line for line in lines)
    assert lines[-1] == "1 of 5 rows accepted, 4 rejected, 0 warnings"


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


def test_the_table_is_cut_and_says_so(folder: Path) -> None:
    assert "… and 4 more (--show 0 shows all)" in call("check", "bad.jsonl", "--show", "1")[1]


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
        "1 of 1 rows accepted, 0 rejected, 0 warnings\n",
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


def test_a_dataset_is_judged_as_the_graph_judges_it(tmp_path: Path, toy_run: tuple[Dataset, Any]) -> None:
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
