"""The files of a training set: verl's schema, exact values, reproducible bytes, and an honest card."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from rl_assets.base.tables import Table, TableWriter
from rl_assets.contract.files.manifest import RawManifest
from rl_assets.errors import InputError
from rl_assets.media.source import MediaSource
from rl_assets.prompts.length import LENGTH_FILTERED_SCHEMA
from rl_assets.trainset.card import dataset_card
from rl_assets.trainset.curate import Selection, curate, read_prompts
from rl_assets.trainset.export import Export, write_export
from rl_assets.trainset.media import MediaWriter
from tests.checks.stores import contract_row


def fitting(number: int, truth: Any = "72", **changes: Any) -> dict[str, Any]:
    """A row of the length gate."""
    return {**contract_row(number, truth), "prompt_ids": [1], "prompt_length": 1, **changes}


def export(
    folder: Path, *rows: dict[str, Any], forms: Sequence[str] = (), **selection: Any
) -> tuple[Export, Path]:
    """Export the rows into a folder of their own."""
    with TableWriter(folder / "length_filtered.parquet", LENGTH_FILTERED_SCHEMA) as writer:
        writer.write_rows(rows)
    target = folder / "verl_dataset"
    target.mkdir(exist_ok=True)
    curated = curate(read_prompts(writer.table), Selection(**selection), {})
    media = MediaWriter.of(writer.table, MediaSource(folder), "bytes", target)
    made = write_export(writer.table, curated, media=media, parameters=selection, folder=target, forms=forms)
    return made, target


def loaded(folder: Path, name: str) -> list[dict[str, Any]]:
    """The rows as verl loads them."""
    import datasets

    datasets.disable_progress_bars()
    path = str(folder / name)
    return list(datasets.load_dataset("parquet", data_files=path, cache_dir=str(folder / "cache"))["train"])


def test_rows_are_in_verls_schema_with_their_raw_values(tmp_path: Path) -> None:
    _, folder = export(tmp_path, fitting(0), fitting(1, split="val"))
    (row,) = loaded(folder, "train.parquet")
    assert row == {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": "What is 0 + 0?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "72"},
        "extra_info": {"index": 0},
        "uid": f"{0:032x}",
    }
    assert [row["extra_info"] for row in loaded(folder, "val.parquet")] == [{"index": 1}]


def test_objects_of_different_shapes_come_back_without_filled_keys(tmp_path: Path) -> None:
    infos = [{"index": 0, "tools_kwargs": {"search": {"k": 3}}}, {"index": "a", "when": "2024-01-01"}, {}]
    truths = ["72", {"target": ["a"]}, 7]
    rows = [
        fitting(n, truth, extra_info=json.dumps(info))
        for n, (truth, info) in enumerate(zip(truths, infos, strict=True))
    ]
    made, folder = export(tmp_path, *rows)
    found = loaded(folder, "train.parquet")
    assert [row["extra_info"] for row in found] == infos
    assert [row["reward_model"]["ground_truth"] for row in found] == truths
    assert made.files[0].json_columns == ["reward_model", "extra_info"]


def test_users_own_columns_follow_and_are_null_where_a_row_has_none(tmp_path: Path) -> None:
    _, folder = export(tmp_path, fitting(0, extra_columns='{"level":3}'), fitting(1, ability=None))
    found = loaded(folder, "train.parquet")
    assert [(row["level"], row["ability"]) for row in found] == [(3, "math"), (None, None)]
    assert list(found[0]) == [
        "data_source",
        "prompt",
        "ability",
        "reward_model",
        "extra_info",
        "level",
        "uid",
    ]


def test_no_row_is_left_out_for_its_numbers(tmp_path: Path) -> None:
    rate = 0.7379569346398113
    made, folder = export(
        tmp_path, fitting(0, 2**70), fitting(1, 2**63), fitting(2, extra_info=json.dumps({"rate": rate}))
    )
    assert made.left_out == {}
    found = loaded(folder, "train.parquet")
    assert [row["reward_model"]["ground_truth"] for row in found] == [str(2**70), 2**63, "72"]
    assert [row["extra_info"] for row in found] == [{"index": 0}, {"index": 1}, {"rate": rate}]


def test_left_out_prompts_have_their_reason_and_place(tmp_path: Path) -> None:
    rows = [fitting(n, prompt=json.dumps([{"role": "user", "content": "same"}])) for n in range(2)]
    made, folder = export(tmp_path, *rows)
    assert (made.rows, made.left_out) == (1, {"duplicate": 1})
    assert list(Table(folder / "left_out.parquet").rows()) == [
        {
            "uid": f"{1:032x}",
            "split": "train",
            "data_source": "openai/gsm8k",
            "reason": "duplicate",
            "detail": "copy of data/toy/train.jsonl, row 0",
            "source_file": "data/toy/train.jsonl",
            "source_row": 1,
        }
    ]


def test_the_same_rows_make_the_same_bytes(tmp_path: Path) -> None:
    rows = [fitting(n, 1 if n % 2 else "1") for n in range(5)]
    assert export(tmp_path, *rows)[0] == export(tmp_path, *rows)[0]
    assert export(tmp_path, *rows)[0].digest != export(tmp_path, *rows, seed=1)[0].digest


def test_a_choice_that_leaves_nothing_is_refused_with_its_reasons(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no train prompt that is taken \(2 no_pass_rate\)"):
        export(tmp_path, fitting(0), fitting(1), pass_rate=(0.5, 1.0))
    with pytest.raises(InputError, match="there are none"):
        export(tmp_path)


def test_the_card_names_files_sources_counts_and_parameters(tmp_path: Path) -> None:
    same = json.dumps([{"role": "user", "content": "same"}])
    made, _ = export(
        tmp_path, fitting(0, prompt=same), fitting(1, prompt=same), fitting(2, split="val"), seed=7
    )
    card = dataset_card(
        "toy",
        made,
        description="Sums.",
        raw=RawManifest(files=[]),
        counts={"raw_files": 4, "length_filtered": 3},
        rejects={"reward_model.missing": 1},
    )
    head = yaml.safe_load(card.split("---")[1])
    assert head["configs"][0]["data_files"] == [
        {"split": "train", "path": "train.parquet"},
        {"split": "validation", "path": "val.parquet"},
    ]
    for line in (
        "# toy",
        "Sums.",
        f"| `train.parquet` | 1 | {made.files[0].bytes:,} | `{made.files[0].digest}` |",
        "| train | openai/gsm8k | 1 |",
        "| raw_files | 4 |",
        "| reward_model.missing | 1 |",
        "| duplicates | 1 | 1 |",
        "| duplicate | 1 |",
        "| `seed` | `7` |",
    ):
        assert line in card.splitlines()


def test_the_folder_is_a_dataset_of_its_own(tmp_path: Path) -> None:
    import datasets

    made, folder = export(tmp_path, fitting(0), fitting(1), fitting(2, split="val"))
    card = dataset_card("toy", made, description=None, raw=RawManifest(files=[]), counts={}, rejects={})
    (folder / "README.md").write_text(card)
    found = datasets.load_dataset(str(folder), cache_dir=str(tmp_path / "cache"))
    assert {split: len(rows) for split, rows in found.items()} == {"train": 2, "validation": 1}


def test_trl_gets_a_prompt_and_what_its_reward_functions_read(tmp_path: Path) -> None:
    rows = [fitting(0, extra_columns='{"level":3}'), fitting(1, {"target": ["a"]})]
    made, folder = export(tmp_path, *rows, forms=["trl"])
    assert [(file.name, file.rows) for file in made.forms] == [("trl/train.parquet", 2)]
    first, second = loaded(folder, "trl/train.parquet")
    assert first == {
        "prompt": [{"role": "user", "content": "What is 0 + 0?"}],
        "data_source": "openai/gsm8k",
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "72"},
        "ground_truth": "72",
        "extra_info": {"index": 0},
        "level": 3,
        "uid": f"{0:032x}",
    }
    assert second["ground_truth"] == {"target": ["a"]}
    assert made.rows == 2


def test_openrlhf_gets_a_label_that_is_text(tmp_path: Path) -> None:
    rows = [fitting(0, extra_columns='{"level":3}'), fitting(1, {"target": ["a"]}, split="val")]
    made, folder = export(tmp_path, *rows, forms=["openrlhf"])
    assert [file.name for file in made.forms] == ["openrlhf/train.parquet", "openrlhf/val.parquet"]
    assert loaded(folder, "openrlhf/train.parquet") == [
        {
            "prompt": [{"role": "user", "content": "What is 0 + 0?"}],
            "data_source": "openai/gsm8k",
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "72"},
            "extra_info": {"index": 0},
            "label": "72",
            "datasource": "openai/gsm8k",
            "level": 3,
            "uid": f"{0:032x}",
        }
    ]
    assert loaded(folder, "openrlhf/val.parquet")[0]["label"] == '{"target":["a"]}'


def test_the_folder_loads_as_this_dataset_of_this_build(tmp_path: Path) -> None:
    """Two datasets and a rebuild, with one cache: `datasets` knows what it has by names."""
    import datasets

    built = [("one", "4"), ("two", "5"), ("one", "6"), ("one", "4")]
    for name, truth in built:
        root = tmp_path / name
        root.mkdir(exist_ok=True)
        made, folder = export(root, fitting(0, truth), fitting(1, truth, split="val"))
        card = dataset_card(name, made, description=None, raw=RawManifest(files=[]), counts={}, rejects={})
        (folder / "README.md").write_text(card)
        both = datasets.load_dataset(str(folder), cache_dir=str(tmp_path / "cache"))
        found = {split: [row["reward_model"]["ground_truth"] for row in rows] for split, rows in both.items()}
        assert found == {"train": [truth], "validation": [truth]}


def test_datasets_loads_the_saved_form_from_disk(tmp_path: Path) -> None:
    import datasets

    made, folder = export(tmp_path, fitting(0), fitting(1), fitting(2, split="val"), forms=["datasets"])
    saved = datasets.load_from_disk(str(folder / "datasets"))
    assert {split: list(part) for split, part in saved.items()} == {
        split: loaded(folder, f"{name}.parquet")
        for split, name in (("train", "train"), ("validation", "val"))
    }
    assert {file.name: file.rows for file in made.forms if file.rows} == {
        "datasets/train/data-00000-of-00001.arrow": 2,
        "datasets/validation/data-00000-of-00001.arrow": 1,
    }
    again, _ = export(tmp_path, fitting(0), fitting(1), fitting(2, split="val"), forms=["datasets"])
    assert again.digest == made.digest
