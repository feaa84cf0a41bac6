"""Record batches as plain rows."""

import base64
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.types as types

from rl_assets.base.jsontext import MAX_ROW_VALUES, decode, is_plain
from rl_assets.contract.rules.code import Finding

_JSON_EXTENSION = "arrow.json"
_UNREADABLE = (ValueError, KeyError, OverflowError, pa.ArrowException, msgspec.DecodeError, RecursionError)


def batch_rows(batch: pa.RecordBatch) -> Iterator[tuple[dict[str, Any] | None, Finding | None]]:
    """Each row of `batch` as a dict of Python values, and a finding where a value cannot be one.

    Values are those of `RecordBatch.to_pylist`, except that maps are dicts and columns of Arrow's JSON type
    are decoded. A row that cannot be read (text that is not UTF-8, a timestamp out of range) comes as
    ``{"$arrow": <base64 of an Arrow stream of that row>}``, so that nothing of it is lost; one of too many
    values comes as None.
    """
    if sum(map(_num_values, batch.columns)) > MAX_ROW_VALUES:
        for index in range(batch.num_rows):
            yield _single_row(batch.slice(index, 1))
        return
    try:
        rows = _rows(batch)
    except _UNREADABLE:
        for index in range(batch.num_rows):
            yield _single_row(batch.slice(index, 1))
    else:
        for row in rows:
            yield row, None


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    names = batch.schema.names
    columns = [_values(column) for column in batch.columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _single_row(batch: pa.RecordBatch) -> tuple[dict[str, Any] | None, Finding | None]:
    if (values := sum(map(_num_values, batch.columns))) > MAX_ROW_VALUES:
        message = f"found a row of {values:,} values, expected at most {MAX_ROW_VALUES:,}"
        return None, Finding("file.row_too_large", None, message)
    try:
        return _rows(batch)[0], None
    except UnicodeDecodeError as error:
        finding = Finding("text.not_utf8", None, f"found text that is not UTF-8 ({error.reason})")
    except _UNREADABLE as error:
        finding = Finding("value.not_json", None, f"found a value that cannot be read ({error})")
    return {"$arrow": _stream(batch)}, finding


def _num_values(array: pa.Array) -> int:
    """How many values the array holds at every depth, nulls too."""
    kind = array.type
    if types.is_struct(kind):
        return sum(_num_values(array.field(index)) for index in range(kind.num_fields))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return len(array) + _num_values(array.flatten())
    if types.is_map(kind):
        return len(array) + _num_values(array.items.slice(*_bounds(array)))
    return len(array)


def _bounds(array: pa.Array) -> tuple[int, int]:
    """Where the items of a list array begin, and how many they are."""
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    return first, last - first


def repeated_name(fields: pa.Schema | pa.StructType) -> str | None:
    """The path of a column whose name occurs twice beside each other, at any depth, or None."""
    seen: set[str] = set()
    for field in fields:
        if field.name in seen:
            return field.name
        seen.add(field.name)
        kind = field.type
        while not types.is_struct(kind) and types.is_nested(kind):
            kind = kind.field(kind.num_fields - 1).type  # what a list holds
        if types.is_struct(kind) and (inner := repeated_name(kind)) is not None:
            return f"{field.name}.{inner}"
    return None


def _stream(batch: pa.RecordBatch) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return base64.b64encode(sink.getvalue()).decode()


def _values(array: pa.Array) -> list[Any]:
    """The array's values in Python, column by column: several times faster than row by row."""
    kind = array.type
    if types.is_string(kind) or types.is_large_string(kind):
        try:
            return array.to_numpy(zero_copy_only=False).tolist()
        except pa.ArrowException:  # Says less about bad UTF-8 than the UnicodeDecodeError of the slow way.
            return array.to_pylist()
    if types.is_struct(kind):
        return _structs(array)
    if types.is_list(kind) or types.is_large_list(kind):
        return _lists(array)
    if types.is_dictionary(kind):
        return _values(array.dictionary_decode())
    if isinstance(kind, pa.BaseExtensionType):
        values = _values(array.storage)
        if kind.extension_name == _JSON_EXTENSION:
            return [None if text is None else _decoded(text) for text in values]
        return values
    if (types.is_integer(kind) or types.is_boolean(kind)) and not array.null_count:
        return array.to_numpy(zero_copy_only=False).tolist()
    return array.to_pylist(maps_as_pydicts="strict")


def holds_objects(kind: pa.DataType) -> bool:
    """Whether values of the type hold objects of fixed keys, of which absent ones are null."""
    if types.is_struct(kind):
        return True
    return types.is_nested(kind) and any(holds_objects(kind.field(at).type) for at in range(kind.num_fields))


def _decoded(text: str) -> Any:
    value = decode(text)
    if not is_plain(value):
        raise ValueError("JSON text nested too deeply")
    return value


def _structs(array: pa.StructArray) -> list[Any]:
    names = [field.name for field in array.type]
    if not names:
        values: list[Any] = [{} for _ in range(len(array))]
    else:
        fields = [_values(array.field(index)) for index in range(len(names))]
        values = [dict(zip(names, item, strict=True)) for item in zip(*fields, strict=True)]
    return _with_nulls(array, values)


def _lists(array: pa.ListArray) -> list[Any]:
    offsets = array.offsets.to_numpy().tolist()
    first = offsets[0]
    items = _values(array.values.slice(*_bounds(array)))
    bounds = pairwise(offsets)
    return _with_nulls(array, [items[start - first : end - first] for start, end in bounds])


def _with_nulls(array: pa.Array, values: list[Any]) -> list[Any]:
    if array.null_count:
        for index in array.is_null().to_numpy(zero_copy_only=False).nonzero()[0].tolist():
            values[index] = None
    return values
