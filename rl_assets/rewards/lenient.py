"""A kinder reading of a response than a scorer's: what the answer would be to a person."""

import re
from collections.abc import Callable, Iterable, Iterator

from rl_assets.rewards.math_value import math_equal, number

_BOX = re.compile(r"\\f?box(?:ed)?\s*(?=\{)")
_OPEN_BOX = re.compile(r"\\boxed ([^\s$]+)")
_SAID = re.compile(r"(?i)(?:answer(?:\s+is)?\s*[:=]?|####)\s*([^\n]+)")
_NUMBER = re.compile(r"-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:/\d+)?")
_MARKS = "*_`\"' \t\n"
_WRAPPED = (
    re.compile(r"\\\((.*)\\\)", re.DOTALL),
    re.compile(r"\\\[(.*)\\\]", re.DOTALL),
    re.compile(r"\$+(.*?)\$+", re.DOTALL),
    re.compile(r"\\(?:text|textbf|mathbf|mathrm|boxed|fbox)\{(.*)\}", re.DOTALL),
)
_TAIL = 1000
_LONGEST_ANSWER = 200


def lenient_equal(
    solution: str, truth: str, tried: str | None = None, *, equal: Callable[[str, str], bool] = math_equal
) -> bool:
    """Whether one of the answers that a person would see at the end of a response is right.

    Args:
        solution: the response.
        truth: the right answer.
        tried: an answer that was compared already.
        equal: how two answers are compared of which one is no number in digits.
    """
    seen = {tried}
    right = _cleaned(truth)
    for answer in _answers(solution[-_TAIL:]):
        if answer not in seen and len(answer) <= _LONGEST_ANSWER:
            seen.add(answer)
            values = number(answer), number(right)
            if None not in values:
                if values[0] == values[1]:
                    return True
            elif equal(answer, right):
                return True
    return False


def lenient_search(answer: str, targets: Iterable[str]) -> bool:
    """Whether a target is among the words of an answer; all in the form in which they are compared."""
    return any(target and f" {target} " in f" {answer} " for target in targets)


def _answers(text: str) -> Iterator[str]:
    """The last box, the last thing that is called the answer, and the last number; each cleaned."""
    boxes = list(_BOX.finditer(text))
    if boxes and (inner := _balanced(text, boxes[-1].end())) is not None:
        yield _cleaned(inner)
    if opened := _OPEN_BOX.findall(text):
        yield _cleaned(opened[-1])
    if said := _SAID.findall(text):
        yield _cleaned(said[-1])
    elif numbers := _NUMBER.findall(text):
        yield _cleaned(numbers[-1])


def _cleaned(text: str) -> str:
    """An answer without marks around it: bold, quotes, closing periods, dollar signs, `x =`."""
    before = None
    while text != before:
        before = text
        text = text.strip(_MARKS).rstrip(".,;:!").strip(_MARKS)
        for wrapped in _WRAPPED:
            if found := wrapped.fullmatch(text):
                text = found[1]
        text = text.removeprefix("\\$").removeprefix("$").removesuffix("\\%").removesuffix("%")
    name, equals, value = text.rpartition("=")
    return value.strip() if equals and len(name.strip()) <= 3 else text


def _balanced(text: str, start: int) -> str | None:
    depth = 0
    for index in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return text[start + 1 : index]
    return None
