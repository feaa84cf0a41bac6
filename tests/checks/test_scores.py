"""Checks on scoring: a scorer for every source before any rollout, and a score for every response after."""

from pathlib import Path

import dagster as dg
import pytest

from rl_assets.errors import InputError
from rl_assets.graph.checks.gate import require_passed
from rl_assets.rewards.scoring import SCORE_SCHEMA
from tests.checks.stores import (
    bare_dataset,
    contract_row,
    evaluate,
    problems,
    put,
    put_contract,
    the_check,
    the_others_warn,
)
from tests.rewards.builders import reward_input, uid
from tests.rollout.test_vocabulary import SPECIAL, chat_policy


def custom(root: Path, code: str) -> dict[str, object]:
    (root / "reward.py").write_text(code)
    return {"custom_reward_function": {"path": "reward.py"}, "num_workers": 1}


def test_sources_with_a_built_in_scorer_or_scored_elsewhere_pass(tmp_path: Path) -> None:
    dataset = bare_dataset(tmp_path, contract={"known_data_sources": ["my/preferences"]})
    put_contract(dataset, contract_row(0), contract_row(1, data_source="my/preferences"))
    findings = evaluate(dataset, "field_contract", "scorer_known")
    assert findings.passed
    assert findings.numbers == {"reward_function": "built-in", "data_sources": 2}


def test_a_source_that_nothing_here_scores_stops_the_run_before_its_rollouts(tmp_path: Path) -> None:
    dataset = bare_dataset(tmp_path)
    put_contract(
        dataset, contract_row(0), contract_row(1, data_source="apps"), contract_row(2, data_source="apps")
    )
    (problem,) = problems(evaluate(dataset, "field_contract", "scorer_known"))
    assert problem.startswith("2 rows of 'apps': no built-in scorer reads it")
    assert "contract.known_data_sources" in problem
    assert the_check("field_contract", "scorer_known").spec(dataset).blocking


def test_a_function_of_the_users_own_reads_every_source(tmp_path: Path) -> None:
    dataset = bare_dataset(tmp_path, reward=custom(tmp_path, "def compute_score(**_): return 1"))
    put_contract(dataset, contract_row(0, data_source="apps"))
    assert evaluate(dataset, "field_contract", "scorer_known").passed


def test_a_function_that_cannot_be_loaded_stops_the_run_before_its_rollouts(tmp_path: Path) -> None:
    dataset = bare_dataset(tmp_path, reward=custom(tmp_path, "import no_such_module"))
    put_contract(dataset, contract_row(0))
    (problem,) = problems(evaluate(dataset, "field_contract", "scorer_known"))
    assert "No module named 'no_such_module'" in problem


def test_a_right_answer_that_cannot_score_is_warned_of(tmp_path: Path) -> None:
    dataset = bare_dataset(tmp_path)
    put_contract(dataset, contract_row(0), contract_row(1, truth="1,000"))
    findings = evaluate(dataset, "field_contract", "perfect_answers_score")
    assert findings.numbers["rows"] == 2
    assert [(row["uid"], row["problem"]) for row in findings.rows] == [
        (uid(1), "the right answer scores 0.0, not 1.0: '#### 1,000'")
    ]
    check = the_check("field_contract", "perfect_answers_score")
    assert check.severity == dg.AssetCheckSeverity.WARN


@pytest.mark.parametrize("body", ["raise ValueError('broken')", "return 'good'", "return {'reward': 1}"])
def test_a_source_of_which_nothing_can_be_scored_stops_the_run_before_its_rollouts(
    tmp_path: Path, body: str
) -> None:
    code = f"def compute_score(data_source, **_):\n    if data_source == 'mine': {body}\n    return 1.0"
    others = the_others_warn("perfect_answers_score")
    dataset = bare_dataset(tmp_path, reward=custom(tmp_path, code), checks=others)
    put_contract(dataset, contract_row(0), contract_row(1, data_source="mine"))
    check = the_check("field_contract", "perfect_answers_score")
    findings = check.find(dataset)
    first, *others = findings.rows
    assert (first["source_row"], len(others)) == (1, 2)
    assert "found no score for any of the 1 tried rows of 'mine'" in first["problem"]
    assert f"Correct compute_score of {tmp_path / 'reward.py'}" in first["problem"]
    assert check.spec(dataset).blocking
    assert check.result(dataset, findings).severity == dg.AssetCheckSeverity.ERROR
    with pytest.raises(InputError, match="found no score for any of the 1 tried rows of 'mine'"):
        require_passed(dataset, ["field_contract"])


def test_a_source_of_which_something_scores_is_a_warning_or_what_the_yaml_says(tmp_path: Path) -> None:
    code = "def compute_score(ground_truth, **_):\n    return 1.0 if ground_truth == 'a' else 'bad'"
    reward = custom(tmp_path, code)
    dataset = bare_dataset(tmp_path, reward=reward)
    put_contract(dataset, contract_row(0, truth="a"), contract_row(1, truth="b"))
    check = the_check("field_contract", "perfect_answers_score")
    result = check.result(dataset)
    assert (result.passed, result.severity) == (False, dg.AssetCheckSeverity.WARN)
    lenient = bare_dataset(tmp_path, reward=reward, checks={"severities": {"perfect_answers_score": "warn"}})
    put_contract(lenient, contract_row(1, truth="b"))
    findings = check.find(lenient)
    assert findings.fatal
    assert check.result(lenient, findings).severity == dg.AssetCheckSeverity.WARN


def test_ground_truths_of_another_kind_than_most_are_tried_and_warned_of(tmp_path: Path) -> None:
    code = "def compute_score(solution_str, **_): return float(solution_str != '')"
    dataset = bare_dataset(tmp_path, reward=custom(tmp_path, code))
    odd = {6: 72, 7: ["72"], 8: 7.5, 9: ""}
    put_contract(dataset, *(contract_row(n, truth=odd.get(n, "72")) for n in range(10)))
    check = the_check("field_contract", "perfect_answers_score")
    findings = check.find(dataset)
    assert findings.numbers["rows"] == 8  # five, a number, a list, and an empty text
    assert [row["source_row"] for row in findings.rows] == [6, 7, 8]
    assert findings.rows[0]["problem"].startswith(
        "field `reward_model.ground_truth`: found a number, expected text, as 7 of 10 rows of"
    )
    assert check.result(dataset, findings).severity == dg.AssetCheckSeverity.WARN


def test_many_ground_truths_of_one_kind_hide_no_other_kind(tmp_path: Path) -> None:
    code = "def compute_score(solution_str, **_): return float(solution_str != '')"
    dataset = bare_dataset(tmp_path, reward=custom(tmp_path, code))
    truths = ["72"] * 40 + [72] * 30 + [["72"]]
    put_contract(dataset, *(contract_row(n, truth=truth) for n, truth in enumerate(truths)))
    findings = evaluate(dataset, "field_contract", "perfect_answers_score")
    assert findings.failures == 31
    assert [row["source_row"] for row in findings.rows] == [40, 70, *range(41, 59)]


def test_rows_that_are_scored_elsewhere_are_not_tried(tmp_path: Path) -> None:
    dataset = bare_dataset(tmp_path, contract={"known_data_sources": ["my/preferences"]})
    put_contract(dataset, contract_row(0, truth=None, data_source="my/preferences"))
    findings = evaluate(dataset, "field_contract", "perfect_answers_score")
    assert findings.passed
    assert findings.numbers["rows"] == 0


@pytest.mark.parametrize("known", [[], ["my/preferences"]], ids=["unknown", "scored elsewhere"])
def test_responses_without_a_score_are_counted_by_reason(tmp_path: Path, known: list[str]) -> None:
    dataset = bare_dataset(tmp_path, contract={"known_data_sources": known})
    rows = [
        {**reward_input(0, 0), "score": 1.0},
        {**reward_input(0, 1), "error": "timeout: no score within 10 s"},
        {**reward_input(1, 0), "error": "KeyError: 'answer'"},
        {**reward_input(2, 0, data_source="my/preferences"), "error": "NotImplementedError: …"},
    ]
    put(dataset, "reward_scores", SCORE_SCHEMA, rows)
    findings = evaluate(dataset, "reward_scores", "every_response_scored")
    expected = {"timeout": 1, "KeyError": 1} | ({} if known else {"NotImplementedError": 1})
    assert findings.numbers == expected
    assert findings.failures == len(expected)


def test_a_scorer_that_fails_on_every_response_of_a_source_stops_the_run(tmp_path: Path) -> None:
    dataset = bare_dataset(tmp_path)
    rows = [
        {**reward_input(0, 0), "score": 0.0},
        {**reward_input(1, 0, data_source="math"), "error": "ValueError: first"},
        {**reward_input(1, 1, data_source="math"), "error": "ValueError: second"},
    ]
    put(dataset, "reward_scores", SCORE_SCHEMA, rows)
    assert problems(evaluate(dataset, "reward_scores", "scorer_works")) == [
        "no response of 'math' could be scored: ValueError: first"
    ]


def test_without_previews_a_problem_says_what_is_wrong_and_not_with_which_text(tmp_path: Path) -> None:
    dataset = bare_dataset(tmp_path, previews=False)
    put_contract(dataset, contract_row(1, truth="1,000"))
    rows = [{**reward_input(0, 0), "error": "KeyError: 'my secret'"}]
    put(dataset, "reward_scores", SCORE_SCHEMA, rows)
    assert problems(evaluate(dataset, "field_contract", "perfect_answers_score")) == [
        "the right answer scores 0.0, not 1.0"
    ]
    assert problems(evaluate(dataset, "reward_scores", "every_response_scored")) == ["KeyError"]
    assert problems(evaluate(dataset, "reward_scores", "scorer_works")) == [
        "no response of 'openai/gsm8k' could be scored: KeyError"
    ]


def test_tags_that_verl_drops_are_warned_of_before_anything_is_generated(tmp_path: Path) -> None:
    special = (*SPECIAL, "<answer>", "</answer>")
    policy = chat_policy(tmp_path / "policy", special=special)
    dataset = bare_dataset(tmp_path, policy={"path": str(policy)})
    put_contract(dataset, contract_row(0, truth={"target": ["Rome"]}, data_source="searchR1_nq"))
    (problem,) = problems(evaluate(dataset, "field_contract", "perfect_answers_score"))
    assert problem.startswith("<answer>, </answer> are special tokens of the policy")
    chat_policy(policy)
    assert evaluate(dataset, "field_contract", "perfect_answers_score").passed


def test_a_slow_function_is_tried_within_a_time_and_on_every_source_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_assets.rewards.trial.SECONDS", 1.0)
    code = "import time\ndef compute_score(**_):\n    time.sleep(0.15)\n    return 1.0"
    dataset = bare_dataset(tmp_path, reward=custom(tmp_path, code))
    rows = [contract_row(number, data_source=f"mine/{number // 5}") for number in range(10)]
    put_contract(dataset, *rows)
    findings = evaluate(dataset, "field_contract", "perfect_answers_score")
    tried = findings.numbers["rows"]
    assert isinstance(tried, int)
    assert 1 <= tried < 10
    assert findings.numbers["rows_not_tried"] == 10 - tried
    assert [row["source_row"] for row in findings.rows][:2] == [0, 5][: len(findings.rows)]
