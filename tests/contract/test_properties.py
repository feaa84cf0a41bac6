"""Wild rows: no row makes the contract fail, none is lost, and what is accepted comes out as it went in."""

import contextlib
import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from rl_assets.contract.files.arrow_rows import batch_rows
from rl_assets.contract.rules.codes import CODES
from rl_assets.contract.rules.options import RESERVED_COLUMNS, ContractOptions
from rl_assets.contract.schema import decode_row
from rl_assets.errors import InputError
from tests.contract.rows import ABSENT, judge, row, run
from tests.contract.test_reading import ARRAY, LINES, ROWS, parquet, zstd

QUICK = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
OPTIONS = ContractOptions()
MINE = {"known_data_sources": ("mine",)}
FILES = {
    "a.jsonl": LINES,
    "a.json": ARRAY,
    "a.parquet": parquet(ROWS * 20),
    "a.jsonl.gz": gzip.compress(LINES),
    "a.jsonl.zst": zstd(LINES),
    "a.parquet.gz": gzip.compress(parquet(ROWS)),
}

# Text with lone surrogates, NaN and integers of any size: all that a json file can hold.
atoms = (
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.sampled_from(
        ["<image>", "<img>", "user", "system", "text", "image", "openai/gsm8k", "http://[", "\ud83d"]
    )
)
values = st.recursive(
    atoms,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(st.characters(), max_size=6) | st.sampled_from(["role", "content", "type"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)
columns = [
    "prompt", "data_source", "ability", "reward_model", "extra_info", "images", "videos", "audios", "uid",
    "agent_name", "tools", "index", "level",
]  # fmt: skip
wild_rows = st.dictionaries(st.sampled_from(columns) | st.text(max_size=5), values, max_size=6)
roles = st.sampled_from(["system", "user", "assistant", "tool", "human"])
wild_messages = st.fixed_dictionaries(
    {"role": roles | values, "content": values},
    optional={"tool_calls": values, "name": values, "reasoning_content": values},
)
json_texts = values.map(json.dumps) | st.sampled_from(["", "[", '{"a": 1, "a": 2}', "9" * 5000, "[" * 3000])
wild_functions = st.fixed_dictionaries({"name": values | st.just("f"), "arguments": values | json_texts})
wild_calls = st.lists(
    st.fixed_dictionaries({"function": wild_functions}) | wild_functions | values, max_size=2
)
wild_messages |= st.fixed_dictionaries({"role": roles, "content": values, "tool_calls": wild_calls})
wild_tools = st.lists(wild_functions | json_texts | values, max_size=2) | json_texts
wild_prompts = st.lists(wild_messages | values, max_size=3)
# Rows that are nearly good, so that wild values get past the first rules.
nearly_good = st.builds(
    lambda changes: row(**changes),
    st.dictionaries(
        st.sampled_from(columns), values | wild_prompts | wild_tools | st.just(ABSENT), max_size=3
    ),
)

plain_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | plain_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain_text, inner, max_size=3),
    max_leaves=8,
)
questions = plain_text.filter(lambda text: text.strip() and not {"<", "["} & set(text))
good_rows = st.builds(
    lambda question, truth, info, extra: row(
        prompt=[{"role": "user", "content": question}],
        data_source="mine",
        reward_model={"ground_truth": truth},
        extra_info={"index": 1, **info},
        **extra,
    ),
    questions,
    plain.filter(lambda truth: truth is not None),
    st.dictionaries(plain_text.filter(lambda key: key != "index"), plain, max_size=3),
    st.dictionaries(
        plain_text.filter(
            lambda name: name not in OPTIONS.fields | OPTIONS.reserved | {"agent_name", "tools"}
        ),
        plain,
        max_size=3,
    ),
)


@QUICK
@given(
    rows=st.lists(wild_rows | nearly_good | values, min_size=1, max_size=6), columnar_options=st.booleans()
)
def test_wild_json_rows_are_accepted_or_rejected_and_never_lost(
    rows: list[Any], columnar_options: bool
) -> None:
    # A file that is one array of objects holds the rows of that array.
    assume(not (len(rows) == 1 and isinstance(rows[0], list) and rows[0] and isinstance(rows[0][0], dict)))
    repairs = {
        "drop_nulls": columnar_options,
        "wrap_scalars": columnar_options,
        "parse_json": columnar_options,
    }
    with tempfile.TemporaryDirectory() as folder:
        result = judge(Path(folder), *rows, **repairs)
        positions = [
            record["source_row"]
            for table in (result.accepted, result.rejected)
            for record in table.rows(("source_row",))
        ]
        assert sorted(positions) == list(range(len(rows)))
        for record in result.rejected.rows():
            assert all(error["code"] in CODES for error in record["errors"])
            assert record["code"] == record["errors"][0]["code"]
            assert record["row"] == json.dumps(rows[record["source_row"]])
        assert len({record["uid"] for record in result.accepted.rows()}) == result.accepted_rows


@QUICK
@given(rows=st.lists(good_rows, min_size=1, max_size=4))
def test_accepted_rows_come_out_of_json_as_they_went_in(rows: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        result = judge(Path(folder), *rows, **MINE)
        assert result.rejected_rows == 0
        out = [decode_row(record) for record in result.accepted.rows()]
    for one, back in zip(rows, out, strict=True):
        del back["uid"]
        assert repr(sorted(back.items())) == repr(sorted(one.items()))


@QUICK
@given(rows=st.lists(good_rows, min_size=1, max_size=4))
def test_what_is_accepted_is_accepted_again_unchanged(rows: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        first = [decode_row(record) for record in judge(Path(folder), *rows, **MINE).accepted.rows()]
        again = [decode_row(record) for record in judge(Path(folder), *first, **MINE).accepted.rows()]
    assert again == first


arrow_types = st.recursive(
    st.sampled_from(
        [
            pa.string(),
            pa.large_string(),
            pa.int64(),
            pa.int8(),
            pa.float64(),
            pa.bool_(),
            pa.null(),
            pa.binary(),
        ]
    ),
    lambda inner: (
        inner.map(pa.list_)
        | inner.map(pa.large_list)
        | st.lists(inner, max_size=3).map(
            lambda kinds: pa.struct([(f"f{n}", kind) for n, kind in enumerate(kinds)])
        )
    ),
    max_leaves=5,
)


def of_type(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of an Arrow type, nulls among them."""
    if pa.types.is_struct(kind):
        some: st.SearchStrategy[Any] = st.fixed_dictionaries(
            {field.name: of_type(field.type) for field in kind}
        )
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        some = st.lists(of_type(kind.value_type), max_size=3)
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        some = plain_text
    else:
        some = {
            pa.int64(): st.integers(-(2**63), 2**63 - 1),
            pa.int8(): st.integers(-128, 127),
            pa.float64(): st.floats(allow_nan=False),
            pa.bool_(): st.booleans(),
            pa.null(): st.none(),
            pa.binary(): st.binary(max_size=5),
        }[kind]
    return st.none() | some


@QUICK
@given(data=st.data(), kind=arrow_types, start=st.integers(0, 3), length=st.integers(0, 4))
def test_the_column_wise_reader_equals_arrows_own(
    data: st.DataObject, kind: pa.DataType, start: int, length: int
) -> None:
    array = pa.array(data.draw(st.lists(of_type(kind), min_size=7, max_size=7)), kind)
    batch = pa.record_batch({"a": array, "b": list(range(7))}).slice(start, length)
    assert repr([value for value, _ in batch_rows(batch)]) == repr(batch.to_pylist())


@QUICK
@given(
    contents=st.lists(
        st.one_of(
            questions.map(lambda text: [{"type": "text", "text": text}]),
            questions.map(
                lambda text: [{"type": "text", "text": text, "note": text}, {"type": "text", "text": "b"}]
            ),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_parts_come_out_of_parquet_as_they_went_in(contents: list[Any]) -> None:
    rows = [
        row(prompt=[{"role": "user", "content": content}], extra_info={"index": index})
        for index, content in enumerate(contents)
    ]
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(pa.Table.from_pylist(rows), Path(folder) / "train.parquet")
        result = run(Path(folder), "train.parquet")
        out = [decode_row(record) for record in result.accepted.rows()]
    assert [one["prompt"] for one in out] == [one["prompt"] for one in rows]


def broken(data: bytes, edits: list[tuple[int, bytes, int]]) -> bytes:
    """`data` after `edits`: at a place, bytes are put in and a number of bytes taken out."""
    for place, put, taken in edits:
        at = place % (len(data) + 1)
        data = data[:at] + put + data[at + taken :]
    return data


edits = st.lists(
    st.tuples(st.integers(0, 10**6), st.binary(max_size=8), st.integers(0, 300)), min_size=1, max_size=4
)


@QUICK
@given(name=st.sampled_from(sorted(FILES)), edits=edits)
def test_damaged_files_give_rows_with_reasons_or_one_error(
    name: str, edits: list[tuple[int, bytes, int]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / name).write_bytes(broken(FILES[name], edits))
        with contextlib.suppress(InputError):
            result = run(Path(folder), name)
            rows = [
                record["source_row"]
                for table in (result.accepted, result.rejected)
                for record in table.rows(("source_row",))
            ]
            assert sorted(rows) == list(range(result.rows_in))


def test_every_reserved_name_is_a_name_that_verl_uses_for_itself() -> None:
    assert {"raw_prompt", "index", "tools_kwargs", "dummy_tensor", "input_ids", "acc"} <= RESERVED_COLUMNS
    assert not RESERVED_COLUMNS & {"prompt", "data_source", "reward_model", "extra_info", "uid", "agent_name"}
