"""The self-test finds rows whose right answer cannot score."""

from pathlib import Path
from typing import Any

import pytest

from rl_assets.errors import InputError
from rl_assets.rewards.function import RewardFunction
from rl_assets.rewards.pool import ScorePool
from rl_assets.rewards.selftest import failing_answers


def row(truth: Any, source: str = "openai/gsm8k") -> dict[str, Any]:
    return {"data_source": source, "ground_truth": truth, "extra_info": {}}


def problems(rows: list[dict[str, Any]], pool: ScorePool) -> list[tuple[Any, str]]:
    return [(failing.row["ground_truth"], failing.problem) for failing in failing_answers(rows, pool)]


def custom(folder: Path, code: str) -> ScorePool:
    path = folder / "custom.py"
    path.write_text(code)
    return ScorePool(RewardFunction(str(path)), workers=1)


def test_right_answers_pass_and_unreachable_ones_are_found() -> None:
    rows = [row("72"), row("1,000"), row(r"\frac{1}{2}", "lighteval/MATH"), row("yes")]
    assert problems(rows, ScorePool(RewardFunction())) == [
        ("1,000", "the right answer scores 0.0, not 1.0: '#### 1,000'"),
        ("yes", "the right answer scores 0.0, not 1.0: '#### yes'"),
    ]


def test_sources_that_are_scored_elsewhere_are_not_judged() -> None:
    assert problems([row("x", "my/source")], ScorePool(RewardFunction())) == []


def test_a_function_of_the_users_own_may_read_answers_in_any_usual_form(tmp_path: Path) -> None:
    pool = custom(
        tmp_path,
        "def compute_score(solution_str, ground_truth, **_):\n"
        "    return float(solution_str == f'Answer: {ground_truth}')\n",
    )
    assert problems([row("72"), row("1,000")], pool) == []


def test_a_function_that_never_tells_right_from_nothing_is_found(tmp_path: Path) -> None:
    pool = custom(tmp_path, "def compute_score(**_): return 1.0")
    assert problems([row("72")], pool) == [
        ("72", "the ground truth scores 1.0 at best, an empty response 1.0")
    ]


def test_a_function_that_fails_on_a_row_is_found_with_its_error(tmp_path: Path) -> None:
    pool = custom(tmp_path, "def compute_score(extra_info, **_): return extra_info['answer']")
    assert problems([row("72")], pool) == [("72", "the ground truth has no score: KeyError: 'answer'")]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("raise ValueError('broken')", "ValueError: broken"),
        ("return 'good'", "no score: 'good'"),
        ("return float('nan')", "no score: nan"),
        ("return {'reward': 1.0}", "no score: a dict with the keys ['reward']"),
        ("return 0 if solution_str == '' else 'good'", None),
        ("return 1", None),
    ],
)
def test_it_says_whether_anything_that_was_tried_has_a_score(
    tmp_path: Path, body: str, error: str | None
) -> None:
    pool = custom(tmp_path, f"def compute_score(solution_str, **_): {body}")
    (failing,) = failing_answers([row("72")], pool)
    assert failing.error == error


def test_a_function_that_cannot_be_loaded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="SyntaxError"):
        problems([row("72")], custom(tmp_path, "def"))
