"""A small Dagster project of its own in a folder, for the commands that a user types."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.build import POLICY, problem, write_jsonl

BIN = Path(sys.executable).parent

PYPROJECT = """
[tool.dg]
directory_type = "project"
[tool.dg.cli]
suppress_warnings = ["project_and_activated_venv_mismatch"]
[tool.dg.project]
root_module = "{package}"
code_location_name = "{package}"
registry_modules = {registry}
"""

DEFINITIONS = """
from pathlib import Path
import dagster as dg
from rl_assets.graph.executor import step_executor
from rl_assets.graph.loading import load_project

@dg.definitions
def defs():
    return dg.Definitions.merge(load_project(Path(__file__).parent), dg.Definitions(executor=step_executor()))
"""


def attributes(**changes: Any) -> dict[str, Any]:
    """Attributes of a dataset `toy`; `changes` replace whole blocks."""
    return {
        "dataset": "toy",
        "data": {
            "train_files": "data/toy/train.jsonl",
            "max_prompt_length": 96,
            "max_response_length": 4,
        },
        "policy": {"path": str(POLICY)},
        **changes,
    }


def make_project(folder: Path, *, rows: int = 2, **changes: Any) -> Path:
    """Write a project with one dataset `toy` of `rows` rows into `folder`."""
    write_frame(folder, folder / "toy_project", DEFINITIONS, ["rl_assets"])
    write_jsonl(folder / "data/toy/train.jsonl", [problem(number) for number in range(rows)])
    write_defs(folder, attributes(**changes))
    return folder


def write_frame(folder: Path, package: Path, definitions: str, registry: list[str]) -> None:
    """Write a project without datasets: its package, what `dg` reads of it, and a home for Dagster."""
    (package / "defs").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "defs/__init__.py").touch()
    (package / "definitions.py").write_text(definitions)
    (folder / "pyproject.toml").write_text(PYPROJECT.format(package=package.name, registry=registry))
    (folder / "home").mkdir()
    (folder / "home/dagster.yaml").write_text("telemetry: {enabled: false}\n")


def write_defs(folder: Path, attributes: dict[str, Any]) -> Path:
    """Write the defs.yaml of the dataset and return its path."""
    path = folder / f"toy_project/defs/{attributes['dataset']}/defs.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        yaml.safe_dump({"type": "rl_assets.DataToRollout", "attributes": attributes}, sort_keys=False)
    )
    return path


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the environment (`dg`, `dagster`) in a project folder."""
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(folder / "home"),
        "PYTHONPATH": os.pathsep.join(map(str, (folder, folder / "src", Path(__file__).parent.parent))),
        "COLUMNS": "200",
    }
    return subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
