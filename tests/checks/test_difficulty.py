"""The check on difficulty warns where there is nothing to learn."""

from pathlib import Path

import dagster as dg
import pytest

from rl_assets.rewards.difficulty import difficulty_schema
from tests.checks.stores import bare_dataset, evaluate, problems, put, the_check
from tests.rewards.builders import uid


def found(root: Path, *rates: tuple[str, float | None], split: str = "train") -> list[str]:
    """Problems of a dataset with a prompt for each data_source and pass rate."""
    dataset = bare_dataset(root)
    rows = [
        {
            "uid": uid(number),
            "policy": "p",
            "split": split,
            "data_source": source,
            "n": 2,
            "scored": 2,
            "passed": 0,
            "pass_rate": rate,
            "truncated_share": 0.0,
            "distinct_answers": 1,
            "mean_response_length": 1.0,
            "source_file": "t.jsonl",
            "source_row": number,
        }
        for number, (source, rate) in enumerate(rates)
    ]
    put(dataset, "prompt_difficulty", difficulty_schema(2), rows)
    return problems(evaluate(dataset, "prompt_difficulty", "learning_signal"))


@pytest.mark.parametrize("rates", [[0.5], [0.0, 1.0], [0.0, 0.5, 1.0]], ids=str)
def test_a_source_with_right_and_wrong_responses_passes(tmp_path: Path, rates: list[float]) -> None:
    assert found(tmp_path, *(("math", rate) for rate in rates)) == []


def test_a_source_without_any_is_warned_of(tmp_path: Path) -> None:
    assert found(tmp_path, ("easy", 1.0), ("easy", 1.0), ("hard", 0.0), ("mixed", 0.5)) == [
        "easy: every response to its 2 prompts passes",
        "hard: no response to any of its 1 prompts passes",
    ]
    assert the_check("prompt_difficulty", "learning_signal").severity == dg.AssetCheckSeverity.WARN


def test_prompts_without_a_score_and_validation_prompts_do_not_count(tmp_path: Path) -> None:
    assert found(tmp_path, ("elsewhere", None)) == []
    assert found(tmp_path, ("hard", 0.0), split="val") == []
