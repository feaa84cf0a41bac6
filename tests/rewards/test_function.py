"""Reward functions: where they are found, how they are called, what becomes of their results."""

import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_assets.errors import InputError
from rl_assets.rewards import builtin
from rl_assets.rewards.function import RewardFunction
from rl_assets.rewards.outcome import call, normalise


def write(folder: Path, code: str) -> str:
    path = folder / "reward.py"
    path.write_text(code)
    return str(path)


def test_without_a_path_it_is_the_built_in_one() -> None:
    assert RewardFunction().load() is builtin.compute_score


def test_a_file_or_a_module_is_loaded(tmp_path: Path) -> None:
    path = write(tmp_path, "def mine(**_): return 3")
    assert RewardFunction(path, "mine").load()() == 3
    assert RewardFunction(f"file://{path}", "mine").load()() == 3
    assert RewardFunction("pkg://rl_assets.rewards.builtin").load() is builtin.compute_score
    assert RewardFunction("pkg://rl_assets/rewards/builtin").load() is builtin.compute_score


@pytest.mark.parametrize(
    ("path", "name", "message"),
    [
        ("nowhere.py", "compute_score", "found no such file, expected the Python file"),
        ("pkg://no_such_module", "compute_score", "No module named 'no_such_module'"),
        ("pkg://json", "compute_score", "no function 'compute_score'"),
        ("README.md", "compute_score", "the name of a Python file ends in .py"),
    ],
)
def test_what_cannot_be_loaded_is_refused_with_its_path(path: str, name: str, message: str) -> None:
    with pytest.raises(InputError, match=r"reward\.custom_reward_function") as refusal:
        RewardFunction(path, name).load()
    assert message in str(refusal.value)
    assert refusal.value.file == path


def test_code_that_fails_is_refused_with_its_error(tmp_path: Path) -> None:
    path = write(tmp_path, "import no_such_module")
    with pytest.raises(InputError, match="No module named 'no_such_module'"):
        RewardFunction(path).load()


def test_a_missing_name_is_refused_with_those_that_are_there(tmp_path: Path) -> None:
    path = write(tmp_path, "from json import loads\ndef score(**_): return 0\ndef grade(**_): return 0")
    with pytest.raises(InputError, match=r"no function 'compute_score'.* there are: score, grade"):
        RewardFunction(path).load()


@pytest.mark.parametrize(
    ("signature", "kwargs"),
    [
        ("data_source, solution_str, ground_truth, extra_info=None", {}),
        ("solution_str, ground_truth, **_", {"rubric": "x"}),
        ("**_", {}),
        ("data_source, solution_str, ground_truth, extra_info, rubric", {"rubric": "x"}),
    ],
)
def test_what_takes_its_arguments_by_name_is_loaded(
    tmp_path: Path, signature: str, kwargs: dict[str, Any]
) -> None:
    path = write(tmp_path, f"def compute_score({signature}): return 0")
    assert RewardFunction(path, kwargs=kwargs).load().__name__ == "compute_score"


@pytest.mark.parametrize(
    ("signature", "kwargs", "why"),
    [
        ("solution_str, ground_truth", {}, "unexpected keyword argument 'data_source'"),
        ("data_source, solution_str, ground_truth, extra_info, rubric", {}, "missing a required argument"),
        ("data_source, solution_str, ground_truth, extra_info", {"rubric": "x"}, "argument 'rubric'"),
        ("data_source, solution_str, ground_truth, extra_info, /", {}, "positional"),
    ],
)
def test_what_takes_other_arguments_is_refused(
    tmp_path: Path, signature: str, kwargs: dict[str, Any], why: str
) -> None:
    path = write(tmp_path, f"def compute_score({signature}): return 0")
    with pytest.raises(InputError, match=r"field `reward\.custom_reward_function\.name`") as refusal:
        RewardFunction(path, kwargs=kwargs).load()
    assert f"the function compute_score({signature})" in str(refusal.value)
    assert why in str(refusal.value)
    assert "expected a function (data_source, solution_str, ground_truth, extra_info)" in str(refusal.value)


def test_its_digest_follows_its_code_name_and_arguments(tmp_path: Path) -> None:
    path = write(tmp_path, "def f(**_): return 0")
    first = RewardFunction(path, "f")
    digests = {first.digest, RewardFunction(path, "g").digest, RewardFunction(path, "f", {"a": 1}).digest}
    write(tmp_path, "def f(**_): return 1")
    assert len(digests | {first.digest}) == 4


def test_it_is_called_with_verls_arguments_and_the_configured_ones_win() -> None:
    seen: dict[str, Any] = {}

    def function(**arguments: Any) -> int:
        seen.update(arguments)
        return 1

    result = call(function, {"extra_info": "configured", "more": 2}, "source", "text", "72", {"index": 0})
    assert result.score == 1.0
    assert seen == {
        "data_source": "source",
        "solution_str": "text",
        "ground_truth": "72",
        "extra_info": "configured",
        "more": 2,
    }


def test_a_coroutine_function_is_awaited() -> None:
    async def function(**_: Any) -> float:
        return 0.5

    assert call(function, {}, "s", "t", "g", {}).score == 0.5


def test_an_exception_is_the_rows_error() -> None:
    def function(**_: Any) -> float:
        raise KeyError("ground_truth")

    result = call(function, {}, "s", "t", "g", {})
    assert (result.score, result.error) == (None, "KeyError: 'ground_truth'")


@pytest.mark.parametrize(
    ("result", "score"),
    [
        (1, 1.0),
        (True, 1.0),
        (0.25, 0.25),
        (np.float32(0.5), 0.5),
        (np.int64(2), 2.0),
        (torch.tensor(0.5), 0.5),
        ((1.0, "why"), 1.0),
        ([True, False, "x"], 1.0),
        (np.array([0.5, 1.0]), 0.5),
        ({"score": -1}, -1.0),
        ({"score": np.float64(0.5)}, 0.5),
        ({"score": torch.tensor(2.0)}, 2.0),
    ],
)
def test_a_result_becomes_a_number_as_in_verl(result: Any, score: float) -> None:
    assert normalise(result).score == score
    assert normalise(result).error is None


@pytest.mark.parametrize(
    "result",
    [
        None,
        "1.0",
        [],
        {},
        {"acc": 1},
        {"score": None},
        {"score": "1"},
        math.nan,
        math.inf,
        {"score": math.nan},
        object(),
    ],
    ids=lambda result: type(result).__name__ if type(result) is object else repr(result),
)
def test_what_holds_no_finite_number_is_an_error(result: Any) -> None:
    scored = normalise(result)
    assert scored.score is None
    assert scored.error is not None
    assert scored.error.startswith("no score")


def test_the_rest_of_a_dict_is_kept_as_json_has_it() -> None:
    extra = normalise(
        {
            "score": 1,
            "acc": np.bool_(True),
            "n": np.int64(3),
            "d": Decimal("1.5"),
            "l": [1, "a"],
            "big": 2**70,
            "s": "\ud800",
        }
    ).extra
    assert extra == {"acc": True, "n": 3, "d": "1.5", "l": [1, "a"], "big": str(2**70), "s": "?"}
    assert json.loads(json.dumps(extra)) == extra
