"""Columns of JSON-like values in Parquet, such that `datasets` gives every value back as it was.

verl reads its files with `datasets.load_dataset("parquet")`. A column of objects is a struct there, and a
struct has one set of keys: rows that lack a key come back with the key and a null. So a column is kept as
typed Arrow only where all its values have one shape, and as JSON (Arrow's `arrow.json` type, which `datasets`
4.7 and later decode row by row) where they have not.
"""

import json
from collections.abc import Sequence
from functools import reduce
from typing import Any

import pyarrow as pa

_ATOMS: dict[type, pa.DataType] = {
    type(None): pa.null(),
    bool: pa.bool_(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
}


class MixedError(ValueError):
    """Values that no single Arrow type holds exactly."""


def widened(kind: pa.DataType, value: Any) -> pa.DataType:
    """The Arrow type that holds exactly what `kind` holds (`null()`: nothing yet), and `value` too; `json_()`
    where they have no shape in common."""
    try:
        return kind if kind == pa.json_() else _merged(kind, _type_of(value))
    except MixedError:
        return pa.json_()


def to_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """`values` as an array of a type that they were `widened` to."""
    if kind == pa.json_():
        texts = [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]
        return pa.ExtensionArray.from_storage(kind, pa.array(texts, pa.string()))
    return pa.array(values, kind)


def survives_json(value: Any) -> bool:
    """Whether `datasets` decodes the JSON of `value` to the same value.

    It does not where a float has more digits than its parser reads exactly, or a whole number more than 64
    bits; and bytes have no JSON.
    """
    from datasets.utils.json import ujson_loads

    try:
        text = json.dumps(value)
        return json.dumps(ujson_loads(text)) == text
    except (TypeError, ValueError):
        return False


def _type_of(value: Any) -> pa.DataType:
    if type(value) in _ATOMS:
        return _ATOMS[type(value)]
    if type(value) is int and value.bit_length() < 64:
        return pa.int64()
    if type(value) is list:
        return pa.list_(reduce(_merged, map(_type_of, value), pa.null()))
    if type(value) is dict and value:  # Parquet has no struct without fields
        return pa.struct([(key, _type_of(item)) for key, item in value.items()])
    raise MixedError


def _merged(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if one.equals(other) or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(_merged(one.value_type, other.value_type))
    if pa.types.is_struct(one) and pa.types.is_struct(other) and _keys(one) == _keys(other):
        return pa.struct([(field.name, _merged(field.type, other.field(field.name).type)) for field in one])
    raise MixedError


def _keys(struct: pa.StructType) -> set[str]:
    return {field.name for field in struct}
