"""Difficulty: rates, their intervals, and what becomes of responses without a score."""

from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_assets.base.tables import Table, TableWriter
from rl_assets.rewards.difficulty import (
    SourceDifficulty,
    difficulty_by_source,
    difficulty_schema,
    measure_difficulty,
    pass_at_k,
    pass_counts,
    wilson_interval,
)
from rl_assets.rewards.scoring import SCORE_SCHEMA
from tests.rewards.builders import reward_input, score_table, uid


def measured(folder: Path, scores: Table, most: int = 4) -> list[dict[str, Any]]:
    table = measure_difficulty(scores, policy="f00d", pass_score=0.5, most=most, folder=folder)
    assert table.schema.equals(difficulty_schema(most))
    return table.read().to_pylist()


def test_a_prompt_is_as_hard_as_its_responses_say(tmp_path: Path) -> None:
    (row,) = measured(tmp_path, score_table(tmp_path, {3: [1.0, 0.0, 0.0, 1.0]}))
    assert row == {
        "uid": uid(3),
        "policy": "f00d",
        "split": "train",
        "data_source": "openai/gsm8k",
        "n": 4,
        "scored": 4,
        "passed": 2,
        "pass_rate": 0.5,
        "pass_rate_low": pytest.approx(0.1500, abs=1e-4),
        "pass_rate_high": pytest.approx(0.8500, abs=1e-4),
        "pass_at_2": pytest.approx(5 / 6),
        "pass_at_4": 1.0,
        "score_mean": 0.5,
        "score_std": pytest.approx(0.57735, abs=1e-5),
        "score_min": 0.0,
        "score_max": 1.0,
        "truncated_share": 0.0,
        "distinct_answers": 1,
        "mean_response_length": 5.0,
        "source_file": "data/toy/train.jsonl",
        "source_row": 3,
    }


def test_a_response_without_a_score_counts_as_a_response_and_not_as_a_failure(tmp_path: Path) -> None:
    half, none = measured(tmp_path, score_table(tmp_path, {0: [1.0, None], 1: [None, None]}))
    assert (half["n"], half["scored"], half["pass_rate"], half["score_std"]) == (2, 1, 1.0, None)
    assert half["pass_at_2"] is None
    assert (none["n"], none["scored"], none["passed"]) == (2, 0, 0)
    assert {none[name] for name in ("pass_rate", "pass_rate_low", "pass_at_2", "score_mean")} == {None}


@pytest.mark.parametrize(("score", "passed"), [(1.0, 1), (0.9, 1), (0.5, 1), (0.25, 0), (0.1, 0), (-1.0, 0)])
def test_a_score_passes_from_the_threshold_on(tmp_path: Path, score: float, passed: int) -> None:
    (row,) = measured(tmp_path, score_table(tmp_path, {0: [score]}))
    assert row["passed"] == passed


def test_distinct_answers_are_those_that_the_scorer_found(tmp_path: Path) -> None:
    with TableWriter(tmp_path / "s.parquet", SCORE_SCHEMA.append(pa.field("pred", pa.string()))) as writer:
        writer.write_rows(
            {**reward_input(0, sample, f"text {sample}"), "score": 0.0, "pred": pred}
            for sample, pred in enumerate(["72", "72", None, "7"])
        )
    assert measured(tmp_path, writer.table)[0]["distinct_answers"] == 2


def test_without_such_answers_the_responses_are_counted(tmp_path: Path) -> None:
    with TableWriter(tmp_path / "s.parquet", SCORE_SCHEMA) as writer:
        writer.write_rows(
            {**reward_input(0, sample, text), "score": 0.0} for sample, text in enumerate(["a", "b", "a"])
        )
    assert measured(tmp_path, writer.table)[0]["distinct_answers"] == 2


def test_cut_off_responses_are_a_share(tmp_path: Path) -> None:
    with TableWriter(tmp_path / "s.parquet", SCORE_SCHEMA) as writer:
        writer.write_rows(
            {**reward_input(0, sample, finish_reason=reason, response_length=sample), "score": 0.0}
            for sample, reason in enumerate(["length", "stop", "length", "stop"])
        )
    (row,) = measured(tmp_path, writer.table)
    assert (row["truncated_share"], row["mean_response_length"]) == (0.5, 1.5)


def test_a_source_is_all_failed_mixed_or_all_solved_by_prompts(tmp_path: Path) -> None:
    scores = score_table(
        tmp_path, {0: [0.0, 0.0], 1: [1.0, 0.0], 2: [1.0, 1.0], 3: [1.0, 1.0], 4: [None, None]}
    )
    table = measure_difficulty(scores, policy="p", pass_score=0.5, most=2, folder=tmp_path)
    assert difficulty_by_source(table) == [SourceDifficulty("train", "openai/gsm8k", 4, 1, 1, 2, 0.625)]


def test_pass_at_k_is_given_for_powers_of_two() -> None:
    assert [pass_counts(n) for n in (1, 2, 3, 4, 9)] == [[], [2], [2], [2, 4], [2, 4, 8]]


@given(st.integers(1, 8), st.data())
def test_pass_at_k_is_the_chance_that_k_of_the_responses_hold_a_right_one(
    n: int, data: st.DataObject
) -> None:
    passed, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    draws = list(combinations([True] * passed + [False] * (n - passed), k))
    assert pass_at_k(n, passed, k) == pytest.approx(sum(map(any, draws)) / len(draws))


@given(st.integers(1, 10_000), st.data())
def test_the_interval_holds_the_rate(n: int, data: st.DataObject) -> None:
    passed = data.draw(st.integers(0, n))
    low, high = wilson_interval(passed, n)
    assert 0 <= low <= passed / n <= high <= 1
    assert high - low < 2 / n**0.5


def test_the_interval_is_that_of_the_textbook() -> None:
    assert wilson_interval(0, 10) == pytest.approx((0.0, 0.27753), abs=1e-5)
    assert wilson_interval(9, 10) == pytest.approx((0.59585, 0.98212), abs=1e-5)
