"""The training set as an asset, and the checks that read it back."""

import base64
import io
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from PIL import Image

from rl_assets.cli.verify_store import Damage, verify
from rl_assets.contract.files.manifest import RawManifest
from rl_assets.contract.schema import REJECT_SCHEMA
from rl_assets.graph.dataset import GraphDataset
from rl_assets.prompts.length import LENGTH_FILTERED_SCHEMA, OVERLONG_SCHEMA
from rl_assets.rewards.difficulty import difficulty_schema
from tests.build import failed, failure, materialize, materialized, write_jsonl
from tests.checks.stores import bare_dataset, contract_row, evaluate, problems, put, put_contract, the_check

CHECKS = ("rows_conserved", "loads_whole", "values_exact", "few_are_left_out", "splits_apart")

pytestmark = pytest.mark.usefixtures("ungated")


def prompt(text: str) -> dict[str, str]:
    return {"prompt": json.dumps([{"role": "user", "content": text}])}


def store(root: Path, rows: Iterable[dict[str, Any]], **attributes: Any) -> GraphDataset:
    """A dataset whose length gate left `rows`."""
    dataset = bare_dataset(root, **attributes)
    rows = [{**row, "prompt_ids": [1], "prompt_length": 1} for row in rows]
    put(dataset, "length_filtered", LENGTH_FILTERED_SCHEMA, rows)
    put(dataset, "overlong_rows", OVERLONG_SCHEMA, [])
    for name in ("rejected_rows", "unrenderable_rows"):
        put(dataset, name, REJECT_SCHEMA, [])
    (dataset.storage / "raw_files.json").write_text(RawManifest(files=[]).model_dump_json())
    return dataset


def rewrite(dataset: GraphDataset, name: str, change: Any) -> None:
    """Change the rows of a file behind the asset's back."""
    path = str(dataset.storage / "verl_dataset" / name)
    table = pq.read_table(path)
    pq.write_table(type(table).from_pylist(change(table.to_pylist()), table.schema), path)


@pytest.fixture
def dataset(tmp_path: Path) -> GraphDataset:
    dataset = store(tmp_path, [contract_row(0), contract_row(1), contract_row(2, split="val")])
    assert failed(materialize(dataset, "verl_dataset")) == set()
    return dataset


def test_the_files_lie_beside_their_manifest(dataset: GraphDataset) -> None:
    folder = Path(str(dataset.storage / "verl_dataset"))
    assert {path.name for path in folder.iterdir()} == {
        "train.parquet",
        "val.parquet",
        "left_out.parquet",
        "README.md",
    }
    assert [(file.name, file.rows) for file in dataset.export().files] == [
        ("train.parquet", 2),
        ("val.parquet", 1),
    ]
    assert folder.joinpath("README.md").read_text().startswith("---\nconfigs:")


def test_a_file_that_no_longer_has_rows_goes_away(tmp_path: Path) -> None:
    dataset = store(tmp_path, [contract_row(0), contract_row(1, split="val")])
    assert materialize(dataset, "verl_dataset").success
    dataset = store(tmp_path, [contract_row(0)])
    assert materialize(dataset, "verl_dataset").success
    assert not (dataset.storage / "verl_dataset" / "val.parquet").exists()


def test_prompts_are_chosen_by_their_pass_rates(tmp_path: Path) -> None:
    rows = [contract_row(number) for number in range(3)]
    dataset = store(tmp_path, rows, curation={"pass_rate": [0.1, 0.9]})
    rates = {
        row["uid"]: {
            **{key: row[key] for key in ("uid", "split", "data_source", "source_file", "source_row")},
            "policy": "f00d",
            "n": 2,
            "scored": 2,
            "passed": 1,
            "pass_rate": rate,
            "distinct_answers": 1,
            "truncated_share": 0.0,
            "mean_response_length": 1.0,
        }
        for row, rate in zip(rows, (0.0, 0.5, 1.0), strict=True)
    }
    put(dataset, "prompt_difficulty", difficulty_schema(2), rates.values())
    assert failed(materialize(dataset, "verl_dataset")) == {"verl_dataset.few_are_left_out"}
    export = dataset.export()
    assert export.left_out == {"too_hard": 1, "too_easy": 1}
    assert export.parameters["policy"] == ["f00d"]
    assert export.rows == 1


def test_a_choice_that_takes_nothing_stops_the_run_and_leaves_the_last_files(
    dataset: GraphDataset, tmp_path: Path
) -> None:
    before = dataset.export()
    narrow = store(tmp_path, [contract_row(0)], curation={"pass_rate": [0.5, 0.5]})
    put(narrow, "prompt_difficulty", difficulty_schema(2), [])
    result = materialize(narrow, "verl_dataset")
    assert not result.success
    assert "1 no_pass_rate" in failure(result)
    assert dataset.export() == before
    assert pq.read_table(str(dataset.storage / "verl_dataset/train.parquet")).num_rows == 2


def test_a_value_that_changed_is_found(dataset: GraphDataset) -> None:
    def change(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        rows[1]["reward_model"]["ground_truth"] = "73"
        return rows

    rewrite(dataset, "train.parquet", change)
    (problem,) = problems(evaluate(dataset, "verl_dataset", "loads_whole"))
    assert problem == "`reward_model` is not what the raw file says"


def test_a_row_that_went_missing_is_found(dataset: GraphDataset) -> None:
    rewrite(dataset, "train.parquet", lambda rows: rows[1:])
    assert problems(evaluate(dataset, "verl_dataset", "loads_whole")) == [
        "train.parquet has 2 rows, and 1 were loaded"
    ]


def test_a_number_that_became_text_is_an_error_by_its_path(tmp_path: Path) -> None:
    info = json.dumps({"index": 1, "seeds": [1, 2**70], "rate": 1 / 3})
    dataset = store(tmp_path, [contract_row(0), contract_row(1, extra_info=info)])
    assert failed(materialize(dataset, "verl_dataset")) == {"verl_dataset.values_exact"}
    assert not problems(evaluate(dataset, "verl_dataset", "loads_whole"))
    findings = evaluate(dataset, "verl_dataset", "values_exact")
    (row,) = findings.rows
    assert row["problem"].startswith("`extra_info.seeds[1]` is a number that")
    assert (row["source_row"], findings.numbers) == (1, {"rows": 2})
    assert the_check("verl_dataset", "values_exact").blocks(dataset, findings)


def test_a_warning_says_when_a_large_share_is_left_out(tmp_path: Path) -> None:
    rows = [contract_row(n, **prompt("same")) for n in range(3)] + [contract_row(3), contract_row(4)]
    dataset = store(tmp_path, rows, checks={"left_out_share": 0.3})
    assert failed(materialize(dataset, "verl_dataset")) == {"verl_dataset.few_are_left_out"}
    findings = evaluate(dataset, "verl_dataset", "few_are_left_out")
    assert problems(findings) == [
        "40% of the prompts are left out (2 duplicate), checks.left_out_share is 30%"
    ]
    assert findings.numbers == {"share": 0.4, "duplicate": 2}
    assert not problems(evaluate(store(tmp_path, rows), "verl_dataset", "few_are_left_out"))


def test_rows_of_one_prompt_and_two_answers_are_named(tmp_path: Path) -> None:
    dataset = bare_dataset(tmp_path)
    put_contract(
        dataset,
        contract_row(0, "4", **prompt("same")),
        contract_row(1, "4", **prompt("same")),
        contract_row(2, "5", **prompt("same")),
        contract_row(3, "6", **prompt("same"), extra_columns='{"agent_name": "tool_agent"}'),
        contract_row(4, "7", **prompt("another")),
    )
    findings = evaluate(dataset, "field_contract", "ground_truths_agree")
    assert problems(findings) == [
        "another ground truth than data/toy/train.jsonl, row 0 has for the same prompt"
    ]
    assert findings.rows[0]["source_row"] == 2
    assert findings.numbers == {"prompts": 2, "repeated": 1}


@pytest.mark.parametrize(
    ("one", "other", "agree"),
    [
        ({"a": 1, "b": [2]}, {"b": [2], "a": 1}, True),
        (100.0, 1e2, True),
        (0.1, 0.10000000000000001, True),
        ("é", "\u00e9", True),
        (1, 1.0, False),
        (1, True, False),
        (1, "1", False),
        (None, "null", False),
        (2**70, 2**70 + 1, False),
        (2**53, 2**53 + 1, False),
    ],
)
def test_ground_truths_are_compared_by_value_and_their_type_counts(
    tmp_path: Path, one: Any, other: Any, agree: bool
) -> None:
    """A scorer is given the value itself: `str(1)` is not `str(1.0)`, while the order of keys is nobody's."""
    dataset = bare_dataset(tmp_path)
    message = {"role": "user", "content": "same", "name": "x"}
    put_contract(
        dataset,
        contract_row(0, one, prompt=json.dumps([message])),
        contract_row(1, other, prompt=json.dumps([dict(reversed(message.items()))])),
    )
    findings = evaluate(dataset, "field_contract", "ground_truths_agree")
    assert (problems(findings) == []) == agree
    assert findings.numbers == {"prompts": 1, "repeated": 1}


def test_copies_of_media_are_verified_like_every_file(tmp_path: Path) -> None:
    """`curation.media: paths` writes a file for an image that has bytes alone."""
    picture = io.BytesIO()
    Image.new("RGB", (4, 4), "red").save(picture, "PNG")
    item = json.dumps(f"data:image/png;base64,{base64.b64encode(picture.getvalue()).decode()}")
    images = [{"item": item, "path": None, "digest": None}]
    dataset = store(tmp_path, [contract_row(0, images=images)], curation={"media": "paths"})
    assert materialized(materialize(dataset, "verl_dataset")) == ["verl_dataset"]
    (copy,) = (dataset.storage / "verl_dataset/media").iterdir()
    assert [(asset.asset, asset.damaged) for asset in verify(dataset)] == [("verl_dataset", [])]
    kept = copy.stat()
    copy.write_bytes(copy.read_bytes()[::-1])
    os.utime(copy, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    found = [damage for asset in verify(dataset) for damage in asset.damaged]
    assert found == [Damage(copy, "other bytes than were written")]


def test_a_number_that_changed_is_found_in_a_column_of_several_shapes(tmp_path: Path) -> None:
    rows = [contract_row(0), contract_row(1, extra_info=json.dumps({"index": 1, "rate": 1 / 3}))]
    dataset = store(tmp_path, rows)
    assert failed(materialize(dataset, "verl_dataset")) == set()
    put(
        dataset,
        "length_filtered",
        LENGTH_FILTERED_SCHEMA,
        [
            {
                **row,
                "extra_info": row["extra_info"].replace("0.33", "0.34"),
                "prompt_ids": [1],
                "prompt_length": 1,
            }
            for row in rows
        ],
    )
    assert problems(evaluate(dataset, "verl_dataset", "loads_whole")) == [
        "`extra_info` is not what the raw file says"
    ]


def test_a_validation_prompt_that_is_also_a_train_prompt_is_found(dataset: GraphDataset) -> None:
    def change(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**row, "prompt": [{"content": "What is 0 + 0?", "role": "user"}]} for row in rows]

    rewrite(dataset, "val.parquet", change)
    assert problems(evaluate(dataset, "verl_dataset", "splits_apart")) == [
        "the prompt is in train.parquet too"
    ]


def test_a_row_that_is_neither_taken_nor_left_out_is_found(dataset: GraphDataset) -> None:
    rows = [contract_row(number) for number in range(4)]
    store(dataset.root, rows)
    (problem,) = problems(evaluate(dataset, "verl_dataset", "rows_conserved"))
    assert problem.startswith("length_filtered has 4 rows")


def test_near_copies_and_quotations_of_a_benchmark_are_left_out(tmp_path: Path) -> None:
    question = "A farmer has seventeen sheep and all but nine of them run away, how many are left?"
    quoted = "In how many ways can five people sit around a table with five chairs in a row?"
    write_jsonl(tmp_path / "bench.jsonl", [{"problem": quoted}])
    rows = [
        contract_row(0, **prompt(question)),
        contract_row(1, **prompt(question.replace("left", "there"))),
        contract_row(2, **prompt(f"Think. {quoted}")),
        contract_row(3, split="val", **prompt(quoted)),
    ]
    curation = {"near_duplicates": 0.8, "contamination_files": "bench.jsonl", "contamination_ngram": 8}
    dataset = store(tmp_path, rows, curation=curation)
    assert failed(materialize(dataset, "verl_dataset")) == set()
    left_out = dataset.table("verl_dataset/left_out").rows(["source_row", "reason"])
    assert {row["source_row"]: row["reason"] for row in left_out} == {
        1: "near_duplicate",
        2: "near_duplicate",
    }
    alone = store(tmp_path, [rows[0], rows[2]], curation=curation)
    assert failed(materialize(alone, "verl_dataset")) == set()
    assert alone.export().left_out == {"contaminated": 1}
    assert list(alone.export().parameters["contamination_files"]) == ["bench.jsonl"]


def test_a_benchmark_that_is_not_there_is_named_with_its_setting(tmp_path: Path) -> None:
    dataset = store(tmp_path, [contract_row(0)], curation={"contamination_files": "nowhere.jsonl"})
    message = failure(materialize(dataset, "verl_dataset"))
    assert "nowhere.jsonl" in message
    assert "curation.contamination_files" in message
