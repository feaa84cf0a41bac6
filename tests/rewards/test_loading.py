"""A reward file is loaded as Python loads a file, and its digest covers what it imports from beside it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rl_assets.rewards.function import RewardFunction
from rl_assets.rewards.local_modules import local_modules
from rl_assets.rewards.pool import ScorePool

TYPED = """
from __future__ import annotations
import multiprocessing, pickle, typing
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, NamedTuple

class Kind(Enum):
    RIGHT = 1

class Pair(NamedTuple):
    a: int
    b: Kind

@dataclass
class Verdict:
    limit: ClassVar[int] = 3
    score: float = 0.0
    kind: Kind = Kind.RIGHT
    notes: list[Pair] = field(default_factory=list)

def square(x):
    return x * x

def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    verdict = Verdict(score=1.0, notes=[Pair(1, Kind.RIGHT)])
    assert typing.get_type_hints(Verdict)["notes"] == list[Pair]
    assert pickle.loads(pickle.dumps(verdict)) == verdict
    assert pickle.loads(pickle.dumps(compute_score)) is compute_score
    if solution_str:
        with multiprocessing.get_context(solution_str).Pool(1) as pool:
            assert pool.map(square, [2, 3]) == [4, 9]
            assert pool.map(pickle.dumps, [verdict]) == [pickle.dumps(verdict)]
    return verdict.score
"""


def score(path: Path | str, solution: str = "1", timeout: float = 30.0) -> tuple[float | None, str | None]:
    (result,) = ScorePool(RewardFunction(str(path)), timeout, 1).score([("s", solution, '"1"', "{}")])
    return result.score, result.error


def write(folder: Path, files: dict[str, str]) -> None:
    """Modules by their paths without `.py`."""
    for name, text in files.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize("solution", ["", "fork", "spawn", "forkserver"])
@pytest.mark.parametrize("name", ["verdicts", "my-score", "v1.2", "score it"])
def test_what_it_defines_is_typed_pickled_and_used_in_pools(tmp_path: Path, name: str, solution: str) -> None:
    path = tmp_path / f"{name}.py"
    path.write_text(TYPED)
    if "." in name and solution in ("spawn", "forkserver"):
        pytest.skip("no other process can import a name with a dot")
    assert score(path, solution) == (1.0, None)


@pytest.mark.parametrize("name", ["json", "math", "numpy", "math_verify", "pickle", "errors", "types"])
def test_its_name_may_be_that_of_another_module(tmp_path: Path, name: str) -> None:
    code = f"import {name}\nassert not hasattr({name}, 'compute_score')\n" if name != "errors" else ""
    (tmp_path / f"{name}.py").write_text(TYPED + code)
    assert score(tmp_path / f"{name}.py", "fork") == (1.0, None)


HELPED = {
    "plain": ({"score": "from mine import same", "mine": "def same(): return 1.0"}, "mine"),
    "in a function": ({"score": "def same():\n import mine\n return mine.x", "mine": "x = 1.0"}, "mine"),
    "chain": ({"score": "from a import same", "a": "from b import same", "b": "same = lambda: 1.0"}, "b"),
    "package": ({"score": "from p.q import same", "p/__init__": "", "p/q": "same = lambda: 1.0"}, "p/q"),
    "package's init": ({"score": "from p import same", "p/__init__": "same = lambda: 1.0"}, "p/__init__"),
    "module of a package": (
        {"score": "from p import q\nsame = q.same", "p/__init__": "", "p/q": "same = lambda: 1.0"},
        "p/q",
    ),
    "without an init": ({"score": "import p.q\nsame = p.q.same", "p/q": "same = lambda: 1.0"}, "p/q"),
    "relative inside": (
        {"score": "from p import same", "p/__init__": "from .q import same", "p/q": "same = lambda: 1.0"},
        "p/q",
    ),
    "by importlib": (
        {
            "score": "import importlib\nsame = importlib.import_module('mine').same",
            "mine": "same = lambda: 1.0",
        },
        "mine",
    ),
    "circle": (
        {"score": "import a\nsame = lambda: a.x", "a": "import b\nx = 1.0", "b": "import a"},
        "b",
    ),
}
CALL = "\ndef compute_score(**_): return same()\n"


@pytest.mark.parametrize("case", HELPED)
def test_helpers_beside_it_are_found_and_count(tmp_path: Path, case: str) -> None:
    files, helper = HELPED[case]
    write(tmp_path, {**files, "score": files["score"] + CALL, "unrelated": "x = 1"})
    path = tmp_path / "score.py"
    assert score(path) == (1.0, None)
    before = RewardFunction(str(path)).digest
    write(tmp_path, {"unrelated": "x = 2"})
    assert RewardFunction(str(path)).digest == before
    write(tmp_path, {helper: files[helper] + "\n# another answer"})
    assert RewardFunction(str(path)).digest != before


def test_relative_imports_of_a_file_in_a_package_are_found_and_count(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "acme/__init__": "",
            "acme/rewards/__init__": "from ..shared import one",
            "acme/rewards/score": "from . import one\nfrom .helper import same" + CALL,
            "acme/rewards/helper": "from ..shared import one\nsame = lambda: one",
            "acme/shared": "one = 1.0",
        },
    )
    path = tmp_path / "acme/rewards/score.py"
    assert score(path) == (1.0, None)
    files = RewardFunction(str(path)).files
    assert next(iter(files)) == "acme.rewards.score"
    assert set(files) == {"acme.rewards.score", "acme.rewards", "acme.rewards.helper", "acme", "acme.shared"}


def test_a_module_counts_with_its_package_and_nothing_that_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        tmp_path,
        {
            "acme/__init__": "",
            "acme/score": "import json, numpy, pytest\nfrom .helper import same\nimport beside" + CALL,
            "acme/helper": "same = lambda: 1.0",
            "beside": "",
        },
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert score("pkg://acme.score") == (1.0, None)
    assert set(RewardFunction("pkg://acme.score").files) == {"acme", "acme.score", "acme.helper", "beside"}
    assert set(RewardFunction("pkg://pytest").files) <= {"pytest", "pytest.__main__"}


def test_finding_what_it_imports_runs_nothing(tmp_path: Path) -> None:
    modules = {"score": "import mine\nraise SystemExit(3)", "mine": "import odd\nraise SystemExit(4)"}
    write(tmp_path, {**modules, "odd": "def ("})
    assert set(local_modules(tmp_path / "score.py", "score", [str(tmp_path)])) == {"score", "mine", "odd"}


def test_a_file_that_ends_the_program_is_refused_by_its_error(tmp_path: Path) -> None:
    (tmp_path / "score.py").write_text("import sys\nsys.exit('no key')")
    with pytest.raises(ValueError, match="SystemExit: no key"):
        score(tmp_path / "score.py")


def test_a_scoring_process_loads_little() -> None:
    code = "import json, sys, rl_assets.rewards.worker; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {
        "pyarrow",
        "pydantic",
        "numpy",
        "dagster",
        "torch",
        "rl_assets.base.tables",
        "rl_assets.contract",
    }
    assert heavy.isdisjoint(json.loads(done.stdout))
