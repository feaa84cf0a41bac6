"""Answers found and compared by text, as verl 0.9.1 does it for MATH and for DAPO.

verl calls an answer right where its normalised text is that of the ground truth. The two scorers normalise
in different ways, and where a text is so odd that normalising fails, MATH compares it as it is. A test holds
this module against verl's own over generated texts.
"""

import re

TAIL, BOXED_TAIL = 300, 100
"""Characters at the end of a response in which DAPO looks for an answer line, and for a box."""

_ANSWER_LINE = re.compile(r"(?i)Answer\s*:\s*([^\n]+)")
_FRACTION = re.compile(r"(0|-?[1-9][0-9]*)/(0|-?[1-9][0-9]*)")
_LONGEST_INTEGER = 4300  # Python reads no longer one, so verl leaves it

# MATH: taken out or replaced, in this order, before and after units are cut off.
_MATH_FIRST = (
    *(("\n", ""), ("\\!", ""), ("\\\\", "\\"), ("tfrac", "frac"), ("dfrac", "frac"), ("\\left", "")),
    *(("\\right", ""), ("^{\\circ}", ""), ("^\\circ", ""), ("\\$", "")),
)
_MATH_THEN = (("\\\\%", ""), ("\\%", ""), (" .", " 0."), ("{.", "{0."))

# DAPO: the same, and words that say nothing of a number.
_DAPO_FIRST = (
    *(("an ", ""), ("a ", ""), (".$", "$"), ("\\$", ""), ("\\ ", ""), (" ", ""), ("mbox", "text")),
    *((",\\text{and}", ","), ("\\text{and}", ","), ("\\text{m}", "\\text{}")),
)
_DAPO_UNITS = """
    square ways integers dollars mph inches hours km units \\ldots sue points feet minutes digits cents
    degrees cm gm pounds meters meals edges students childrentickets multiples \\text{s} \\text{.}
"""
_DAPO_MARKS = '\\text{}^2 \\text{}^3 \\text{\n} \\text{} \\mathrm{th} ^\\circ ^{\\circ} \\; ,\\! {,} " \\dots'
_DAPO_WORDS = [(word, "") for word in (*_DAPO_UNITS.split(), "\\text{\ns}", *_DAPO_MARKS.split(" "))]
_DAPO_PATTERNS = (
    (re.compile(r".*?\$(.*?)\$.*"), r"$\1$"),
    *((re.compile(rf"\\{name}\{{(.*?)\}}"), r"\1") for name in ("text", "textbf", "overline")),
    (re.compile(r"\\boxed\{(.*)\}"), r"\1"),
    (re.compile(r"frac([^{])(.)"), r"frac{\1}{\2}"),
    (re.compile(r"sqrt([^{])"), r"sqrt{\1}"),
)


def last_boxed(text: str) -> str | None:
    """What the last `\\boxed{…}` of `text` holds, its braces balanced; None where there is none."""
    return _braced(text, text.rfind("\\boxed{"), 7)


def math_answer(text: str) -> str | None:
    """The answer that MATH's scorer reads: what follows the last `\\boxed ` up to a dollar sign where there
    is such a one, or else the last box, if it has braces."""
    if "\\boxed " in text:
        return text.rpartition("\\boxed ")[2].partition("$")[0]
    start = text.rfind("\\boxed")
    return _braced(text, start, 7) if text.startswith("\\boxed{", max(start, 0)) else None


def dapo_answer(text: str) -> tuple[str | None, bool]:
    """The answer that DAPO's scorer reads, and whether it is an answer line: the last line with `Answer:`, or
    else the last box, both near the end."""
    tail = text[-TAIL:]
    lines = _ANSWER_LINE.findall(tail)
    if lines and dapo_text(lines[-1]) != "[INVALID]":  # what verl writes where it finds no line
        return lines[-1], True
    return last_boxed(tail[-BOXED_TAIL:]), False


def math_same(answer: str, truth: str) -> bool:
    """Whether MATH's scorer takes two answers for the same."""
    try:
        return math_text(answer) == math_text(truth)
    except (ValueError, IndexError):
        return answer == truth


def math_text(text: str) -> str:
    """An answer as MATH's scorer compares it.

    Raises:
        ValueError, IndexError: it cannot be normalised.
    """
    text = _replaced(text, _MATH_FIRST)
    if "\\text{ " in text:  # a unit, if it is the only one
        text, _unit = text.split("\\text{ ")
    text = _replaced(text, _MATH_THEN)
    if not text:
        return text
    if text[0] == ".":
        text = f"0{text}"
    name, equals, value = text.partition("=")
    if equals and "=" not in value and len(name) <= 2:
        text = value
    first, *roots = text.split("\\sqrt")
    text = first + "".join(
        f"\\sqrt{root if root[0] == '{' else f'{{{root[0]}}}{root[1:]}'}" for root in roots
    )
    text = _with_braced_fractions(text.replace(" ", ""))
    if text == "0.5":
        return "\\frac{1}{2}"
    if (fraction := _FRACTION.fullmatch(text)) and max(map(len, fraction.groups())) <= _LONGEST_INTEGER:
        return f"\\frac{{{fraction[1]}}}{{{fraction[2]}}}"
    return text


def dapo_text(text: str) -> str:
    """An answer as DAPO's scorer compares it."""
    text = _replaced(text.split("=")[-1], _DAPO_FIRST)
    text = _replaced(text, _DAPO_WORDS)
    for pattern, replacement in _DAPO_PATTERNS:
        text = pattern.sub(replacement, text)
    text = text.replace("$", "")
    digits = text.replace(",", "")
    return digits if digits.isdigit() else text.strip()


def _replaced(text: str, pairs: "list[tuple[str, str]] | tuple[tuple[str, str], ...]") -> str:
    for old, new in pairs:
        text = text.replace(old, new)
    return text


def _with_braced_fractions(text: str) -> str:
    """`\\frac12` as `\\frac{1}{2}`; all as it is where one has a single character."""
    first, *rest = text.split("\\frac")
    fractions = ""
    for part in rest:
        if part[0] != "{":
            if len(part) < 2:
                return text
            top, bottom = part[0], part[1:]
            part = f"{{{top}}}{bottom if bottom[0] == '{' else f'{{{bottom[0]}}}{bottom[1:]}'}"
        fractions += f"\\frac{part}"
    return first + fractions


def _braced(text: str, start: int, length: int) -> str | None:
    """What is between the brace at the end of a command of `length` characters and the one that closes it."""
    depth = 0
    for index in range(start + length - 1, len(text)) if start >= 0 else ():
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return text[start + length : index]
    return None
