"""Whether right answers score: the ground truth, written as a response and given to the reward function."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from rl_assets.rewards.builtin import compute_score, has_builtin, perfect_answer
from rl_assets.rewards.outcome import call
from rl_assets.rewards.pool import Sample, ScorePool
from rl_assets.store import to_json

BEST = 1.0
"""The highest score of every built-in scorer."""


class Failing(NamedTuple):
    """A row whose right answer does not score.

    Attributes:
        row: the row.
        problem: what it scored instead, in words.
        error: why nothing that was tried has a score; None where something has one, however low.
    """

    row: Mapping[str, Any]
    problem: str
    error: str | None


_FORMS = (
    "{}",
    "#### {}",
    "\\boxed{{{}}}",
    "Answer: {}",
    "<answer>{}</answer>",
    "<think></think>\\boxed{{{}}}",
)


def failing_answers(rows: Iterable[Mapping[str, Any]], pool: ScorePool) -> Iterator[Failing]:
    """The rows whose right answer does not score, each with what it scored instead.

    With a built-in scorer the answer is written as that scorer reads it, and scores the maximum. How a
    function of the user's own reads an answer is not known: it is given the ground truth in several usual
    forms, and the best of them scores more than an empty response.

    Args:
        rows: each with `data_source`, `ground_truth` and `extra_info`.
        pool: how responses are scored.

    Raises:
        InputError: the reward function cannot be loaded.
    """
    if pool.function.path is None:
        return _failing_builtin(rows)
    return _failing_custom(list(rows), pool)


def _failing_builtin(rows: Iterable[Mapping[str, Any]]) -> Iterator[Failing]:
    for row in rows:
        source, truth = row["data_source"], row["ground_truth"]
        if has_builtin(source):
            answer = perfect_answer(source, truth)
            result = call(compute_score, {}, source, answer, truth, row["extra_info"])
            if result.score != BEST:
                why = result.error or repr(answer)
                problem = f"the right answer scores {result.score}, not {BEST}: {why:.80}"
                yield Failing(row, problem, result.error)


def _failing_custom(rows: list[Mapping[str, Any]], pool: ScorePool) -> Iterator[Failing]:
    results = pool.score(sample for row in rows for sample in _samples(row))
    for row in rows:
        empty, *answers = [next(results) for _ in range(len(_FORMS) + 1)]
        scores = [answer.score for answer in answers if answer.score is not None]
        if not scores:
            error = answers[0].error if empty.score is None else None
            yield Failing(row, f"the ground truth has no score: {answers[0].error}", error)
        elif empty.score is not None and max(scores) <= empty.score:
            problem = f"the ground truth scores {max(scores)} at best, an empty response {empty.score}"
            yield Failing(row, problem, None)


def _samples(row: Mapping[str, Any]) -> Iterator[Sample]:
    truth, info = to_json(row["ground_truth"]), to_json(row["extra_info"])
    text = row["ground_truth"] if isinstance(row["ground_truth"], str) else truth
    for solution in ("", *(form.format(text) for form in _FORMS)):
        yield row["data_source"], solution, truth, info
