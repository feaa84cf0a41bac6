"""The map of the package: its rooms, in the order in which a row walks through them."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = (
    "errors",
    "spec",
    "base",
    "policy",
    "media",
    "contract",
    "prompts",
    "protocol",
    "rollout",
    "rewards",
    "trainset",
    "dataset",
    "graph",
    "cli",
    "definitions",
)
"""A room uses those before it, and never one after it."""
WITH_DAGSTER = ("graph", "cli", "definitions")

FILES = {
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
    for file in sorted((ROOT / "rl_assets").rglob("*.py"))
    if "defs" not in file.relative_to(ROOT).parts
}


def imports(file: Path) -> Iterator[str]:
    """The modules that a file imports, at its top or later; not those that only a type checker reads."""
    tree = ast.parse(file.read_text())
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in FILES else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


IMPORTS = {module: set(imports(file)) for module, file in FILES.items()}


def room(module: str) -> str:
    return module.split(".")[1]


def test_every_module_is_in_a_room() -> None:
    assert {room(module) for module in FILES if module != "rl_assets"} == set(ROOMS)


@pytest.mark.parametrize("module", [module for module in FILES if module != "rl_assets"])
def test_a_room_uses_only_those_before_it(module: str) -> None:
    used = {room(name) for name in IMPORTS[module] if name.startswith("rl_assets.")}
    assert used <= set(ROOMS[: ROOMS.index(room(module)) + 1])


def test_no_import_goes_in_a_circle_the_late_ones_included() -> None:
    ours = {module: used & FILES.keys() - {module, "rl_assets"} for module, used in IMPORTS.items()}
    try:
        TopologicalSorter(ours).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_inner_rooms_import_no_dagster() -> None:
    inner = [module for module in FILES if module != "rl_assets" and room(module) not in WITH_DAGSTER]
    code = f"""
import importlib, sys
for name in {inner}:
    importlib.import_module(name)
print(sorted(name for name in sys.modules if name.split(".")[0] == "dagster"))
"""
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert loaded.stdout.strip() == "[]"
