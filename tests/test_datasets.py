"""How a command finds the project, its datasets, their stores, and the run history."""

from pathlib import Path

import dagster as dg
import pytest

from rl_assets.cli.tidy import find_garbage
from rl_assets.cli.trace_row import find_row, trace_row
from rl_assets.errors import InputError
from rl_assets.graph.history import run_history
from rl_assets.graph.project import Datasets, load_datasets, project_root, stores
from tests.checks.stores import bare_dataset, contract_row, put_contract

ROOT = Path(__file__).parent.parent
BY_DAY = {
    "data": {"train_files": "data/{partition}.jsonl"},
    "partition_by": {"kind": "static", "values": ["one", "two", "three"]},
}


def test_the_datasets_of_a_project_are_found_from_any_folder_of_it() -> None:
    names = [dataset.name for dataset in load_datasets(ROOT / "rl_assets/defs").loaded]
    assert names == sorted(names)
    assert {"gsm_symbolic", "needs_care"} <= set(names)
    assert project_root(ROOT / "rl_assets/defs/needs_care/defs.yaml") == ROOT


def test_a_folder_of_no_project_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no Dagster project"):
        project_root(tmp_path)


def test_definitions_that_do_not_load_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.dg.project]\nroot_module = "nowhere_to_be_found"\n')
    with pytest.raises(InputError, match="definitions that do not load"):
        load_datasets(tmp_path)


def test_a_dataset_is_chosen_by_its_name(tmp_path: Path) -> None:
    datasets = Datasets([bare_dataset(tmp_path), bare_dataset(tmp_path, dataset="other")], [])
    assert datasets.chosen(None) == datasets.loaded
    assert [dataset.name for dataset in datasets.chosen("other")] == ["other"]
    with pytest.raises(InputError, match="found 'tyo', expected toy or other"):
        datasets.chosen("tyo")


def test_every_partition_that_was_built_has_a_store_of_its_own(tmp_path: Path) -> None:
    dataset = bare_dataset(tmp_path, **BY_DAY)
    assert stores(dataset) == []
    for number, key in enumerate(["one", "two"]):
        put_contract(dataset.at(key), contract_row(number, source_file=f"data/{key}.jsonl"))
    assert [part.partition for part in stores(dataset)] == ["one", "two"]
    assert [find_garbage(part) for part in stores(dataset)] == [[], []]
    found, place = find_row(stores(dataset), "two.jsonl:1")
    assert (found.partition, place.source_file) == ("two", "data/two.jsonl")


def test_the_run_of_a_partition_is_its_own(tmp_path: Path) -> None:
    dataset = bare_dataset(tmp_path, **BY_DAY)
    part = dataset.at("two")
    put_contract(part, contract_row(0))
    (part.storage / "raw_files.json").write_text('{"files": []}')
    with dg.DagsterInstance.ephemeral() as instance:
        for key in ("two", "one"):
            event = dg.AssetMaterialization(dataset.key("field_contract"), partition=key)
            instance.report_runless_asset_event(event)
        _, place = find_row([part], "train.jsonl:0")
        trace = trace_row(part, place, instance)
    assert trace.partition == "two"
    assert trace.made["field_contract"].time is not None
    assert trace.made["raw_files"].time is None


def test_the_history_is_that_of_dagster_home_or_of_the_projects_dagster_yaml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    with run_history(tmp_path) as history:
        assert history is None
    (tmp_path / "dagster.yaml").write_text("storage: {sqlite: {base_dir: kept}}\n")
    with run_history(tmp_path) as history:
        assert history is not None
    assert (tmp_path / "kept").is_dir()
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "absent"))
    with pytest.raises(InputError, match="cannot be opened"), run_history(tmp_path):
        pass
