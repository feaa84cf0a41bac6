"""`rl-assets init`: from a folder of raw files to a defs.yaml that loads."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from rl_assets.cli import app
from rl_assets.cli.console import called
from rl_assets.dataset.scaffold import DEFAULT_POLICY, Draft, draft_dataset, write_new, yaml_text
from rl_assets.errors import InputError
from rl_assets.spec.dataset import DataToRolloutSpec
from tests.build import problem, write_jsonl

PYPROJECT = '[tool.dg.project]\nroot_module = "toy_project"\n'


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    (tmp_path / "toy_project/defs").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path


def draft(root: Path, rows: list[dict[str, Any]], **options: Any) -> Draft:
    write_jsonl(root / "data/mine/rows.jsonl", rows)
    return draft_dataset("data/mine", root, **options)


def spec(draft: Draft) -> DataToRolloutSpec:
    """What the YAML says once it is read again."""
    return DataToRolloutSpec.model_validate(yaml.safe_load(yaml_text(draft))["attributes"])


def test_rows_in_verls_schema_need_no_key(root: Path) -> None:
    found = draft(root, [problem(number) for number in range(3)])
    assert found.settings("data") == {"train_files": ["data/mine/rows.jsonl"]}
    assert found.settings("contract") == {}
    assert spec(found).dataset == "mine"
    assert all(guess.sure for guess in found.guesses if guess.key != "policy.path")


@pytest.mark.parametrize(
    ("change", "settings"),
    [
        (lambda row: row | {"conversations": row.pop("prompt")}, {"prompt_key": "conversations"}),
        (lambda row: row | {"dialogue": row.pop("prompt")}, {"prompt_key": "dialogue"}),
        (lambda row: row | {"source": row.pop("data_source")}, {"reward_fn_key": "source"}),
        (lambda row: row | {"image": [{"path": "a.png"}]}, {"image_key": "image"}),
        (lambda row: row | {"videos": ["a.mp4"]}, {}),
    ],
)
def test_other_names_of_columns_are_found(root: Path, change: Any, settings: dict[str, str]) -> None:
    found = draft(root, [change(problem(number)) for number in range(3)])
    assert found.settings("data") == {"train_files": ["data/mine/rows.jsonl"], **settings}
    assert {key: getattr(spec(found).data, key) for key in settings} == settings


@pytest.mark.parametrize(
    ("change", "settings"),
    [
        ({"prompt": "What is 2 + 2?"}, {"prompt_format": "text"}),
        ({"image": {"path": "a.png"}}, {"wrap_scalars": True}),
        ({"reward_model": '{"ground_truth": "4"}'}, {"parse_json": True}),
        ({"prompt": '[{"role": "user", "content": "2 + 2?"}]'}, {"parse_json": True}),
        ({"tools": '[{"type": "function", "function": {"name": "f"}}]'}, {"parse_json": True}),
    ],
)
def test_what_the_contract_has_to_be_told_is_found(
    root: Path, change: dict[str, Any], settings: dict[str, Any]
) -> None:
    found = draft(root, [problem(number, **change) for number in range(3)])
    assert found.settings("contract") == settings
    assert {key: getattr(spec(found).contract, key) for key in settings} == settings


def test_a_few_broken_rows_do_not_hide_what_the_others_hold(root: Path) -> None:
    rows = [problem(number) for number in range(9)] + [problem(9, prompt="broken")]
    assert draft(root, rows).settings("contract") == {}


def test_several_columns_of_text_are_not_guessed_between(root: Path) -> None:
    found = draft(root, [{"left": "a", "right": "b"}])
    (guess,) = [guess for guess in found.guesses if guess.key == "data.prompt_key"]
    assert (guess.value, guess.sure) == (None, False)
    assert "left, right" in guess.why


def test_splits_go_by_the_names_of_the_files(root: Path) -> None:
    names = ["train-0", "train-1", "gsm_test", "validation", "latest", "contest"]
    for number, name in enumerate(names):
        write_jsonl(root / f"data/mine/{name}.jsonl", [problem(number)])
    data = draft_dataset("data/mine", root).settings("data")
    assert data["val_files"] == ["data/mine/gsm_test.jsonl", "data/mine/validation.jsonl"]
    assert len(data["train_files"]) == 4


def test_files_of_one_kind_become_a_glob_that_finds_later_ones(root: Path) -> None:
    for name in ("train/a", "train/b"):
        write_jsonl(root / f"data/mine/{name}.jsonl", [problem(0)])
    found = draft_dataset("data/mine/train", root)
    assert found.settings("data")["train_files"] == "data/mine/train/*.jsonl"


def test_the_policy_is_the_one_that_is_there(root: Path) -> None:
    assert draft(root, [problem(0)]).settings("policy")["path"] == DEFAULT_POLICY
    (root / "data/policies/tiny").mkdir(parents=True)
    (root / "data/policies/tiny/config.json").write_text("{}")
    assert draft(root, [problem(0)]).settings("policy")["path"] == "data/policies/tiny"
    assert draft(root, [problem(0)], policy="Qwen/Qwen3-0.6B").settings("policy")["path"] == "Qwen/Qwen3-0.6B"


@pytest.mark.parametrize("name", ["no", "1e3", "a: b", "#1", "ü", "yes", "'", "null"])
def test_values_that_look_like_something_else_stay_text(root: Path, name: str) -> None:
    row = problem(0)
    found = draft(root, [{**row, "prompt": None, name: row["prompt"]}])
    assert spec(found).data.prompt_key == name


def call(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.output


def test_the_command_shows_its_guess_writes_and_says_what_is_next(root: Path) -> None:
    write_jsonl(root / "data/mine/train.jsonl", [problem(0), problem(1, reward_model=None)])
    status, output = call("init", "data/mine", "--name", "sums")
    assert status == 0
    for text in (
        "data.train_files",
        "data/mine/train.jsonl",
        "1 of 2 rows accepted",
        "reward_model.missing",
        "  dg check yaml toy_project/defs/sums",
        "  rl-assets check --dataset sums",
        "dg launch --job sums_rebuild",
    ):
        assert text in output
    written = yaml.safe_load((root / "toy_project/defs/sums/defs.yaml").read_text())
    assert written["type"] == "rl_assets.DataToRollout"
    assert DataToRolloutSpec.model_validate(written["attributes"]).dataset == "sums"


def test_where_nothing_would_be_accepted_no_launch_is_advised(root: Path) -> None:
    write_jsonl(root / "data/mine/train.jsonl", [problem(0, reward_model=None)])
    status, output = call("init", "data/mine")
    assert status == 1
    assert output.splitlines()[0] == "no row would be accepted as it is: reward_model.missing (1)"
    assert "reward_model.missing" in output
    assert "dg launch" not in output


def test_files_and_columns_that_nothing_uses_are_named(root: Path) -> None:
    (root / "data/mine").mkdir(parents=True)
    (root / "data/mine/data.csv").write_text("question,answer\n")
    write_jsonl(root / "data/mine/train.jsonl", [problem(0, question="2 + 2?", answer="4", level=3)])
    status, output = call("init", "data/mine")
    assert status == 0
    assert "not read, since they are no parquet, json or jsonl: data/mine/data.csv" in output
    assert "nothing reads the column question: the prompt is read from `prompt` alone" in output
    assert "nothing reads the column answer: the right answer is read from `reward_model`" in output
    assert "carried along, and read by nothing: level" in output


def test_of_rows_in_verls_schema_everything_is_used(root: Path) -> None:
    rows = [problem(0, images=["a.png"], tools=[], agent_name="x", uid="u", ability="math")]
    found = draft(root, rows)
    assert (found.unread, found.passed_over) == ({}, [])
    other = draft(root, [{"problem": "2 + 2?", "solution": "4", "source": "openai/gsm8k"}])
    assert set(other.unread) == {"solution"}
    assert "`reward_model`" in other.unread["solution"]


def test_files_that_are_all_named_for_validation_are_trained_on_and_said(root: Path) -> None:
    write_jsonl(root / "data/mine/test.jsonl", [problem(0)])
    found = draft_dataset("data/mine", root)
    assert found.settings("data") == {"train_files": ["data/mine/test.jsonl"]}
    assert spec(found).data.train_paths == ["data/mine/test.jsonl"]
    (guess,) = [guess for guess in found.guesses if guess.key == "data.train_files"]
    assert (guess.sure, "there is no other" in guess.why) == (False, True)


def test_without_a_gpu_the_first_run_is_small(root: Path) -> None:
    large, small = (draft(root, [problem(0)], small=small) for small in (False, True))
    assert (spec(large).data.train_max_samples, spec(large).data.max_response_length) == (-1, 512)
    assert (spec(small).data.train_max_samples, spec(small).data.max_response_length) == (32, 96)
    assert "# Small, since this machine has no GPU" in yaml_text(small)


@pytest.mark.parametrize(
    ("typed", "hint"), [("rl-assets", "dg"), ("env/bin/rl-assets", "env/bin/dg"), ("/bin/pytest", "dg")]
)
def test_commands_are_named_as_they_are_typed(
    root: Path, monkeypatch: pytest.MonkeyPatch, typed: str, hint: str
) -> None:
    for folder in ("env/bin", "bin"):
        file = root / folder / "rl-assets"
        file.parent.mkdir(parents=True)
        file.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(root / "bin"))
    # A shell that finds a command by its name starts it by its path.
    monkeypatch.setattr("sys.argv", [str(root / "bin/rl-assets") if typed == "rl-assets" else typed])
    assert called("dg") == hint


def test_a_yaml_that_is_there_is_never_overwritten(root: Path) -> None:
    write_jsonl(root / "data/mine/train.jsonl", [problem(0)])
    assert call("init", "data/mine")[0] == 0
    path = root / "toy_project/defs/mine/defs.yaml"
    path.write_text("mine\n")
    status, output = call("init", "data/mine")
    assert (status, path.read_text()) == (2, "mine\n")
    assert "there already" in output
    with pytest.raises(InputError):
        write_new(path, "other")


def test_a_folder_without_raw_files_is_refused_and_nothing_written(root: Path) -> None:
    (root / "data/empty").mkdir(parents=True)
    status, output = call("init", "data/empty")
    assert status == 2
    assert "data/empty" in output
    assert list((root / "toy_project/defs").iterdir()) == []


def test_a_link_out_of_the_project_is_followed_and_said_in_the_yaml(root: Path) -> None:
    """Who names a folder to `init` means what it leads to; the YAML has the word that the graph needs."""
    write_jsonl(root / "elsewhere/rows.jsonl", [problem(0)])
    (root / "project/data").mkdir(parents=True)
    (root / "project/data/mine").symlink_to(root / "elsewhere")
    found = draft_dataset("data/mine", root / "project")
    assert found.settings("data")["follow_links"] is True
    assert spec(found).data.follow_links


def test_json_texts_survive_as_yaml(root: Path) -> None:
    """The writer leans on JSON being YAML."""
    for value in ("a b", "é", '"', ["x", "y: z"], True, 3):
        assert yaml.safe_load(f"key: {json.dumps(value, ensure_ascii=False)}") == {"key": value}


NAMES = ["2026_01", "123", "on", "null", "0x1f", "1e5", "no", "True", "0o17", "1_000", "y", "x" * 100]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_looks_like_something_else_is_quoted(root: Path, name: str) -> None:
    write_jsonl(root / f"data/{name}/rows.jsonl", [problem(0)])
    found = draft_dataset(f"data/{name}", root)
    assert (found.name, spec(found).dataset) == (name, name)


@pytest.mark.parametrize("folder", ["2026-01", "my data.v2 (copy)", "ü", "a/b", "'", "x" * 200])
def test_any_folder_makes_a_yaml_that_loads(root: Path, folder: str) -> None:
    write_jsonl(root / "data" / folder / "rows.jsonl", [problem(0)])
    made = spec(draft_dataset(f"data/{folder}", root))
    assert made.data.train_paths == [f"data/{folder}/rows.jsonl"]


def test_of_several_policies_one_that_is_there_and_reads_what_the_rows_have(root: Path) -> None:
    for name, file in (("a_text", "tokenizer.json"), ("b_vision", "preprocessor_config.json")):
        (root / "data/policies" / name).mkdir(parents=True)
        for one in ("config.json", file):
            (root / "data/policies" / name / one).write_text("{}")
    assert draft(root, [problem(0)]).settings("policy")["path"] == "data/policies/a_text"
    images = draft(root, [problem(0, images=["a.png"])])
    assert images.settings("policy")["path"] == "data/policies/b_vision"
    assert "others there: a_text" in next(one.why for one in images.guesses if one.key == "policy.path")
