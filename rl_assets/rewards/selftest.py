"""Whether right answers score: the ground truth, written as a response and given to the reward function."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from rl_assets.base.jsontext import to_json
from rl_assets.rewards.builtin import compute_score, has_builtin, perfect_answer
from rl_assets.rewards.outcome import call
from rl_assets.rewards.pool import Sample, ScorePool
from rl_assets.rewards.solution import Writer, Written

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


def failing_answers(
    rows: Iterable[Mapping[str, Any]], pool: ScorePool, writer: Writer | None = None
) -> Iterator[Failing]:
    """The rows whose right answer does not score, each with what it scored instead.

    With a built-in scorer the answer is written as that scorer reads it, and scores the maximum. How a
    function of the user's own reads an answer is not known: it is given the ground truth in several usual
    forms, and the best of them scores more than an empty response.

    Rows are taken one after the other as scoring goes on, so that who gives them can stop.

    Args:
        rows: each with `data_source`, `ground_truth` and `extra_info`.
        pool: how responses are scored.
        writer: writes an answer as a response of the policy; None takes the answer as it is.

    Raises:
        InputError: the reward function cannot be loaded.
    """
    if pool.function.path is None:
        return _failing_builtin(rows, writer)
    return _failing_custom(rows, pool, writer)


def _failing_builtin(rows: Iterable[Mapping[str, Any]], writer: Writer | None) -> Iterator[Failing]:
    for row in rows:
        source, truth = row["data_source"], row["ground_truth"]
        if has_builtin(source):
            answer = perfect_answer(source, truth)
            written = _write(answer, writer)
            result = call(compute_score, {}, source, written.solution, truth, row["extra_info"])
            if result.score != BEST:
                why = result.error or repr(answer)
                problem = f"the right answer scores {result.score}, not {BEST}: {why:.80}"
                yield Failing(row, _because(problem, written), result.error)


def _failing_custom(
    rows: Iterable[Mapping[str, Any]], pool: ScorePool, writer: Writer | None
) -> Iterator[Failing]:
    under_way: deque[tuple[Mapping[str, Any], list[Written]]] = deque()

    def samples() -> Iterator[Sample]:
        for row in rows:
            answers = [_write(answer, writer) for answer in _answers(row)]
            under_way.append((row, answers))
            truth, info = to_json(row["ground_truth"]), to_json(row["extra_info"])
            for solution in ("", *(answer.solution for answer in answers)):
                yield row["data_source"], solution, truth, info

    results = pool.score(samples())
    for empty in results:
        row, written = under_way.popleft()
        answers = [next(results) for _ in written]
        changed = next((one for one in written if one.changed), written[0])
        scores = [answer.score for answer in answers if answer.score is not None]
        if not scores:
            error = answers[0].error if empty.score is None else None
            yield Failing(row, f"the ground truth has no score: {answers[0].error}", error)
        elif empty.score is not None and max(scores) <= empty.score:
            problem = f"the ground truth scores {max(scores)} at best, an empty response {empty.score}"
            yield Failing(row, _because(problem, changed), None)


def _answers(row: Mapping[str, Any]) -> Iterator[str]:
    truth = row["ground_truth"]
    text = truth if isinstance(truth, str) else to_json(truth)
    for form in _FORMS:
        yield form.format(text)


def _write(answer: str, writer: Writer | None) -> Written:
    return Written(answer, None) if writer is None else writer.write(answer)


def _because(problem: str, written: Written) -> str:
    return f"{problem} ({written.changed})" if written.changed else problem
