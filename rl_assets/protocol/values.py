"""Python values inside a batch: comparing, copying and naming them."""

import math
from typing import Any

import numpy as np


def fresh(value: Any) -> Any:
    """A copy whose dicts, lists and tuples are new and whose leaves (text, numbers, images) are shared."""
    kind = type(value)
    if kind is dict:
        return {key: fresh(inner) for key, inner in value.items()}
    if kind is list:
        return [fresh(inner) for inner in value]
    if kind is tuple:
        return tuple(fresh(inner) for inner in value)
    return value


def deep_equal(a: Any, b: Any, _path: frozenset[tuple[int, int]] = frozenset()) -> bool:
    """Whether two values are equal in type, shape, dtype and content; NaN equals NaN, 1 is not 1.0 or True.

    Goes into dicts, lists, tuples, arrays and tensors; a value that contains itself is compared once.
    """
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    if isinstance(a, str | bytes | int):
        return bool(a == b)
    pair = (id(a), id(b))
    if pair in _path:
        return True
    path = _path | {pair}
    if isinstance(a, np.ndarray):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        if a.dtype == object:
            return all(deep_equal(x, y, path) for x, y in zip(a.flat, b.flat, strict=True))
        return np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(deep_equal(a[key], b[key], path) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(deep_equal(x, y, path) for x, y in zip(a, b, strict=True))
    if hasattr(a, "is_floating_point"):
        return _tensors_equal(a, b)
    return bool(a == b)


def _tensors_equal(a: Any, b: Any) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    b = b.to(a.device)
    same = a == b
    if a.is_floating_point():
        same |= a.isnan() & b.isnan()
    return bool(same.all())


def describe(value: Any) -> str:
    """The type of a value, with dtype and shape where it has them, and the types inside it."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        kind = "array" if isinstance(value, np.ndarray) else type(value).__name__.lower()
        return f"{kind} of {value.dtype} {tuple(value.shape)}"
    if isinstance(value, list):
        return f"list[{'|'.join(sorted({describe(inner) for inner in value[:3]})) or '...'}]"
    if isinstance(value, tuple):
        return f"tuple({', '.join(describe(inner) for inner in value)})"
    if isinstance(value, dict) and value:
        key, inner = next(iter(value.items()))
        return f"dict[{describe(key)}: {describe(inner)}]"
    return type(value).__name__
