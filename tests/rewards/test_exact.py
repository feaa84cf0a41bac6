"""Values that go into a Parquet column come out of `datasets` as they were."""

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_assets.trainset.exact import json_text, numbers_as_text, to_array, widened

INT64 = st.integers(-(2**63), 2**64 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
FLOATS = st.floats(allow_nan=False, allow_infinity=False) | st.floats(-1e3, 1e3) | st.floats(0, 1)
ATOMS = st.none() | st.booleans() | INT64 | st.integers() | FLOATS | TEXT
KEYS = (
    st.text("abc", min_size=1, max_size=2) | TEXT | st.sampled_from(["_type", "a.b", "id", "item", "bytes"])
)
VALUES = st.recursive(
    ATOMS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


def common_type(values: list[Any]) -> pa.DataType:
    return functools.reduce(widened, values, pa.null())


def loaded(folder: Path, values: list[Any]) -> list[Any]:
    """The values as `datasets` gives them back."""
    import datasets

    datasets.disable_progress_bars()
    path = str(folder / "x.parquet")
    pq.write_table(pa.table({"c": to_array(values, common_type(values))}), path)
    rows = datasets.load_dataset("parquet", data_files=path, cache_dir=str(folder / "cache"))["train"]
    return [row["c"] for row in rows]


def text(values: list[Any]) -> list[str]:
    return [json.dumps(value) for value in values]


def as_text(value: Any) -> Any:
    """The value with every number that no reader gives back written as text."""
    if isinstance(value, dict):
        return {key: as_text(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_text(item) for item in value]
    return repr(value) if [*numbers_as_text(value, "")] else value


@settings(max_examples=100, deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=4))
def test_every_json_value_comes_back(values: list[Any]) -> None:
    expected = list(map(as_text, values)) if common_type(values) == pa.json_() else values
    with tempfile.TemporaryDirectory() as folder:
        assert text(loaded(Path(folder), values)) == text(expected)


@settings(max_examples=2000, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_any_float_that_is_not_next_to_zero_is_a_number_for_every_reader(value: float) -> None:
    from datasets.utils.json import ujson_loads

    written = json_text([value])
    if value and abs(value) < 1e-305:
        assert float(json.loads(written)[0]) == value
    else:
        assert repr(json.loads(written)) == repr(ujson_loads(written)) == repr([value])


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**30, 5e-324, -1.5023566556454164e-308])
def test_a_number_that_no_reader_gives_back_is_text_and_is_named(number: float) -> None:
    value = {"a": [1, {"b c": number}], "d": 0.7379569346398113}
    assert json.loads(json_text(value)) == {"a": [1, {"b c": repr(number)}], "d": 0.7379569346398113}
    assert list(numbers_as_text(value, "x")) == ['x.a[1]["b c"]']


@pytest.mark.parametrize("number", [2**64 - 1, -(2**63), 0, -0.0, 0.1, 1e300, 1.7976931348623157e308, 1e-306])
def test_other_numbers_stay_numbers(number: float) -> None:
    assert not list(numbers_as_text(number, "x"))
    assert repr(json.loads(json_text({"a": number}))["a"]) == repr(number)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["a", None], pa.string()),
        ([1, 2], pa.int64()),
        ([1.5], pa.float64()),
        ([True], pa.bool_()),
        ([None], pa.null()),
        ([["a"], []], pa.list_(pa.string())),
        ([{"a": 1, "b": "x"}, {"a": 2, "b": None}], pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ([[{"role": "user"}], [{"role": None}]], pa.list_(pa.struct([("role", pa.string())]))),
    ],
    ids=str,
)
def test_values_of_one_shape_are_typed(values: list[Any], kind: pa.DataType) -> None:
    assert common_type(values) == kind


@pytest.mark.parametrize(
    "values",
    [
        [{"search": {}}],
        [{"search": 1}, {"calc": 1}],
        [{"a": 1}, {"a": 1, "b": None}],
        [{"a": 1, "b": 1}, {"b": 1, "a": 1}],
        [1, 1.0],
        [1, True],
        ["72", 72],
        ["72", ["72"]],
        [[1, "a"]],
        [2**63],
    ],
    ids=str,
)
def test_values_of_several_shapes_are_json(values: list[Any]) -> None:
    assert common_type(values) == pa.json_()


def test_a_key_that_only_some_rows_have_is_not_filled_with_null(tmp_path: Path) -> None:
    values = [{"tools_kwargs": {"search": {"k": 1}}}, {"tools_kwargs": {"calc": {"k": 2}}}]
    assert loaded(tmp_path, values) == values
