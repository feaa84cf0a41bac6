"""Columns of Python values go to Arrow and come back exactly, or are refused by key and row."""

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_assets.errors import InputError
from rl_assets.protocol.columns import decode, encode, exact_json
from rl_assets.protocol.fields import column
from rl_assets.protocol.values import deep_equal

texts = st.text(st.characters())  # unpaired surrogates included
scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=12)
columns = (
    st.lists(values)
    | st.lists(st.none() | st.integers(-(2**63), 2**63 - 1))
    | st.lists(st.none() | st.floats())
    | st.lists(st.none() | st.booleans())
    | st.lists(st.none() | st.text())
    | st.lists(st.none() | st.lists(st.integers(-(2**40), 2**40)))
    | st.lists(st.lists(st.integers(0, 49151)))
)


def there_and_back(rows: list[Any]) -> tuple[list[Any], str, pa.Array]:
    array, encoding = encode("key", column("key", rows))
    return list(decode(array, encoding)), encoding, array


def key_order(value: Any) -> Any:
    if isinstance(value, dict):
        return [(key, key_order(inner)) for key, inner in value.items()]
    return [key_order(inner) for inner in value] if isinstance(value, list) else None


@given(columns)
def test_every_value_comes_back_as_it_was(rows: list[Any]) -> None:
    back, _, _ = there_and_back(rows)
    assert deep_equal(back, rows)
    assert key_order(back) == key_order(rows)
    assert [np.signbit(v) for v in back if isinstance(v, float)] == [
        np.signbit(v) for v in rows if isinstance(v, float)
    ]


@given(columns)
def test_equal_columns_give_equal_bytes(rows: list[Any]) -> None:
    one, two = (there_and_back(rows)[2] for _ in range(2))
    assert [b and b.to_pybytes() for b in one.buffers()] == [b and b.to_pybytes() for b in two.buffers()]


@pytest.mark.parametrize(
    ("rows", "encoding", "arrow"),
    [
        (["a", None, "日本 🙂"], "string", pa.large_string()),
        ([1, None, -(2**63)], "int64", pa.int64()),
        ([1.5, None, float("nan")], "float64", pa.float64()),
        ([True, None, False], "bool", pa.bool_()),
        ([[1, 2], []], "list<int>", pa.large_list(pa.int32())),
        ([[], []], "list<int>", pa.large_list(pa.int32())),
        ([[1, 2], None], "json", pa.large_string()),
        ([[[1]], [[2]]], "json", pa.large_string()),
        ([[2**63]], "json", pa.large_string()),
        ([[1], [2**40]], "list<int>", pa.large_list(pa.int64())),
        ([1, True], "json", pa.large_string()),
        ([1, 1.0], "json", pa.large_string()),
        ([2**63], "json", pa.large_string()),
        ([[1, None]], "json", pa.large_string()),
        ([[True]], "json", pa.large_string()),
        ([{"a": [1, 1.0, "x", None]}], "json", pa.large_string()),
        ([{"a": float("nan")}], "python-json", pa.large_string()),
        (["\ud800"], "python-json", pa.large_string()),
        ([None, None], "string", pa.large_string()),
        ([], "string", pa.large_string()),
    ],
)
def test_columns_are_typed_where_their_values_allow(
    rows: list[Any], encoding: str, arrow: pa.DataType
) -> None:
    back, found, array = there_and_back(rows)
    assert (found, array.type) == (encoding, arrow)
    assert deep_equal(back, rows)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ((1, 2), "a builtins.tuple"),
        ({"a": [{"b": (1,)}]}, r"a builtins.tuple at a\[0\].b"),
        ({"a": {1: 2}}, r"the key 1 \(int\) at a"),
        ({1: 2, 2: 3}, r"the key 1 \(int\)"),
        (b"bytes", "a builtins.bytes"),
        ({"when": datetime.date(2024, 1, 1)}, "a datetime.date at when"),
        ([{1, 2}], r"a builtins.set at \[0\]"),
        ({"score": np.float64(1.0)}, "a numpy.float64 at score"),
        (np.zeros(2), "a numpy.ndarray"),
        (object(), "a builtins.object"),
    ],
)
def test_what_json_cannot_give_back_is_refused_by_key_and_row(value: Any, found: str) -> None:
    rows = np.empty(2, dtype=object)
    rows[0], rows[1] = {"fine": 1}, value
    with pytest.raises(InputError, match=rf"row 1: field `extra_info`: found {found}") as caught:
        encode("extra_info", rows)
    assert (caught.value.row, caught.value.field) == (1, "extra_info")


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InputError, match="row 0: field `x`: found a value that contains itself"):
        encode("x", column("x", [loop]))


@given(values)
def test_exact_json_decodes_to_the_same_value(value: Any) -> None:
    import json

    assert deep_equal(json.loads(exact_json(value).encode()), value)
