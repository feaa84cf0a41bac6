"""Scorers for the data_sources of verl's built-in table that need neither a service nor running code.

Where an answer stands in a response follows verl's scorer of the same data_source, so that a prompt's
instructions mean the same in both. Whether an answer is right is, for mathematics, decided by math-verify:
`\\frac{1}{2}` equals `0.5`, where verl compares normalised text.

The module can be named in verl itself: `custom_reward_function.path=pkg://rl_assets.rewards.builtin`.
"""

import re
import string
from collections.abc import Callable
from typing import Any

from rl_assets.contract.scorers import scorer_family

Result = dict[str, Any]

_GSM8K_ANSWER = re.compile(r"#### (-?[0-9.,]+)")
_ANSWER_LINE = re.compile(r"(?i)Answer\s*:\s*([^\n]+)")
_ANSWER_TAGS = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_THOUGHT_THEN_BOX = re.compile(r"<think>.*</think>.*\\boxed\{.*\}.*", re.DOTALL)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_TAIL, _BOXED_TAIL = 300, 100
_MOST_TAGS = 10


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, **_: Any
) -> Result:
    """Score one response, with the signature of verl's `compute_score`.

    Returns:
        `score`; `acc`, whether the answer is right; `pred`, the answer that was found, or None. The keys
        are the same for every data_source, so that rows of several can share a batch.

    Raises:
        NotImplementedError: no scorer here reads the data_source (verl raises the same).
    """
    score = _SCORERS.get(scorer_family(data_source) or "")
    if score is None:
        raise NotImplementedError(f"Reward function is not implemented for {data_source=}")
    return score(solution_str, ground_truth)


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


def math_equal(answer: str, truth: str) -> bool:
    """Whether two mathematical expressions (LaTeX or plain) are equal, by text or by value.

    There is no time limit here: a comparison can run for minutes, so run it where it can be ended.
    """
    if answer.strip() == truth.strip():
        return True
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    kinds = (LatexExtractionConfig(), ExprExtractionConfig())
    parsed = [parse(f"\\boxed{{{text}}}", kinds, parsing_timeout=None) for text in (truth, answer)]
    return all(parsed) and verify(*parsed, timeout_seconds=None)


def last_boxed(text: str) -> str | None:
    """What the last `\\boxed{…}` of `text` holds, its braces balanced; None where there is none."""
    start = text.rfind("\\boxed{")
    depth = 0
    for index in range(start + 6, len(text)) if start >= 0 else ():
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return text[start + 7 : index]
    return None


def _result(right: bool, answer: str | None, *, best: float = 1.0, worst: float = 0.0) -> Result:
    return {"score": best if right else worst, "acc": right, "pred": answer}


def _gsm8k(solution: str, truth: Any) -> Result:
    found = _GSM8K_ANSWER.findall(solution[-_TAIL:])
    answer = found[-1].replace(",", "") if found else None
    return _result(answer is not None and answer == truth, answer)


def _math(solution: str, truth: Any) -> Result:
    answer = last_boxed(solution)
    return _result(answer is not None and math_equal(answer, str(truth)), answer)


def _math_dapo(solution: str, truth: Any) -> Result:
    tail = solution[-_TAIL:]
    lines = _ANSWER_LINE.findall(tail)
    answer = lines[-1].strip() if lines else last_boxed(tail[-_BOXED_TAIL:])
    right = answer is not None and math_equal(last_boxed(answer) or answer, str(truth))
    return _result(right, answer, worst=-1.0)


def _geo3k(solution: str, truth: Any) -> Result:
    answer = last_boxed(solution)
    right = answer is not None and math_equal(answer, str(truth))
    formatted = _THOUGHT_THEN_BOX.fullmatch(solution) is not None
    return {"score": 0.9 * right + 0.1 * formatted, "acc": right, "pred": answer}


def _search_r1(solution: str, truth: Any) -> Result:
    found = _ANSWER_TAGS.findall(solution)
    answer = found[-1].strip() if found else None
    targets = truth["target"]
    wanted = {_normalised(target) for target in ([targets] if isinstance(targets, str) else targets)}
    right = answer is not None and _normalised(answer) in wanted
    # verl quarters the score of a response that is stuffed with answers.
    tags = max(solution.count("<answer>"), solution.count("</answer>"))
    return _result(right, answer, best=1.0 if tags <= _MOST_TAGS else 0.25)


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
