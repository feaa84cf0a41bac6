"""Scoring in worker processes: every response has a score or a reason, whatever the function does."""

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rl_assets.base.tables import Table
from rl_assets.errors import InputError
from rl_assets.rewards.function import RewardFunction
from rl_assets.rewards.pool import ScorePool
from rl_assets.rewards.scoring import SCORE_SCHEMA, score_table
from tests.rewards.builders import input_table, reward_input

WILD = """
import os, time

def compute_score(data_source, solution_str, ground_truth, extra_info, bonus=0.0):
    if solution_str == "hang":
        while True:
            time.sleep(0.01)
    if solution_str == "hang in C":
        return 9**9**9 % 7
    if solution_str == "die":
        os._exit(3)
    if solution_str == "raise":
        raise ValueError("no such answer")
    if solution_str == "mutate":
        extra_info["index"] = "spoilt"
        ground_truth["a"].append(1)
    if solution_str == "say":
        return {"score": 1, "ground": ground_truth, "info": extra_info}
    return float(len(solution_str)) + bonus
"""


def wild(folder: Path, **options: Any) -> ScorePool:
    path = folder / "wild.py"
    path.write_text(WILD)
    kwargs = options.pop("kwargs", {})
    return ScorePool(RewardFunction(str(path), kwargs=kwargs), **{"timeout": 1.0, "workers": 2, **options})


def scored(folder: Path, pool: ScorePool, *solutions: str, **changes: Any) -> Table:
    inputs = input_table(folder, [reward_input(0, i, text, **changes) for i, text in enumerate(solutions)])
    return score_table(inputs, pool, folder=folder, log=lambda _: None)


def test_every_response_is_scored_in_the_order_of_the_inputs(tmp_path: Path) -> None:
    solutions = [f"#### {number % 3}" for number in range(300)]
    table = scored(tmp_path, ScorePool(RewardFunction(), workers=2), *solutions, ground_truth="2")
    rows = table.read().to_pylist()
    assert [row["solution_str"] for row in rows] == solutions
    assert [row["score"] for row in rows] == [float(number % 3 == 2) for number in range(300)]
    assert [row["pred"] for row in rows] == [str(number % 3) for number in range(300)]
    assert table.schema.names == [*SCORE_SCHEMA.names, "acc", "lenient_acc", "pred"]
    assert table.schema.field("acc").type == pa.bool_()


def test_a_hanging_dying_or_raising_function_costs_one_sample(tmp_path: Path) -> None:
    start = time.monotonic()
    table = scored(tmp_path, wild(tmp_path), "a", "hang", "bb", "hang in C", "die", "raise", "ccc")
    rows = table.read().to_pylist()
    assert [row["score"] for row in rows] == [1.0, None, 2.0, None, None, None, 3.0]
    assert [row["error"] for row in rows] == [
        None,
        "timeout: no score within 1 s",
        None,
        "timeout: no score within 1 s",
        "died: the scoring process ended with exit code 3",
        "ValueError: no such answer",
        None,
    ]
    assert time.monotonic() - start < 20


def test_each_call_has_values_of_its_own(tmp_path: Path) -> None:
    truth = {"a": [1, 2.0, "3", None]}
    table = scored(tmp_path, wild(tmp_path, workers=1), "mutate", "mutate", "say", ground_truth=truth)
    said = table.read().to_pylist()[2]
    assert said["ground"] == '{"a": [1, 2.0, "3", null]}'
    assert said["info"] == '{"index": 0}'


def test_configured_arguments_reach_the_function(tmp_path: Path) -> None:
    table = scored(tmp_path, wild(tmp_path, kwargs={"bonus": 10.0}), "a")
    assert table.read(["score"]).column(0).to_pylist() == [11.0]


def test_keys_of_dict_results_become_columns_of_one_type_each(tmp_path: Path) -> None:
    path = tmp_path / "keys.py"
    path.write_text(
        "RESULTS = {'a': {'score': 1, 'whole': 1, 'real': 1, 'flag': True, 'mixed': 'x', 'uid': 'mine'},"
        " 'b': {'score': 2, 'whole': 2, 'real': 0.5, 'mixed': 3}, 'c': 3}\n"
        "def compute_score(solution_str, **_): return RESULTS[solution_str]\n"
    )
    table = scored(tmp_path, ScorePool(RewardFunction(str(path)), workers=1), "a", "b", "c")
    extra = {name: table.read([name]).column(0) for name in table.schema.names[len(SCORE_SCHEMA.names) :]}
    assert {name: (str(column.type), column.to_pylist()) for name, column in extra.items()} == {
        "flag": ("bool", [True, None, None]),
        "mixed": ("string", ['"x"', "3", None]),
        "real": ("double", [1.0, 0.5, None]),
        "user_uid": ("string", ["mine", None, None]),
        "whole": ("int64", [1, 2, None]),
    }


def test_a_source_without_a_scorer_is_an_error_of_its_rows(tmp_path: Path) -> None:
    table = scored(tmp_path, ScorePool(RewardFunction(), workers=1), "print(1)", data_source="apps")
    (row,) = table.read().to_pylist()
    assert row["score"] is None
    assert row["error"].startswith(
        "NotImplementedError: Reward function is not implemented for data_source='apps'"
    )


def test_a_function_that_cannot_be_loaded_stops_the_step(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("1 / 0")
    with pytest.raises(InputError, match="ZeroDivisionError"):
        scored(tmp_path, ScorePool(RewardFunction(str(path)), workers=1), "a")


def test_no_responses_give_an_empty_table(tmp_path: Path) -> None:
    table = scored(tmp_path, ScorePool(RewardFunction(), workers=1))
    assert table.num_rows == 0
    assert table.schema.names == SCORE_SCHEMA.names


def test_keys_that_are_columns_already_get_names_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "keys.py"
    path.write_text(
        "KEYS = 'error', 'user_error', 'user_user_error', 'uid', 'score ', '\\ud800', '', 'x' * 101\n"
        "def compute_score(**_):\n"
        "    keys = {key: key[:9] for key in (*KEYS, 'further_keys')}\n"
        "    return {'score': 1, **keys, 1: 'one', '1': 'two', None: 0}\n"
    )
    table = scored(tmp_path, ScorePool(RewardFunction(str(path)), workers=1), "a")
    (row,) = table.read(table.schema.names[len(SCORE_SCHEMA.names) :]).to_pylist()
    assert row == {
        "1": "one",
        "1'": "two",
        "None": 0,
        "\\ud800": "?",
        "user_user_user_error": "error",
        "user_error": "user_erro",
        "user_user_error": "user_user",
        "user_uid": "uid",
        "score ": "score ",
        "user_further_keys": "further_k",
        "further_keys": f'{{"": "", "{"x" * 101}": "xxxxxxxxx"}}',
    }


def test_thousands_of_keys_are_kept_in_one_column(tmp_path: Path) -> None:
    path = tmp_path / "keys.py"
    path.write_text(
        "def compute_score(solution_str, **_):\n"
        "    return {'score': 1, 'acc': 1.0, **{f'{solution_str}{n}': n for n in range(2000)}}\n"
    )
    lines: list[str] = []
    inputs = input_table(tmp_path, [reward_input(0, i, f"r{i}_") for i in range(50)])
    pool = ScorePool(RewardFunction(str(path)), workers=1)
    table = score_table(inputs, pool, folder=tmp_path, log=lines.append)
    assert len(table.schema.names) == len(SCORE_SCHEMA.names) + 64 + 1
    rows = table.read().to_pylist()
    assert [row["acc"] for row in rows] == [1.0] * 50
    for number, row in enumerate(rows):
        own = {key: value for key, value in row.items() if key.startswith("r") and value is not None}
        own = {key: value for key, value in own.items() if key[1].isdigit()}
        assert own | json.loads(row["further_keys"]) == {f"r{number}_{n}": n for n in range(2000)}
    assert "scores: results have more keys than 64 columns; the others are in `further_keys`" in lines


def test_values_come_back_whole(tmp_path: Path) -> None:
    path = tmp_path / "values.py"
    path.write_text(
        "import enum, numpy, torch\n"
        "class Big(int): pass\n"
        "class Kind(enum.IntEnum):\n    A = 2\n"
        "def compute_score(solution_str, ground_truth, **_):\n"
        "    assert ground_truth == [[1, 2], [3.5, None]] and type(ground_truth[0]) is list\n"
        "    a = numpy.arange(2000)\n"
        "    return {'score': numpy.float32(0.5), 'array': a, 'two': a.reshape(2, -1)[:, :2],\n"
        "            'np': numpy.int64(7), 'tensor': torch.tensor([[1.5]]), 'scalar': torch.tensor(3),\n"
        "            'big': Big(2**62), 'enum': Kind.A, 'huge': Big(2**70), 's': {3},\n"
        "            'nested': {'a': numpy.bool_(True), 'b': (a[:2],), 'c': 2**70},\n"
        "            'mixed': 2**60 + 1 if solution_str else 0.5}\n"
    )
    truth = [[1, 2], [3.5, None]]
    table = scored(tmp_path, ScorePool(RewardFunction(str(path)), 60, 1), "a", "", ground_truth=truth)
    row, other = table.read().to_pylist()
    assert row["error"] is None
    assert row["score"] == 0.5
    assert json.loads(row["array"]) == list(range(2000))
    assert json.loads(row["two"]) == [[0, 1], [1000, 1001]]
    assert json.loads(row["nested"]) == {"a": True, "b": [[0, 1]], "c": 2**70}
    assert json.loads(row["tensor"]) == [[1.5]]
    assert [row[key] for key in ("np", "scalar", "big", "enum", "huge")] == [7, 3, 2**62, 2, str(2**70)]
    assert json.loads(row["s"]) == [3]
    assert [json.loads(one["mixed"]) for one in (row, other)] == [2**60 + 1, 0.5]


def test_what_is_too_large_is_named_and_the_score_stays(tmp_path: Path) -> None:
    path = tmp_path / "large.py"
    path.write_text("def compute_score(solution_str, **_): return {'score': 1, 'why': 'x' * 10**7}\n")
    table = scored(tmp_path, ScorePool(RewardFunction(str(path)), workers=1), "a")
    (row,) = table.read().to_pylist()
    assert (row["score"], row["too_large"]) == (1.0, "1 keys, 10,000,011 characters")
