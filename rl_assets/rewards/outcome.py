"""What came of one call of a reward function: a score or the reason why there is none, and plain values."""

import dataclasses
import inspect
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from rl_assets.rewards.hidden import Hidden

LONGEST_ERROR = 500
_LONGEST_SHOWN = 80


@dataclass(frozen=True)
class Scored:
    """What came of scoring one response.

    Attributes:
        score: the score, or None where there is none.
        error: why there is none.
        extra: what a dict result holds besides its score: text, numbers, booleans, None, or JSON-like values.
    """

    score: float | None = None
    error: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


def call(
    function: Callable[..., Any],
    kwargs: Mapping[str, Any],
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Any,
    hidden: Hidden | None = None,
) -> Scored:
    """Call a reward function as verl does, awaiting a coroutine function; whatever it raises is the error.

    Args:
        function: the reward function.
        kwargs: further arguments of its own; they win over the others.
        data_source: as in the row.
        solution_str: the response.
        ground_truth: as in the row.
        extra_info: as in the row.
        hidden: what must not be seen in the result; None takes the texts of `kwargs`.
    """
    arguments = {
        "data_source": data_source,
        "solution_str": solution_str,
        "ground_truth": ground_truth,
        "extra_info": extra_info,
        **kwargs,
    }
    hidden = hidden or Hidden(kwargs)
    try:
        result = function(**arguments)
        if inspect.isawaitable(result):
            import asyncio

            result = asyncio.run(_await(result))
        scored = normalise(result, hidden)
    except BaseException as error:  # SystemExit and KeyboardInterrupt too: the call ends, nothing else
        scored = Scored(error=hidden.message(words(error)))
    if scored.error is not None and len(scored.error) > LONGEST_ERROR:
        scored = dataclasses.replace(scored, error=scored.error[:LONGEST_ERROR])
    return scored


async def _await(result: Any) -> Any:
    return await result


def words(error: BaseException) -> str:
    """Type and text of an error, whatever its `__str__` does."""
    name = _text(type(error).__name__)
    try:
        text = _text(error)
    except BaseException as another:
        return f"{name}, whose text cannot be read ({type(another).__name__})"
    return f"{name}: {text}" if text else name


def normalise(result: Any, hidden: Hidden | None = None) -> Scored:
    """A reward function's result in one form, as verl reads it.

    A dict gives its `score` and keeps the rest; a number or a boolean is the score; of anything else the
    first element is. A score that is missing, not a number or not finite is an error.
    """
    hidden = hidden or Hidden({})
    extra: dict[str, Any] = {}
    value = result
    if isinstance(result, dict):
        if "score" not in result:
            shown = hidden.message(str(sorted(map(_key, result))))
            return Scored(error=f"no score: a dict with the keys {shown:.200}")
        value = result["score"]
        extra = _extra(result, hidden)
    try:
        if isinstance(value, (str, bytes, bytearray)):
            raise TypeError
        score = float(value) if value is not result or _is_number(value) else float(value[0])
    except (TypeError, ValueError, LookupError, OverflowError):
        shown = hidden.message(repr(value))
        return Scored(error=f"no score: {shown:.{_LONGEST_SHOWN}}", extra=extra)
    if not math.isfinite(score):
        return Scored(error=f"no score: {score}", extra=extra)
    return Scored(score=score, extra=extra)


def _extra(result: dict[Any, Any], hidden: Hidden) -> dict[str, Any]:
    """What a dict holds besides its score."""
    extra: dict[str, Any] = {}
    for key, value in result.items():
        if key != "score":
            name = _key(key)
            while name in extra:  # 1 and "1"
                name += "'"
            extra[name] = _plain(value)
    return hidden.value(extra)


def _key(key: Any) -> str:
    """A key as text that tells it from others."""
    return (key if isinstance(key, str) else str(key)).encode(errors="backslashreplace").decode()


def _is_number(value: Any) -> bool:
    """Whether `value` is a number of Python's, numpy's or (a tensor without dimensions) torch's."""
    return isinstance(value, Real) or getattr(value, "shape", None) == ()


def _plain(value: Any) -> Any:
    """`value` as JSON has it: arrays as lists, their numbers as numbers, what JSON cannot say as text. A
    whole number beyond 64 bits, for which a column has no type, is text too."""
    if type(value) in (bool, float, type(None)) or (type(value) is int and value.bit_length() < 64):
        return value
    if isinstance(value, str):
        return _text(value)
    try:
        value = json.loads(json.dumps(value, default=_jsonable))
    except (TypeError, ValueError, RecursionError):  # a key that is no text, a circle, too many digits
        value = _text(value) if not isinstance(value, int) else hex(value)
    return str(value) if type(value) is int and value.bit_length() > 63 else value


def _jsonable(value: Any) -> Any:
    """Something near to `value` that JSON can say."""
    if callable(to_list := getattr(value, "tolist", None)):  # arrays and tensors, and their numbers
        return to_list()
    if isinstance(value, Mapping):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    return _text(value)


def _text(value: Any) -> str:
    """`value` as text that UTF-8 can hold."""
    return str(value).encode(errors="replace").decode()
