"""`rl-assets check` and `rl-assets codes`, as a data owner and as a program see them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rl_assets.cli import app
from rl_assets.contract import CODES
from tests.contract.rows import row, said, write_jsonl

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


def test_a_bad_file_is_shown_as_a_table_with_remedies(folder: Path) -> None:
    status, output = call("check", "bad.jsonl")
    assert status == 1
    lines = output.splitlines()
    assert lines[0] == "bad.jsonl"
    expected = "1 error prompt.not_a_list prompt found text of 2 characters, expected a list of messages"
    assert lines[2].split() == expected.split()
    assert CODES["prompt.empty"].remedy in output
    assert lines[-1] == "1 of 5 rows accepted, 4 rejected, 0 warnings"


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
        ([], "Missing argument"),
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
