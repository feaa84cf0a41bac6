"""The words of the README and of the pages for users, run: the dataset that they make, the commands and
snippets that they show, what they explain."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from benchmarks.book import Figure, as_json, as_markdown, main
from benchmarks.book import run as benchmark
from rl_assets.cli.configuration import configuration_page
from rl_assets.graph.checks import CHECKS
from rl_assets.spec.dataset import DataToRolloutSpec
from tests.build import POLICY, problem, write_jsonl
from tests.project import attributes, make_project, run, write_defs
from tests.verl_wheel import verl_site

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
RESULTS = (ROOT / "docs/using-results.md").read_text()


def blocks(language: str, page: str = README) -> list[str]:
    """The code blocks of a language in a page, in order."""
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def commands() -> list[str]:
    """Every command of the README's shell blocks, without its comment."""
    lines = (line.split("#")[0].strip() for block in blocks("bash") for line in block.splitlines())
    return [line for line in lines if line]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the dataset of the README's five minutes: its YAML and its row, in the forms of the page
    on results, and with further rows, the last of which has a shape of its own."""
    folder = make_project(tmp_path_factory.mktemp("readme"))
    attributes = yaml.safe_load(blocks("yaml")[0])["attributes"] | yaml.safe_load(blocks("yaml", RESULTS)[0])
    attributes["policy"]["path"] = str(POLICY)
    attributes["data"]["max_response_length"] = 4
    write_defs(folder, attributes)
    infos = [{"index": 1}, {"index": 2}, {"index": 3, "note": "odd"}]
    rows = [problem(number, extra_info=info) for number, info in enumerate(infos, start=3)]
    write_jsonl(folder / "data/my_data/rows.jsonl", [blocks("json")[0].strip(), *rows])
    return folder


@pytest.fixture(scope="module")
def ran(project: Path) -> dict[str, subprocess.CompletedProcess[str]]:
    """Every command of the README's that is one of the environment's, run in the project in its order."""
    done = {}
    for command in commands():
        if command.startswith(".venv/bin/"):
            words = shlex.split(command.replace("rl_assets/defs", "toy_project/defs"))
            done[command] = run(project, Path(words[0]).name, *words[1:])
    return done


def test_the_commands_for_a_new_dataset_work_as_they_stand(
    ran: dict[str, subprocess.CompletedProcess[str]],
) -> None:
    assert len(ran) >= 4
    for command, done in ran.items():
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}"


@pytest.fixture
def names(
    project: Path, ran: dict[str, subprocess.CompletedProcess[str]], monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Where snippets are run: in the folder of a project that was built."""
    monkeypatch.chdir(project)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(project / "cache"))
    return {"__name__": "snippet"}


def snippet(page: str, begins: str, names: dict[str, Any]) -> dict[str, Any]:
    """The names that the one Python block with this text in it defines, run on the project's dataset."""
    (block,) = [block for block in blocks("python", page) if begins in block]
    exec(block.replace("gsm_symbolic", "my_data"), names)
    return names


def test_the_readme_reads_what_the_graph_stored(names: dict[str, Any]) -> None:
    assert set(snippet(README, "reward_inputs", names)["rows"]["ground_truth"]) == {"4", "6", "8", "10"}


def test_a_reward_function_of_trl_scores_the_training_set(names: dict[str, Any]) -> None:
    snippet(RESULTS, "def reward", names)
    columns = names["train_dataset"].to_dict()
    assert columns.pop("prompt")[0][0]["role"] == "user"
    right = [[{"role": "assistant", "content": f"#### {truth}"}] for truth in columns["ground_truth"]]
    assert names["reward"](right, **columns) == [1.0] * 4
    assert names["reward"](right[::-1], **columns) == [0.0] * 4


def test_openrlhf_finds_its_columns(names: dict[str, Any]) -> None:
    from datasets import load_dataset

    (line,) = blocks("text", RESULTS)
    words = shlex.split(line.replace("gsm_symbolic", "my_data"))
    file, prompt, label = (
        words[words.index(f"--data.{name}") + 1] for name in ("prompt_dataset", "input_key", "label_key")
    )
    rows = load_dataset("parquet", data_files=file, split="train")
    assert sorted(rows[label]) == ["10", "4", "6", "8"]
    assert rows[0][prompt][0]["role"] == "user"


def test_datasets_loads_the_folder_and_the_saved_form(names: dict[str, Any]) -> None:
    snippet(RESULTS, "load_from_disk", names)
    assert names["both"]["train"].to_list() == names["saved"]["train"].to_list()
    assert {"index": 3, "note": "odd"} in [row["extra_info"] for row in names["both"]["train"]]


def test_pandas_reads_scores_and_difficulty(names: dict[str, Any]) -> None:
    snippet(RESULTS, "easiest", names)
    assert len(names["scores"]) == 16
    assert len(names["easiest"]) == 4


def test_the_row_that_makes_a_column_json_is_found(
    names: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert snippet(RESULTS, "as_json", names)["as_json"] == {"train.parquet": ["extra_info"]}
    odd = snippet(RESULTS, "def shape", names)["odd"]
    assert (odd.iloc[0]["source_row"], odd.iloc[0]["alike"], odd.iloc[1]["alike"]) == (3, 1, 3)
    assert "rows.jsonl" in capsys.readouterr().out


def test_verl_takes_the_shards_and_the_files(names: dict[str, Any], project: Path) -> None:
    """In a process that has the real verl; its configuration takes the line for the trainer."""
    shards, batch = (
        next(b for b in blocks("python", RESULTS) if part in b) for part in ("read_shard", "to_verl")
    )
    (trainer,) = blocks("bash", RESULTS)
    overrides = [word for word in shlex.split(trainer) if word.startswith("data.")]
    code = f"""{shards}{batch}
import os
import verl
from hydra import compose, initialize_config_dir
assert type(batch) is verl.DataProto and len(batch) == 16, batch
assert batch.batch["responses"].shape == (16, 4)
config = os.path.join(os.path.dirname(verl.__file__), "trainer/config")
with initialize_config_dir(config, version_base=None):
    data = compose("ppo_trainer", overrides={overrides!r}).data
assert os.path.isfile(data.train_files), data.train_files
"""
    done = subprocess.run(
        [sys.executable, "-c", code.replace("gsm_symbolic", "my_data")],
        cwd=project,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(verl_site()), str(ROOT)])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_keys_on_the_page_of_results_are_keys() -> None:
    lines = re.findall(r"^\| `([\w.]+): (.*?)` \|", RESULTS, re.MULTILINE)
    assert len(lines) == 6
    for path, value in lines:
        block: Any = yaml.safe_load(value)
        for key in reversed(path.split(".")):
            block = {key: block}
        DataToRolloutSpec.model_validate(attributes(**block))


def test_the_page_of_keys_is_current() -> None:
    page = (ROOT / "docs/configuration.md").read_text()
    assert page == configuration_page(), "run `rl-assets configuration > docs/configuration.md`"


def test_every_key_of_a_dataset_is_on_the_page_of_keys() -> None:
    """Every default of every block, read from the models themselves."""
    page = configuration_page()

    def walk(model: Any, path: str) -> None:
        section = page.partition(f"## `{path}`\n" if path else "## Top level\n")[2].partition("\n## ")[0]
        for key, value in model:
            assert f"| `{key}` | " in section, f"{path}.{key}"
            if isinstance(value, BaseModel):
                walk(value, f"{path}.{key}".lstrip("."))

    walk(DataToRolloutSpec.model_validate(attributes(partition_by=None)), "")


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`?make ([a-z-]+)", README)) <= targets


def test_make_ui_is_the_command_that_the_server_tests_start() -> None:
    shown = subprocess.run(
        ["make", "-n", "ui", "PORT=3001"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ".venv/bin/dg dev --host 127.0.0.1 --port 3001" in shown.stdout.splitlines()


def test_ci_runs_every_part_of_make_bench_on_a_few_rows() -> None:
    assert "-m benchmarks.book $(BENCH)\n" in (ROOT / "Makefile").read_text()
    assert "make bench BENCH=--quick\n" in (ROOT / ".ci/run").read_text()


def test_a_benchmark_that_fails_is_a_line_of_the_book() -> None:
    def fails(quick: bool) -> dict[str, Figure]:
        raise RuntimeError("no memory | left")

    book = benchmark({fails: ("one", "other")}, quick=True)
    assert as_json(book)["other"] == {"failed": "RuntimeError: no memory | left"}
    assert as_markdown(book, "make bench").count("failed") == 2


def test_a_book_with_a_part_that_fails_ends_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(quick: bool) -> dict[str, Figure]:
        raise RuntimeError("no memory")

    monkeypatch.setattr("benchmarks.book.GROUPS", {fails: ("one",)})
    monkeypatch.setattr("sys.argv", ["book", "--quick"])
    with pytest.raises(SystemExit, match="failed: one"):
        main()


def test_every_check_is_explained() -> None:
    unexplained = {check.name for check in CHECKS if f"`{check.name}`" not in README}
    rules = {name for name in unexplained if name.endswith("_rules")}
    assert unexplained - rules == set()
    assert "`<theme>_rules`" in README


def test_links_to_files_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    links = [
        (page, link) for page in pages for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    ]
    assert len({page for page, _ in links}) >= 3
    assert [(page, link) for page, link in links if not (page.parent / link).exists()] == []
