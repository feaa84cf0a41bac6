"""Whether two mathematical answers have the same value, without rounding.

math-verify reads the answers. It rounds decimals to six places and takes what is nearer than 1e-15 for equal,
so decimals are made exact fractions first, and two constants are compared relative to their size.
"""

import re
from fractions import Fraction
from typing import Any

_NUMBER = re.compile(
    r"[+-]?(?:[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+|(?=\.[0-9]))(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,4})?"
)
_POWER_OF_TEN = re.compile(r"[eE]([+-]?[0-9]+)$")
_DIGITS = 60
"""Digits to which two constants that are no fractions agree where they are taken for equal."""


def math_equal(answer: str, truth: str) -> bool:
    """Whether two mathematical expressions (LaTeX or plain) are equal, by text or by value.

    There is no time limit here: a comparison can run for minutes, so run it where it can be ended.
    """
    answer, truth = answer.strip(), truth.strip()
    if answer == truth:
        return True
    numbers = number(answer), number(truth)
    if None not in numbers:
        return numbers[0] == numbers[1]
    from math_verify import verify

    given, right = _parsed(answer), _parsed(truth)
    if not given or not right:
        return False
    given[0], right[0] = _alike(given[0], right[0])
    if (verdict := _compare_constants(right[0], given[0])) is not None:
        return verdict
    return bool(
        verify(
            right,
            given,
            float_rounding=_DIGITS,
            numeric_precision=_DIGITS,
            allow_set_relation_comp=_are_interval_and_inequality(right[0], given[0]),
            timeout_seconds=None,
        )
    )


def number(text: str) -> Fraction | None:
    """The exact value of a number in digits, such as `-1,000.5` or `6.62e-34`; None where it is none."""
    if _NUMBER.fullmatch(text) is None:
        return None
    try:
        return Fraction(text.replace(",", ""))
    except ValueError:  # more digits than Python reads
        return None


def _parsed(text: str) -> list[Any]:
    """What math-verify makes of an answer: an exact expression where it is one, and its text."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    if _NUMBER.fullmatch(text):
        text = _POWER_OF_TEN.sub(r"\\cdot 10^{\1}", text)
    kinds = (LatexExtractionConfig(), ExprExtractionConfig())
    found = parse(f"\\boxed{{{text}}}", kinds, parsing_timeout=None)
    return [one if isinstance(one, str) else _exact(one) for one in found]


def _exact(expression: Any) -> Any:
    """The expression with decimals as fractions."""
    import sympy

    decimals = (one for one in expression.atoms(sympy.Float) if one.is_finite)
    return expression.xreplace({one: sympy.Rational(str(one)) for one in decimals})


def _alike(one: Any, other: Any) -> tuple[Any, Any]:
    """Two expressions in which a name is one symbol. What math-verify assumes of a symbol depends on the rest
    of its text, and symbols of which something else is assumed are not equal."""
    import sympy

    symbols = [set() if isinstance(each, str) else each.atoms(sympy.Symbol) for each in (one, other)]
    known = {symbol.name: symbol for symbol in symbols[0]}
    changes = {
        symbol: known[symbol.name]
        for symbol in symbols[1]
        if type(symbol) is sympy.Symbol and known.get(symbol.name, symbol) != symbol
    }
    return one, other.xreplace(changes) if changes else other


def _are_interval_and_inequality(right: Any, given: Any) -> bool:
    """Whether `(0, 1)` is held against something like `0 < x < 1`."""
    import sympy

    parts = given.args if isinstance(given, sympy.And) else (given,)
    inequalities = (sympy.StrictLessThan, sympy.LessThan, sympy.StrictGreaterThan, sympy.GreaterThan)
    return isinstance(right, sympy.Interval) and all(isinstance(part, inequalities) for part in parts)


def _compare_constants(one: Any, other: Any) -> bool | None:
    """Whether two constants are equal; None where one of them is none, or a percentage."""
    import sympy

    for expression in (one, other):
        if not isinstance(expression, sympy.Expr) or not expression.is_number:
            return None
        if expression.has(sympy.UnevaluatedExpr):
            return None
        if expression.has(sympy.zoo, sympy.nan):  # a time of day, say: 12:00 is no 12 divided by 0
            return False
    if one == other or (one.is_Rational and other.is_Rational):
        return bool(one == other)
    difference, size = (abs(value.evalf(15, maxn=2 * _DIGITS)) for value in (one - other, other))
    if not (difference.is_Float or difference.is_zero) or not (size.is_Float or size.is_zero):
        return None  # infinite, or beyond what can be evaluated
    if difference > size * sympy.Float(10) ** -_DIGITS:
        return False
    exact = (one - other).doit()
    return bool(exact == 0) if exact.is_Rational else True
