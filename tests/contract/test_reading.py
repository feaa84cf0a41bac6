"""Reading: every format, every writer, every kind of damage, and values that come out as they went in."""

import gzip
import io
import json
import re
import time
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_assets.contract.files.reading import read_rows
from rl_assets.errors import InputError
from tests.contract.rows import ABSENT, accepted, errors, judge, png, row, run, said, write_jsonl

ROWS = [said(f"What is {number} + 1?", extra_info={"index": number, "note": "é中😀"}) for number in range(5)]


def zstd(data: bytes) -> bytes:
    return pa.Codec("zstd").compress(data, asbytes=True)


def parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


LINES = b"".join(json.dumps(one, ensure_ascii=False).encode() + b"\n" for one in ROWS)
ARRAY = json.dumps(ROWS).encode()


@pytest.mark.parametrize("squeeze", [("", bytes), (".gz", gzip.compress), (".zst", zstd)], ids=lambda x: x[0])
@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("train.jsonl", LINES),
        ("train.JSONL", b"\xef\xbb\xbf" + LINES + b"\n   \n"),
        ("train.ndjson", LINES.replace(b"\n", b"\r\n\r\n")),
        ("lines.json", LINES),
        ("array.json", ARRAY),
        ("pretty.json", b"\xef\xbb\xbf\n " + json.dumps(ROWS, indent=2).encode() + b"\n\n"),
        ("records.json", json.dumps({"version": "1.0", "data": ROWS}).encode()),
        ("array.jsonl", ARRAY),
        ("pretty.jsonl", json.dumps(ROWS, indent=2).encode()),
        ("concatenated.json", "\n".join(json.dumps(one, indent=1) for one in ROWS).encode()),
        ("train.Parquet", parquet(ROWS)),
    ],
)
def test_every_format_and_compression_gives_the_same_rows(
    tmp_path: Path, name: str, data: bytes, squeeze: tuple[str, Any]
) -> None:
    suffix, compress = squeeze
    (tmp_path / (name + suffix)).write_bytes(compress(data))
    result = run(tmp_path, name + suffix)
    assert accepted(result) == ROWS
    assert [one["source_row"] for one in result.accepted.rows(("source_row",))] == list(range(5))


def test_a_single_object_is_one_row(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text(json.dumps(ROWS[0], indent=2))
    assert accepted(run(tmp_path, "train.json")) == ROWS[:1]


def test_a_long_array_is_read_in_pieces(tmp_path: Path) -> None:
    many = [said(f"{number} " + "x" * 3000, extra_info={"index": number}) for number in range(1500)]
    (tmp_path / "train.json").write_text(json.dumps(many))
    assert accepted(run(tmp_path, "train.json")) == many


def test_a_malformed_line_costs_one_row(tmp_path: Path) -> None:
    torn = json.dumps(ROWS[3]).encode()[:40]
    result = judge(tmp_path, ROWS[0], b'{"a": 1,}', ROWS[1], b"[1, 2]", b"null", b"\xff\xfe", torn)
    assert accepted(result) == ROWS[:2]
    rejected = list(result.rejected.rows())
    assert [(one["source_row"], one["stage"], one["code"]) for one in rejected] == [
        (1, "read", "file.malformed_line"),
        (3, "read", "row.not_an_object"),
        (4, "read", "row.not_an_object"),
        (5, "read", "text.not_utf8"),
        (6, "read", "file.malformed_line"),
    ]
    assert "line 2" in rejected[0]["message"]
    assert rejected[0]["row"] == '{"a": 1,}'
    assert rejected[3]["row"] == '{"$bytes":"//4K"}'
    assert rejected[4]["row"] == torn.decode()


def test_an_array_in_the_first_line_costs_one_row(tmp_path: Path) -> None:
    result = judge(tmp_path, json.dumps(ROWS[:2]).encode(), *ROWS[2:])
    assert accepted(result) == ROWS[2:]
    assert errors(result) == [("row.not_an_object", None)]


def test_blank_lines_are_no_rows(tmp_path: Path) -> None:
    result = judge(tmp_path, b"", ROWS[0], b"  ", b"{", b"", ROWS[1])
    assert [one["source_row"] for one in result.accepted.rows()] == [0, 2]
    assert "line 4" in result.rejected.head(1)[0]["message"]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b'{"a": 1, "a": 2}', "row.duplicate_key"),
        (b'{"x": {"a": "1", "b": [{"c": 1, "c": "\\u0022"}]}}', "row.duplicate_key"),
        (b'{"a": ' + b"[" * 3000 + b"]" * 3000 + b"}", "value.too_deep"),
        (b'{"a": ' + b"9" * 5000 + b"}", "value.not_json"),
    ],
)
def test_lines_that_no_reader_gives_back_whole(tmp_path: Path, line: bytes, code: str) -> None:
    result = judge(tmp_path, ROWS[0], line)
    assert [found for found, _ in errors(result)] == [code]
    assert result.rejected.head(1)[0]["row"] == line.decode()


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (b"NaN", ("value.not_finite", "extra_info.x[0]")),
        (b"-Infinity", ("value.not_finite", "extra_info.x[0]")),
        (b"1e999", ("value.not_finite", "extra_info.x[0]")),
        (b'"\\ud83d"', ("text.lone_surrogate", "extra_info.x[0]")),
        (b'{"\\udc00": 1}', ("text.lone_surrogate", "extra_info.x[0] (key)")),
        (b"[" * 80 + b"]" * 80, ("value.too_deep", "extra_info.x[0]" + "[0]" * 62)),
    ],
)
def test_odd_values_are_found_with_their_path(tmp_path: Path, value: bytes, error: tuple[str, str]) -> None:
    line = json.dumps(row(extra_info={"index": 1, "x": ["@"]})).encode().replace(b'"@"', value)
    result = judge(tmp_path, line)
    assert errors(result) == [error]
    assert result.rejected.head(1)[0]["row"] == line.decode()


@pytest.mark.parametrize(
    "value", ["2024-01-01", 2**63, -(2**90), 1e20, 0.1, 1.0, -0.0, "\u2028\x00", '"', "", {}, [], {"a": None}]
)
def test_values_come_out_as_they_went_in(tmp_path: Path, value: object) -> None:
    good = row(extra_info={"index": 1, "x": value}, extra=value)
    (out,) = accepted(judge(tmp_path, good))
    assert out == good
    assert repr(out["extra"]) == repr(value)


def test_key_order_is_kept(tmp_path: Path) -> None:
    good = row(extra_info={"z": 1, "index": 1, "a": {"y": 1, "b": 2}})
    assert json.dumps(accepted(judge(tmp_path, good))[0]["extra_info"]) == json.dumps(good["extra_info"])


def test_types_may_differ_from_row_to_row(tmp_path: Path) -> None:
    mixed = [
        said(
            str(truth), data_source="mine", reward_model={"ground_truth": truth}, extra_info={"index": index}
        )
        for index, truth in enumerate(["72", 72, ["72"], {"target": "72"}, 7.5, True])
    ]
    assert accepted(judge(tmp_path, *mixed, known_data_sources=("mine",))) == mixed


def test_an_array_that_breaks_off_gives_the_rows_before(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_bytes(ARRAY[: -len(json.dumps(ROWS[-1])) // 2])
    result = run(tmp_path, "train.json")
    assert accepted(result) == ROWS[:4]
    assert errors(result) == [("file.malformed", None)]


@pytest.mark.parametrize("tail", [b"] {}", b"  x"])
def test_an_array_with_something_after_it(tmp_path: Path, tail: bytes) -> None:
    (tmp_path / "train.json").write_bytes(ARRAY[:-1] + tail)
    result = run(tmp_path, "train.json")
    assert accepted(result) == ROWS
    assert errors(result) == [("file.malformed", None)]


@pytest.mark.parametrize("squeeze", [(".gz", gzip.compress), (".zst", zstd)], ids=lambda x: x[0])
def test_a_compressed_file_that_breaks_off_gives_the_rows_before(
    tmp_path: Path, squeeze: tuple[str, Any]
) -> None:
    suffix, compress = squeeze
    # Text that does not compress, so that half of the file is half of the rows.
    rows = [said(png(40, 40).hex() + str(n), extra_info={"index": n}) for n in range(200)]
    write_jsonl(tmp_path / "plain", rows)
    whole = compress((tmp_path / "plain").read_bytes())
    (tmp_path / f"train.jsonl{suffix}").write_bytes(whole[: len(whole) - 20])
    result = run(tmp_path, f"train.jsonl{suffix}")
    assert accepted(result) == rows[: result.accepted_rows]
    assert errors(result)[-1] == ("file.corrupt", None)


def test_a_damaged_row_group_costs_its_rows_and_no_more(tmp_path: Path) -> None:
    rows = [said(f"{n}: {png(20, 20).hex()}", extra_info={"index": n}) for n in range(30)]
    path = tmp_path / "train.parquet"
    pq.write_table(
        pa.Table.from_pylist(rows), path, row_group_size=10, compression="zstd", use_dictionary=False
    )
    column = pq.ParquetFile(path).metadata.row_group(1).column(1)
    data = bytearray(path.read_bytes())
    start = column.data_page_offset
    data[start + 60 : start + column.total_compressed_size] = b"\x00" * (column.total_compressed_size - 60)
    path.write_bytes(data)
    result = run(tmp_path, "train.parquet")
    assert accepted(result) == rows[:10] + rows[20:]
    assert errors(result) == [("file.corrupt", None)] * 10
    assert "row group 1" in result.rejected.head(1)[0]["message"]


def test_text_in_parquet_that_is_not_utf8_costs_its_row(tmp_path: Path) -> None:
    table = pa.Table.from_pylist(ROWS[:3])
    bad = pa.Array.from_buffers(pa.string(), 3, pa.array([b"math", b"\xff\xfe", b"math"]).buffers())
    pq.write_table(table.set_column(2, "ability", bad), tmp_path / "train.parquet")
    result = run(tmp_path, "train.parquet")
    assert accepted(result) == [ROWS[0], ROWS[2]]
    assert errors(result) == [("text.not_utf8", None)]
    stream = json.loads(result.rejected.head(1)[0]["row"])["$arrow"]
    assert len(stream) > 100


def test_timestamps_and_other_foreign_values_are_named(tmp_path: Path) -> None:
    table = pa.Table.from_pylist(ROWS[:1])
    for name, value in (
        ("when", pd.Timestamp("2024-01-01")),
        ("raw", b"\x00"),
        ("day", pd.Timestamp("2024-01-01").date()),
    ):
        table = table.append_column(name, pa.array([value]))
    pq.write_table(table, tmp_path / "train.parquet")
    result = run(tmp_path, "train.parquet")
    assert errors(result) == [
        ("value.not_json", "when"),
        ("value.not_json", "raw"),
        ("value.not_json", "day"),
    ]
    kept = json.loads(result.rejected.head(1)[0]["row"])
    assert kept["raw"] == {"$bytes": "AA=="}
    assert kept["prompt"] == ROWS[0]["prompt"]


def test_files_of_every_writer_mix(tmp_path: Path) -> None:
    def three(start: int, **changes: Any) -> list[dict[str, Any]]:
        return [said(f"{start + n}?", **({"extra_info": {"index": start + n}} | changes)) for n in range(3)]

    by_pandas, by_pyarrow, by_polars, by_datasets, by_json = (
        three(0),
        three(10),
        three(20),
        three(30),
        three(40),
    )
    null_first = three(50, extra_info=None)
    no_column = three(60, ability=ABSENT)
    pd.DataFrame(by_pandas).to_parquet(tmp_path / "b-pandas.parquet")
    pq.write_table(pa.Table.from_pylist(by_pyarrow), tmp_path / "c-pyarrow.parquet")
    pl.DataFrame(by_polars).write_parquet(tmp_path / "d-polars.parquet")
    datasets.Dataset.from_list(by_datasets).to_parquet(tmp_path / "e-datasets.parquet")
    mixed = [
        one | {"extra_info": one["extra_info"] | {"x": x}}
        for one, x in zip(three(70), [1, "a", [2]], strict=True)
    ]
    datasets.Dataset.from_list(mixed, on_mixed_types="use_json").to_parquet(tmp_path / "f-mixed.parquet")
    write_jsonl(tmp_path / "g-lines.jsonl", by_json)
    pq.write_table(pa.Table.from_pylist(null_first), tmp_path / "a-null.parquet")
    pq.write_table(pa.Table.from_pylist(no_column), tmp_path / "h-absent.parquet")
    out = accepted(run(tmp_path, [str(tmp_path)]))
    assert out[:3] == [one | {"extra_info": {"index": n}} for n, one in enumerate(null_first)]
    assert out[3:] == [*by_pandas, *by_pyarrow, *by_polars, *by_datasets, *mixed, *by_json, *no_column]


def test_arrow_types_of_all_widths_are_read(tmp_path: Path) -> None:
    table = pa.Table.from_pylist(ROWS[:2])
    strange: dict[str, pa.Array] = {
        "large": pa.array(["a", None], pa.large_string()),
        "view": pa.array(["a", None], pa.string_view()),
        "category": pa.array(["a", "b"]).dictionary_encode(),
        "small": pa.array([1, None], pa.int8()),
        "half": pa.array([0.5, 1.5], pa.float32()),
        "flags": pa.array([[True], None], pa.large_list(pa.bool_())),
        "pair": pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)),
        "map": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
    }
    for name, array in strange.items():
        table = table.append_column(name, array)
    pq.write_table(table, tmp_path / "train.parquet")
    first, second = accepted(run(tmp_path, "train.parquet"))
    assert {name: first[name] for name in strange} == {
        "large": "a",
        "view": "a",
        "category": "a",
        "small": 1,
        "half": 0.5,
        "flags": [True],
        "pair": [1, 2],
        "map": {"k": 1},
    }
    assert (second["large"], second["small"], second["flags"], second["map"]) == (None, None, None, {})


def test_a_file_on_another_file_system_is_read(tmp_path: Path) -> None:
    import fsspec

    with fsspec.open("memory://bucket/set/train.jsonl", "wb") as stream:
        stream.write(LINES)
    with fsspec.open("memory://bucket/set/more.parquet", "wb") as stream:
        stream.write(parquet([said("more")]))
    assert accepted(run(tmp_path, "memory://bucket/set/*.jsonl")) == ROWS
    assert len(accepted(run(tmp_path, "memory://bucket/set"))) == 6


def test_memory_holds_one_row_of_a_long_file(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", ROWS)
    rows = read_rows("train.jsonl", "jsonl", tmp_path)
    assert next(rows).value == ROWS[0]
    rows.close()


X = pa.array([1, 2])
TWICE = pa.StructArray.from_arrays([X, X], names=["x", "x"])
OFFSETS = pa.array([0, 1, 2], pa.int32())


@pytest.mark.parametrize(
    ("column", "path"),
    [
        (X, "ability"),
        (TWICE, "more.x"),
        (pa.ListArray.from_arrays(OFFSETS, TWICE), "more.x"),
        (pa.StructArray.from_arrays([X, pa.ListArray.from_arrays(OFFSETS, TWICE)], ["a", "b"]), "more.b.x"),
        (pa.MapArray.from_arrays(OFFSETS, pa.array(["a", "b"]), TWICE), "more.value.x"),
    ],
)
def test_a_parquet_file_that_names_a_column_twice_is_refused(
    tmp_path: Path, column: pa.Array, path: str
) -> None:
    table = pa.Table.from_pylist(ROWS[:2])
    name = path if path in table.column_names else "more"
    pq.write_table(table.append_column(name, column), tmp_path / "train.parquet")
    with pytest.raises(InputError, match=rf'train\.parquet: .*two columns named "{re.escape(path)}"'):
        run(tmp_path, "train.parquet")


def test_the_same_name_in_other_places_is_no_repeat(tmp_path: Path) -> None:
    whole = [row(a={"x": 1, "y": {"x": 2}}, b=[{"x": 1, "a": "b"}])]
    pq.write_table(pa.Table.from_pylist(whole), tmp_path / "train.parquet")
    assert accepted(run(tmp_path, "train.parquet")) == whole


def test_a_parquet_file_is_weighed_by_its_values(tmp_path: Path) -> None:
    """A few hundred bytes may hold millions of nulls: such rows are refused and not made."""
    good = pa.Table.from_pylist([said(f"{n}?", extra_info={"index": n}) for n in range(200)])
    absurd = pa.array([[None] * 1_000_000] * 200, pa.list_(pa.null()))
    one_absurd = pa.array([[0] * (900_000 if n == 7 else 3) for n in range(200)])
    pq.write_table(good.append_column("x", absurd), tmp_path / "all.parquet")
    pq.write_table(good.append_column("x", one_absurd), tmp_path / "one.parquet")
    assert (tmp_path / "all.parquet").stat().st_size < 20_000
    start = time.process_time()
    assert errors(run(tmp_path, "all.parquet")) == [("file.row_too_large", None)] * 200
    result = run(tmp_path, "one.parquet")
    assert time.process_time() - start < 5
    assert errors(result) == [("file.row_too_large", None)]
    assert [record["source_row"] for record in result.rejected.rows(["source_row"])] == [7]
    assert [len(out["x"]) for out in accepted(result)] == [3] * 199


def test_rows_of_many_values_come_a_few_at_a_time(tmp_path: Path) -> None:
    many = pa.array([[n] * 400_000 for n in range(8)])
    table = pa.Table.from_pylist([said(f"{n}?", extra_info={"index": n}) for n in range(8)])
    pq.write_table(table.append_column("x", many), tmp_path / "train.parquet")
    assert [out["x"][-1] for out in accepted(run(tmp_path, "train.parquet"))] == [*range(8)]


@pytest.mark.parametrize("name", ["train.jsonl", "train.json", "train.jsonl.gz"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_a_file_in_another_encoding_is_named_once(tmp_path: Path, name: str, encoding: str) -> None:
    data = LINES.decode().replace("\n", "\r\n").encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    result = run(tmp_path, name)
    assert errors(result) == [("text.not_utf8", None)]
    assert encoding[:6].upper() in result.rejected.head(1)[0]["message"]


@pytest.mark.parametrize("orient", ["columns", "index", "split"])
@pytest.mark.parametrize("name", ["train.jsonl", "train.json"])
def test_a_table_that_pandas_wrote_as_one_object_is_named_once(
    tmp_path: Path, name: str, orient: Any
) -> None:
    pd.DataFrame(ROWS).to_json(tmp_path / name, orient=orient)
    result = run(tmp_path, name)
    assert errors(result) == [("row.not_an_object", None)]
    message = result.rejected.head(1)[0]["message"]
    assert f'orient="{orient}"' in message
    assert 'orient="records", lines=True' in message


@pytest.mark.parametrize("orient", ["records", "table"])
def test_rows_that_pandas_wrote_apart_are_read(tmp_path: Path, orient: Any) -> None:
    pd.DataFrame(ROWS).to_json(tmp_path / "train.json", orient=orient)
    assert accepted(run(tmp_path, "train.json")) == ROWS
