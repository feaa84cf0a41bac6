"""The README's own words, run: the dataset that it makes, the commands that it names, what it explains."""

import json
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.book import GROUPS, Figure, as_json, as_markdown
from benchmarks.book import run as benchmark
from rl_assets.checks import CHECKS
from tests.build import POLICY
from tests.project import make_project, run, write_defs

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    """The README's code blocks of a language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> list[str]:
    """Every command of the README's shell blocks, without its comment."""
    lines = (line.split("#")[0].strip() for block in blocks("bash") for line in block.splitlines())
    return [line for line in lines if line]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the dataset of the README's five minutes: its YAML and its row."""
    folder = make_project(tmp_path_factory.mktemp("readme"))
    attributes = yaml.safe_load(blocks("yaml")[0])["attributes"]
    attributes["policy"]["path"] = str(POLICY)
    attributes["data"]["max_response_length"] = 4
    write_defs(folder, attributes)
    (folder / "data/my_data").mkdir()
    (folder / "data/my_data/rows.jsonl").write_text(blocks("json")[0])
    return folder


def test_the_commands_for_a_new_dataset_work_as_they_stand(project: Path) -> None:
    named = [command for command in commands() if command.startswith(".venv/bin/")]
    assert len(named) >= 4
    for command in named:
        words = shlex.split(command.replace("rl_assets/defs", "toy_project/defs"))
        done = run(project, Path(words[0]).name, *words[1:])
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}"


def test_the_python_snippet_reads_what_the_graph_stored(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (snippet,) = blocks("python")
    monkeypatch.chdir(project)
    names: dict[str, Any] = {}
    exec(snippet.replace("gsm_symbolic", "my_data"), names)
    assert set(names["rows"]["ground_truth"]) == {"4"}


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`?make ([a-z-]+)", README)) <= targets


def test_make_ui_is_the_command_that_the_server_tests_start() -> None:
    shown = subprocess.run(
        ["make", "-n", "ui", "PORT=3001"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ".venv/bin/dg dev --host 127.0.0.1 --port 3001" in shown.stdout.splitlines()


def test_the_benchmark_book_of_make_bench_runs(tmp_path: Path) -> None:
    """On a few rows, for its figures are not the point here."""
    assert "-m benchmarks.book\n" in (ROOT / "Makefile").read_text()
    command = [sys.executable, "-m", "benchmarks.book", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    book = json.loads((tmp_path / "results.json").read_text())
    assert {name: figure["failed"] for name, figure in book.items() if "failed" in figure} == {}, done.stderr[
        -3000:
    ]
    names = [name for group in GROUPS.values() for name in group]
    assert list(book) == names
    assert all(set(figure) == {*Figure._fields} for figure in book.values())
    assert all(figure["ratio"] > 0 for figure in book.values())
    page = (tmp_path / "RESULTS.md").read_text()
    assert all(f"| `{name}` | " in page for name in names)
    assert platform.node() not in page


def test_a_benchmark_that_fails_is_a_line_of_the_book() -> None:
    def fails(quick: bool) -> dict[str, Figure]:
        raise RuntimeError("no memory | left")

    book = benchmark({fails: ("one", "other")}, quick=True)
    assert as_json(book)["other"] == {"failed": "RuntimeError: no memory | left"}
    assert as_markdown(book, "make bench").count("failed") == 2


def test_every_check_is_explained() -> None:
    unexplained = {check.name for check in CHECKS if f"`{check.name}`" not in README}
    rules = {name for name in unexplained if name.endswith("_rules")}
    assert unexplained - rules == set()
    assert "`<theme>_rules`" in README


def test_links_to_files_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
