"""Columns of JSON-like values in Parquet, such that `datasets` gives every value back as it was.

verl reads its files with `datasets.load_dataset("parquet")`. A column of objects is a struct there, and a
struct has one set of keys: rows that lack a key come back with the key and a null. So a column is kept as
typed Arrow only where all its values have one shape, and as JSON (Arrow's `arrow.json` type, which `datasets`
4.7 and later decode row by row) where they have not.

The parser that `datasets` decodes with does not round floats correctly and knows whole numbers up to 64 bits.
So a float is written in one of those decimals that every correct parser reads as this float, and that parser
too; `0.7379569346398113` for instance as `7.3795693463981130e-1`. What has no such decimal (a whole number
beyond 64 bits, most floats closer to zero than 1e-305) is written as text.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache, reduce
from typing import Any

import pyarrow as pa

from rl_assets.base.jsontext import join

_ATOMS: dict[type, pa.DataType] = {
    type(None): pa.null(),
    bool: pa.bool_(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
}
_DIGITS = (17, 18, 19)
"""17 name any float; a whole number of more than 19 is more than 64 bits hold."""


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
    """`values` as an array of a type that they were `widened` to.

    Raises:
        TypeError: bytes in a column of several shapes, for which JSON has no form.
    """
    if kind == pa.json_():
        texts = [None if value is None else json_text(value) for value in values]
        return pa.ExtensionArray.from_storage(kind, pa.array(texts, pa.string()))
    return pa.array(values, kind)


def json_text(value: Any) -> str:
    """JSON from which `datasets`, and any correct parser, read `value` back; numbers that have no such form
    are text in it (`numbers_as_text` names them)."""
    text = json.dumps(value, ensure_ascii=False)
    return text if json.dumps(_read(text), ensure_ascii=False) == text else _exact(value)


def numbers_as_text(value: Any, path: str) -> Iterator[str]:
    """The paths inside `value`, which is at `path`, of the numbers that `json_text` writes as text."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from numbers_as_text(item, join(path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from numbers_as_text(item, f"{path}[{index}]")
    elif type(value) in (int, float) and _number(value).startswith('"'):
        yield path


def _exact(value: Any) -> str:
    if isinstance(value, dict):
        items = (f"{json.dumps(key, ensure_ascii=False)}: {_exact(item)}" for key, item in value.items())
        return f"{{{', '.join(items)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_exact, value))}]"
    return _number(value) if type(value) in (int, float) else json.dumps(value, ensure_ascii=False)


def _number(value: int | float) -> str:
    """The first decimal of a number that `datasets` reads as this number; as text, where none was found."""
    plain = repr(value)
    decimals = _decimals(value) if type(value) is float else ()
    # By their text, since 1 == 1.0 and 0.0 == -0.0.
    read = (text for text in (plain, *decimals) if repr(_read(text)) == plain)
    return next(read, json.dumps(plain))


def _decimals(value: float) -> Iterator[str]:
    """Decimals that are read as `value` by whoever rounds correctly, the point in every place."""
    for count in _DIGITS:
        mantissa, exponent = f"{value:.{count - 1}e}".split("e")
        sign, digits = mantissa[: mantissa.index(".") - 1], mantissa.replace(".", "").lstrip("-")
        for place in range(1, count + 1):
            point = "." if place < count else ""
            yield f"{sign}{digits[:place]}{point}{digits[place:]}e{int(exponent) - place + 1}"


def _read(text: str) -> Any:
    """What `datasets` reads from JSON text; the text itself where it cannot, as `datasets` has it."""
    try:
        return _parser()(text)
    except ValueError:
        return text


@cache
def _parser() -> Callable[[str], Any]:
    from datasets.utils.json import ujson_loads

    return ujson_loads


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
    if pa.types.is_struct(one) and pa.types.is_struct(other) and one.names == other.names:
        return pa.struct([(field.name, _merged(field.type, other.field(field.name).type)) for field in one])
    raise MixedError
