"""Columns of Python values as Arrow arrays and back, exactly, without pickle.

A column is typed where all its values allow it, and JSON text otherwise. What JSON cannot give back as it
was (tuples, bytes, dates, keys that are not text, arrays) is refused. A subclass of dict or list comes back
as the plain kind.
"""

import itertools
import json
from collections.abc import Iterable
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa

from rl_assets.errors import InputError

Encoding = Literal["string", "int64", "float64", "bool", "list<int>", "json", "python-json"]
"""How a column's values are kept. `json` is JSON as RFC 8259 has it; `python-json` is what Python's json
module adds to it: NaN, Infinity, unpaired surrogates. Every typed column takes None."""

_SCALARS: dict[type, tuple[Encoding, pa.DataType]] = {
    str: ("string", pa.large_string()),
    int: ("int64", pa.int64()),
    float: ("float64", pa.float64()),
    bool: ("bool", pa.bool_()),
}
_strict_encode = msgspec.json.Encoder().encode
_strict_decode = msgspec.json.Decoder().decode


def encode(key: str, values: np.ndarray) -> tuple[pa.Array, Encoding]:
    """One column for Parquet.

    Args:
        key: the column's name, for the message.
        values: 1-D object array.

    Raises:
        InputError: a value that cannot be kept; the message names key, row and type.
    """
    rows = values.tolist()
    kinds = set(map(type, rows)) - {type(None)}
    if len(kinds) <= 1:
        kind = next(iter(kinds), str)
        if kind in _SCALARS:
            encoding, arrow = _SCALARS[kind]
            try:
                return pa.array(rows, arrow, from_pandas=False), encoding
            except (OverflowError, UnicodeEncodeError, pa.ArrowInvalid):
                pass  # wide integers and unpaired surrogates are for JSON
        elif kind is list and (lists := _int_lists(rows)) is not None:
            return lists, "list<int>"
    return _encode_json(key, rows)


def _int_lists(rows: list[list[Any] | None]) -> pa.Array | None:
    """Lists of integers as list<int32>, or list<int64> where a number needs it; None for other lists."""
    flat = list(itertools.chain.from_iterable(row for row in rows if row))
    if not set(map(type, flat)) <= {int}:
        return None
    try:
        numbers = np.array(flat, dtype=np.int64)
    except OverflowError:
        return None
    narrow = numbers.astype(np.int32)
    lengths = np.array([0 if row is None else len(row) for row in rows], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    missing = np.array([row is None for row in rows], dtype=bool)
    return pa.LargeListArray.from_arrays(
        pa.array(offsets), pa.array(narrow if (narrow == numbers).all() else numbers), mask=pa.array(missing)
    )


def _encode_json(key: str, rows: list[Any]) -> tuple[pa.Array, Encoding]:
    try:
        texts = [_strict_encode(row) for row in rows]
        if _strict_decode(b"[" + b",".join(texts) + b"]") == rows:
            return pa.array(texts, pa.large_binary()).cast(pa.large_string()), "json"
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        pass
    return pa.array(
        [_python_json(key, i, row) for i, row in enumerate(rows)], pa.large_string()
    ), "python-json"


def _python_json(key: str, row: int, value: Any) -> str:
    try:
        return exact_json(value)
    except TypeError as error:
        raise InputError(
            field=key,
            row=row,
            found=str(error),
            expected="text, numbers, true, false, null, and lists and objects of these",
            remedy="Convert it (a tuple to a list, an array to a list or a tensor in `batch`), or drop it.",
        ) from None


def exact_json(value: Any) -> str:
    """Compact JSON text that Python's json module decodes to an equal value of the same types.

    Raises:
        TypeError: there is none; the message names the place inside the value and the type.
    """
    if foreign := _foreign(value, ""):
        raise TypeError(foreign)
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(value, separators=(",", ":"))
    return text


def _foreign(value: Any, path: str) -> str | None:
    """The first thing inside `value` that JSON cannot give back, and where."""
    kind = type(value)
    if value is None or kind in (str, int, float, bool):
        return None
    if isinstance(value, list):
        found: Iterable[str | None] = (_foreign(inner, f"{path}[{i}]") for i, inner in enumerate(value))
        return next(filter(None, found), None)
    if not isinstance(value, dict):
        return f"a {kind.__module__}.{kind.__name__}" + (f" at {path.lstrip('.')}" if path else "")
    for key, inner in value.items():
        if type(key) is not str:
            return f"the key {key!r} ({type(key).__name__})" + (f" at {path.lstrip('.')}" if path else "")
        if foreign := _foreign(inner, f"{path}.{key}"):
            return foreign
    return None


def decode(array: pa.Array, encoding: Encoding) -> np.ndarray:
    """The values that `encode` was given, as a 1-D object array."""
    if encoding == "json":
        values = _strict_decode(b"[" + b",".join(array.cast(pa.large_binary()).to_pylist()) + b"]")
    elif encoding == "python-json":
        values = [json.loads(text) for text in array.to_pylist()]
    elif encoding == "list<int>":
        offsets, numbers = array.offsets.to_pylist(), array.values.to_numpy()
        values = [numbers[a:b].tolist() for a, b in itertools.pairwise(offsets)]
        for row in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)):
            values[row] = None
    else:
        values = array.to_pylist()
    return np.fromiter(values, dtype=object, count=len(values))
