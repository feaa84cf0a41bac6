"""The two tables: explicit types, nothing lost, and one way to write a rejected row."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_assets.base.modalities import MEDIA_COLUMNS
from rl_assets.base.tables import TableWriter
from rl_assets.contract.schema import REJECT_SCHEMA, ROW_SCHEMA, decode_row, reject
from tests.contract.rows import ABSENT, judge, png, row, run, said


def test_the_tables_have_the_explicit_schemas_whatever_is_in_them(tmp_path: Path) -> None:
    for rows in ([row()], [row(prompt=None)]):
        result = judge(tmp_path, *rows)
        assert result.accepted.schema.equals(ROW_SCHEMA)
        assert result.rejected.schema.equals(REJECT_SCHEMA)


def test_an_accepted_record_says_where_it_came_from(tmp_path: Path) -> None:
    record = judge(tmp_path, b"", row(), b"{", said("x")).accepted.read().to_pylist()[1]
    assert (record["source_file"], record["source_row"], record["split"]) == ("train.jsonl", 2, "train")
    assert json.loads(record["prompt"]) == said("x")["prompt"]
    assert record["extra_columns"] == "{}"
    assert [record[column] for column in MEDIA_COLUMNS] == [None, None, None]


def test_absent_and_empty_media_are_told_apart(tmp_path: Path) -> None:
    absent, null, empty = map(
        decode_row, judge(tmp_path, row(), row(images=None), row(images=[])).accepted.rows()
    )
    assert "images" not in absent
    assert "images" not in null
    assert empty["images"] == []


def test_a_row_without_ability_comes_out_without_it(tmp_path: Path) -> None:
    (record,) = judge(tmp_path, row(ability=ABSENT)).accepted.rows()
    assert "ability" not in decode_row(record)


def test_a_rejected_row_holds_the_original(tmp_path: Path) -> None:
    bad = row(prompt=[], images=[{"bytes": png(), "path": None}], note="é")
    pq.write_table(pa.Table.from_pylist([bad, row(images=None, note="")]), tmp_path / "train.parquet")
    (record,) = run(tmp_path, "train.parquet").rejected.rows()
    assert (record["source_row"], record["stage"], record["code"]) == (0, "contract", "prompt.empty")
    kept = json.loads(record["row"])
    assert kept["images"][0].keys() == {"bytes", "path"}
    assert kept["note"] == "é"
    assert {error["code"] for error in record["errors"]} == {"prompt.empty", "media.orphan_media"}


def test_a_later_stage_rejects_a_record_of_the_contract(tmp_path: Path) -> None:
    (record,) = judge(tmp_path, row()).accepted.rows()
    refused = reject(record, [("render.template_error", "prompt", "found no system role")])
    assert refused["stage"] == "render"
    assert refused["uid"] == record["uid"]
    assert refused["errors"] == [
        {"code": "render.template_error", "path": "prompt", "message": "found no system role"}
    ]
    assert json.loads(refused["row"]) == row() | {"uid": record["uid"]}
    with TableWriter(tmp_path / "more.parquet", REJECT_SCHEMA) as more:
        more.write_rows([refused])
    assert more.table.head(1)[0]["code"] == "render.template_error"


def test_an_unknown_code_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(KeyError):
        reject({"source_file": "x", "source_row": 0, "split": "train"}, [("prompt.odd", None, "")], row="{}")
