"""Columns of Python values as Arrow arrays and back, exactly, without pickle.

A column is typed where all its values allow it, and JSON text otherwise. What JSON cannot give back as it
was (tuples, bytes, dates, keys that are not text, arrays) is refused. A subclass of dict or list comes back
as the plain kind.
"""

import array
import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa

from rl_assets.base.jsontext import utf8_json
from rl_assets.errors import InputError

Encoding = Literal["string", "int64", "float64", "bool", "list<int>", "json", "python-json"]
"""How a column's values are kept. `json` is JSON as RFC 8259 has it; `python-json` is what Python's json
module adds to it: NaN, Infinity, unpaired surrogates. A `json` text ends with a newline, so that a column's
bytes are JSON lines. The columns of scalars take None."""

_SCALARS: dict[type, tuple[Encoding, pa.DataType]] = {
    str: ("string", pa.large_string()),
    int: ("int64", pa.int64()),
    float: ("float64", pa.float64()),
    bool: ("bool", pa.bool_()),
}
_encode_lines = msgspec.json.Encoder().encode_lines
_decode_lines = msgspec.json.Decoder().decode_lines
_INTEGERS_IN_LISTS = b"0123456789-,[]\n"
_NOT_JSON = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
_PART_ROWS = 256


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
    if len(kinds) <= 1 and (kind := next(iter(kinds), str)) in _SCALARS:
        encoding, arrow = _SCALARS[kind]
        try:
            return pa.array(rows, arrow, from_pandas=False), encoding
        except (OverflowError, UnicodeEncodeError, pa.ArrowInvalid):
            pass  # wide integers and unpaired surrogates are for JSON
    if kinds == {list} and (lists := _integer_lists(rows)) is not None:
        return lists, "list<int>"
    lines = _json_lines(rows)
    if lines is None:
        texts = [_python_json(key, row, value) for row, value in enumerate(rows)]
        return pa.array(texts, pa.large_string()), "python-json"
    ends = np.flatnonzero(np.frombuffer(lines, np.uint8) == ord("\n")) + 1
    offsets = pa.py_buffer(np.concatenate([[0], ends]))
    return pa.LargeStringArray.from_buffers(len(rows), offsets, pa.py_buffer(lines)), "json"


def _parts(rows: list[Any]) -> Iterator[list[Any]]:
    """The rows a few at a time, so that what was just written is still in the cache when it is checked."""
    return (rows[start : start + _PART_ROWS] for start in range(0, len(rows), _PART_ROWS))


def _json_lines(rows: list[Any]) -> bytes | None:
    """One line of JSON per value, or None where some value would not come back as it is."""
    lines = []
    try:
        for part in _parts(rows):
            lines.append(_encode_lines(part))
            if _decode_lines(lines[-1]) != part:
                return None
    except _NOT_JSON:
        return None
    return b"".join(lines)


def _integer_lists(rows: list[Any]) -> pa.Array | None:
    """Lists of integers as list<int32>, or as list<int64> where a number needs it; None for other rows."""
    try:
        if any(_encode_lines(part).translate(None, _INTEGERS_IN_LISTS) for part in _parts(rows)):
            return None
        try:
            flat = _flat("I", rows)  # token ids; Python reads unsigned integers three times faster
        except OverflowError:
            flat = _flat("q", rows)
    except _NOT_JSON:
        return None
    numbers = np.frombuffer(flat, flat.typecode) if flat else np.zeros(0, np.int32)
    narrow = numbers.astype(np.int32)
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    return pa.LargeListArray.from_arrays(
        offsets, narrow if (narrow == numbers).all() else numbers.astype(np.int64)
    )


def _flat(typecode: str, rows: list[list[int]]) -> "array.array[int]":
    flat = array.array(typecode)
    for row in rows:
        flat.fromlist(row)
    return flat


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
    try:
        foreign = _foreign(value, "")
    except RecursionError:
        foreign = "a value that contains itself, or is nested without end"
    if foreign:
        raise TypeError(foreign)
    return utf8_json(value)


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


def decode(column: pa.Array, encoding: Encoding) -> np.ndarray:
    """The values that `encode` was given, as a 1-D object array."""
    if encoding == "json":
        values = _decode_lines(_data(column))
    elif encoding == "python-json":
        values = [json.loads(text) for text in column.to_pylist()]
    elif encoding == "list<int>":
        offsets, numbers = column.offsets.to_pylist(), column.values.to_numpy()
        values = [numbers[start:end].tolist() for start, end in itertools.pairwise(offsets)]
    else:
        values = column.to_pylist()
    return np.fromiter(values, dtype=object, count=len(values))


def _data(texts: pa.Array) -> memoryview:
    """The bytes of an array of texts, one after the other."""
    if not len(texts):
        return memoryview(b"")
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int64)[[texts.offset, texts.offset + len(texts)]]
    return memoryview(data)[ends[0] : ends[1]]
