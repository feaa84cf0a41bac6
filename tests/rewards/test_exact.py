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

from rl_assets.rewards.exact import survives_json, to_array, widened

INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
ATOMS = st.none() | st.booleans() | INT64 | st.floats(allow_nan=False, allow_infinity=False) | TEXT
KEYS = st.text("abc", min_size=1, max_size=2)
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
    return [json.dumps(value, sort_keys=True) for value in values]


@settings(max_examples=25, deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=4))
def test_every_json_value_survives_or_is_known_not_to(values: list[Any]) -> None:
    if common_type(values) == pa.json_() and not all(map(survives_json, values)):
        return
    with tempfile.TemporaryDirectory() as folder:
        assert text(loaded(Path(folder), values)) == text(values)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["a", None], pa.string()),
        ([1, 2], pa.int64()),
        ([1.5], pa.float64()),
        ([True], pa.bool_()),
        ([None], pa.null()),
        ([["a"], []], pa.list_(pa.string())),
        ([{"a": 1, "b": "x"}, {"b": None, "a": 2}], pa.struct([("a", pa.int64()), ("b", pa.string())])),
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


@pytest.mark.parametrize(
    ("value", "survives"),
    [(0.1, True), (1e300, True), (2**63, True), (0.7379569346398113, False), (2**70, False), (b"x", False)],
    ids=str,
)
def test_numbers_that_do_not_survive_json_are_known(value: Any, survives: bool) -> None:
    assert survives_json([{"a": value}]) is survives
