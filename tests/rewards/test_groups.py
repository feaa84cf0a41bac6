"""Groups of responses: what makes one whole, and the advantages that come of it."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_assets.errors import InputError
from rl_assets.rewards.function import RewardFunction
from rl_assets.rewards.groups import (
    SourceSummary,
    group_faults,
    groups,
    grpo_advantages,
    near_misses,
    preview_advantages,
    summarise,
)
from rl_assets.rewards.pool import ScorePool
from rl_assets.rewards.scoring import score_table as score_responses
from tests.rewards.builders import input_table, reward_input, score_table, uid


def test_rows_of_a_uid_that_lie_apart_are_refused(tmp_path: Path) -> None:
    table = input_table(tmp_path, [reward_input(prompt) for prompt in (0, 1, 0)])
    with pytest.raises(InputError, match=f"responses to {uid(0)} in more than one place"):
        list(groups(table, []))


def test_a_whole_group_has_no_fault() -> None:
    assert list(group_faults([reward_input(0, sample) for sample in (2, 0, 1)], 3)) == []


@pytest.mark.parametrize("samples", [[0], [0, 0], [1, 2], [0, 1, 2]])
def test_a_group_has_the_samples_from_zero_to_n(samples: list[int]) -> None:
    (fault,) = group_faults([reward_input(0, sample) for sample in samples], 2)
    assert fault == f"the sample indices are {samples}, expected 0 … 1 once each"


@pytest.mark.parametrize(
    "change",
    [
        {"ground_truth": 72},
        {"extra_info": {"index": 0.0}},
        {"data_source": "math"},
        {"split": "val"},
        {"source_file": "other.jsonl"},
        {"source_row": 9},
    ],
    ids=str,
)
def test_a_group_agrees_on_its_reward_fields(change: dict[str, Any]) -> None:
    (fault,) = group_faults([reward_input(0, 0), reward_input(0, 1, **change)], 2)
    assert fault.startswith(f"`{next(iter(change))}` differs within the group")


def test_advantages_are_those_of_grpo() -> None:
    assert grpo_advantages([1.0, 0.0, 0.0, 0.0]) == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)
    assert grpo_advantages([1.0, 1.0]) == [0.0, 0.0]
    assert grpo_advantages([0.7]) == pytest.approx([0.7], abs=1e-5)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=16))
def test_advantages_of_a_group_sum_to_nothing(scores: list[float]) -> None:
    advantages = grpo_advantages(scores)
    assert math.isclose(sum(advantages), 0, abs_tol=1e-6)
    assert all(math.isfinite(advantage) for advantage in advantages)


def test_the_preview_shows_whole_groups_only(tmp_path: Path) -> None:
    table = score_table(tmp_path, {0: [1.0, 0.0], 1: [1.0, None], 2: [0.5, 0.5], 3: [1.0, 1.0]})
    assert preview_advantages(table, 2) == [
        {"uid": uid(0), "scores": "1, 0", "mean": 0.5, "std": 0.7071, "advantages": "0.707, -0.707"},
        {"uid": uid(2), "scores": "0.5, 0.5", "mean": 0.5, "std": 0.0, "advantages": "0, 0"},
    ]


def test_a_source_is_summarised_over_its_scored_responses(tmp_path: Path) -> None:
    table = score_table(tmp_path, {0: [1.0, 0.0], 1: [1.0, None]})
    assert summarise(table, 0.5) == [SourceSummary("train", "openai/gsm8k", 4, 3, 0.6667, 0.6667)]
    none = score_table(tmp_path, {0: [None]}, split="val")
    assert summarise(none, 0.5) == [SourceSummary("val", "openai/gsm8k", 1, 0, None, None)]


def test_near_misses_are_counted_where_the_scorer_tells_them(tmp_path: Path) -> None:
    inputs = input_table(
        tmp_path, [reward_input(0, n, text) for n, text in enumerate(["#### 72", "#### 72.", "#### 7", "72"])]
    )
    pool = ScorePool(RewardFunction(), workers=1)
    assert near_misses(score_responses(inputs, pool, folder=tmp_path, log=lambda _: None)) == 2
    assert near_misses(score_table(tmp_path, {0: [1.0]})) is None
