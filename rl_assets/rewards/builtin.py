"""Scorers for the data_sources of verl's built-in table that need neither a service nor running code.

Where an answer is in a response follows verl's scorer of the same data_source exactly, so that a prompt's
instructions mean the same in both. What verl takes for right is right. In mathematics an answer is right,
too, where its value is that of the ground truth: `\\frac{1}{4}` equals `0.25`, where verl compares normalised
text. (For the `numina_…` sources verl also reads an answer outside of a box, and takes numbers for equal that
differ by a ten-thousandth: that is not followed.)

`lenient_acc` says what a kinder reading would say: an answer with a closing period, in bold, or anywhere at
the end of the response. Where it is true and `acc` is not, the policy may know the answer and miss the form.

The module can be named in verl itself: `custom_reward_function.path=pkg://rl_assets.rewards.builtin`.
"""

import re
import string
from collections.abc import Callable
from operator import eq
from typing import Any

from rl_assets.contract.rules.scorers import scorer_family
from rl_assets.rewards.lenient import lenient_equal, lenient_search
from rl_assets.rewards.math_value import math_equal
from rl_assets.rewards.verl_text import TAIL, dapo_answer, dapo_text, last_boxed, math_answer, math_same

_GSM8K_ANSWER = re.compile(r"#### (-?[0-9.,]+)")
_ANSWER_TAGS = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_THOUGHT_THEN_BOX = re.compile(r"<think>.*</think>.*\\boxed\{.*\}.*", re.DOTALL)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_MOST_TAGS = 10


class Result(dict[str, Any]):
    """What `compute_score` returns: a dict, whose first element is its score.

    Most of verl's reward managers read a dict; its `prime` manager reads a number, or the first element.
    """

    def __missing__(self, key: object) -> Any:
        if key == 0 and type(key) is int:
            return self["score"]
        raise KeyError(key)


def compute_score(
    data_source: str | None = None,
    solution_str: str | None = None,
    ground_truth: Any = None,
    extra_info: Any = None,
    **batch: Any,
) -> Result | list[Result]:
    """Score one response, with the signature of verl's `compute_score`; or a batch of them, with the names
    that verl's `batch` manager gives (`data_sources`, `solution_strs`, `ground_truths`).

    Returns:
        `score`; `acc`, whether the answer is right; `pred`, the answer that was found, or None;
        `lenient_acc`, whether a kinder reading finds a right answer. The keys are the same for every
        data_source, so that rows of several can share a batch.

    Raises:
        NotImplementedError: no scorer here reads the data_source (verl raises the same).
    """
    if data_source is None and "data_sources" in batch:
        rows = zip(batch["data_sources"], batch["solution_strs"], batch["ground_truths"], strict=True)
        return [_compute(*row) for row in rows]
    return _compute(data_source or "", solution_str or "", ground_truth)


def _compute(data_source: str, solution: str, truth: Any) -> Result:
    score = _SCORERS.get(scorer_family(data_source) or "")
    if score is None:
        raise NotImplementedError(f"Reward function is not implemented for {data_source=}")
    return score(solution, truth)


def has_builtin(data_source: str) -> bool:
    """Whether `compute_score` reads this data_source."""
    return scorer_family(data_source) in _SCORERS


def perfect_answer(data_source: str, ground_truth: Any) -> str:
    """A response that deserves the highest score: the ground truth, written as the scorer reads it.

    Raises:
        NotImplementedError: no scorer here reads the data_source.
    """
    write = _PERFECT.get(scorer_family(data_source) or "")
    if write is None:
        raise NotImplementedError(f"Reward function is not implemented for {data_source=}")
    return write(ground_truth)


def _result(
    right: bool, answer: str | None, lenient: Callable[[], bool], *, best: float = 1.0, worst: float = 0.0
) -> Result:
    return Result(
        score=best if right else worst, acc=right, pred=answer, lenient_acc=bool(right or lenient())
    )


def _gsm8k(solution: str, truth: Any) -> Result:
    found = _GSM8K_ANSWER.findall(solution[-TAIL:])
    answer = found[-1].replace(",", "") if found else None
    right = answer is not None and answer == truth
    return _result(right, answer, lambda: lenient_equal(solution, str(truth), equal=eq))


def _math(solution: str, truth: Any) -> Result:
    truth, answer = str(truth), math_answer(solution)
    right = answer is not None and (math_same(answer, truth) or math_equal(answer, truth))
    return _result(right, answer, lambda: lenient_equal(solution, truth, answer))


def _math_dapo(solution: str, truth: Any) -> Result:
    truth = str(truth)
    answer, is_line = dapo_answer(solution)
    if answer is None:
        right = False
    elif is_line:
        right = dapo_text(answer) == dapo_text(truth) or math_equal(last_boxed(answer) or answer, truth)
    else:
        right = math_equal(answer, truth)
    return _result(right, answer, lambda: lenient_equal(solution, truth, answer), worst=-1.0)


def _geo3k(solution: str, truth: Any) -> Result:
    truth, answer = str(truth), last_boxed(solution)
    right = answer is not None and math_equal(answer, truth)
    result = _result(right, answer, lambda: lenient_equal(solution, truth, answer))
    formatted = _THOUGHT_THEN_BOX.fullmatch(solution) is not None
    result["score"] = 0.9 * right + 0.1 * formatted
    return result


def _search_r1(solution: str, truth: Any) -> Result:
    found = _ANSWER_TAGS.findall(solution)
    answer = found[-1].strip() if found else None
    targets = [truth["target"]] if isinstance(truth["target"], str) else truth["target"]
    wanted = {_normalised(target) for target in targets}
    right = answer is not None and _normalised(answer) in wanted
    # verl quarters the score of a response that is stuffed with answers.
    tags = max(solution.count("<answer>"), solution.count("</answer>"))
    return _result(
        right,
        answer,
        lambda: lenient_search(_normalised(solution if answer is None else answer), wanted),
        best=1.0 if tags <= _MOST_TAGS else 0.25,
    )


def _normalised(text: str) -> str:
    """Lower case without punctuation, articles and superfluous spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def _first_target(truth: Any) -> str:
    targets = truth["target"]
    return targets if isinstance(targets, str) else targets[0]


_SCORERS: dict[str, Callable[[str, Any], Result]] = {
    "gsm8k": _gsm8k,
    "math": _math,
    "math_dapo": _math_dapo,
    "prime_math": _math,
    "geo3k": _geo3k,
    "search_r1": _search_r1,
}

_PERFECT: dict[str, Callable[[Any], str]] = {
    "gsm8k": lambda truth: f"#### {truth}",
    "math": lambda truth: f"\\boxed{{{truth}}}",
    "math_dapo": lambda truth: f"Answer: {truth}",
    "prime_math": lambda truth: f"\\boxed{{{truth}}}",
    "geo3k": lambda truth: f"<think></think>\\boxed{{{truth}}}",
    "search_r1": lambda truth: f"<answer>{_first_target(truth)}</answer>",
}
