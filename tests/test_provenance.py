"""An edit of the code makes those steps run again whose code it is, and no other."""

import shutil
from pathlib import Path

import pytest

import rl_assets
from rl_assets.graph import provenance
from tests.test_house import FILES, IMPORTS

PACKAGE = Path(rl_assets.__file__).parent
CHECKS = "rl_assets.graph.checks"


def modules_of_steps() -> list[str]:
    """The modules of the steps that make assets."""
    return [name for name in FILES if name.startswith("rl_assets.graph.assets.")]


def digests() -> dict[str, str]:
    """Of the code of every step and of the checks, by the last part of the module's name."""
    for function in (provenance.code_digest, provenance.imported, provenance._source):
        function.cache_clear()
    return {name.rpartition(".")[2]: provenance.code_digest(name) for name in [*modules_of_steps(), CHECKS]}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the package's sources, to be edited; the process goes on with the real ones."""
    shutil.copytree(PACKAGE, tmp_path / "rl_assets", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(provenance, "_PACKAGE", tmp_path / "rl_assets")
    return tmp_path / "rl_assets"


ALL = {name.rpartition(".")[2] for name in [*modules_of_steps(), CHECKS]}


@pytest.mark.parametrize(
    ("edited", "expected", "spared"),
    [
        ("cli/trace.py", set(), ALL),
        ("graph/automation.py", set(), ALL),
        ("graph/display.py", set(), ALL),
        ("rewards/scoring.py", {"reward_scores"}, {"field_contract", "length_filtered", "rollouts"}),
        ("contract/rules/prompts.py", {"field_contract"}, {"rollouts", "reward_scores", "reward_inputs"}),
        ("rollout/decode.py", {"rollouts"}, {"field_contract", "length_filtered", "reward_scores"}),
        ("trainset/curate.py", {"verl_dataset"}, {"field_contract", "rollouts", "reward_scores"}),
        ("graph/assets/rollouts.py", {"rollouts"}, ALL - {"rollouts"}),
        ("graph/checks/uids.py", {"checks"}, ALL - {"checks"}),
        ("dataset/dataset.py", ALL, set()),
        ("errors.py", ALL, set()),
    ],
)
def test_an_edit_changes_the_digests_of_those_that_use_the_file(
    package: Path, edited: str, expected: set[str], spared: set[str]
) -> None:
    before = digests()
    with (package / edited).open("a") as file:
        file.write("# an edit\n")
    after = digests()
    changed = {name for name in ALL if before[name] != after[name]}
    assert expected <= changed
    assert not spared & changed


def test_the_imports_that_are_found_are_those_of_the_syntax_tree() -> None:
    digests()
    ours = {name for name, file in FILES.items() if file.name != "__init__.py"}
    for module in FILES:
        assert provenance.imported(module) & ours == IMPORTS[module] & ours, module
