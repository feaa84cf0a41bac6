"""Column lineage: every column that is stored is explained, and comes from columns that there are."""

from typing import Any

import dagster as dg
import pytest

from rl_assets.base.tables import Table
from rl_assets.contract.rules.options import CARRIED_COLUMNS
from rl_assets.contract.schema import ROW_SCHEMA
from rl_assets.graph.columns import COLUMNS, column_metadata, find_column
from rl_assets.graph.dataset import GraphDataset
from rl_assets.spec.dataset import DataToRolloutSpec
from tests.build import definitions

ToyRun = tuple[GraphDataset, dg.ExecuteInProcessResult]
SHARDED = ("proto_shards", "rollouts")
OWN = {"reward_scores": {"acc", "lenient_acc", "pred"}}
"""What the toy dataset's scorer returns beside the score: the columns that only a pattern names."""


def stored_columns(dataset: GraphDataset, asset: str) -> set[str]:
    """The columns that the asset stored, whatever form it has."""
    if asset == "raw_files":
        return {name for file in dataset.raw_manifest().files for name in file.model_dump()}
    if asset == "verl_dataset":
        files = [Table(dataset.storage / asset / file.name) for file in dataset.export().files]
        return {name for file in files for name in file.schema.names}
    if asset in SHARDED:
        shards = [data for _, data in dataset.shards(asset)]
        return {name for data in shards for name in [*data.batch.keys(), *data.non_tensor_batch]}
    return set(dataset.table(asset).schema.names)


def metadata(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    return {
        event.asset_key.path[-1]: event.materialization.metadata
        for event in result.get_asset_materialization_events()
    }


def test_every_table_of_the_graph_is_explained(toy_run: ToyRun) -> None:
    dataset, result = toy_run
    tables = {path.name.split(".")[0] for path in dataset.storage.iterdir() if path.suffix == ".parquet"}
    assert tables | {"raw_files", "verl_dataset", *SHARDED} == COLUMNS.keys()
    assert {
        name for name, shown in metadata(result).items() if "dagster/row_count" in shown
    } == COLUMNS.keys()


@pytest.mark.parametrize("asset", COLUMNS)
def test_every_stored_column_is_explained_under_its_own_name(toy_run: ToyRun, asset: str) -> None:
    """A new column fails here until it has its line in the table."""
    columns = stored_columns(toy_run[0], asset)
    by_pattern = {name for name in columns if find_column(asset, name) is COLUMNS[asset].get("*")}
    assert by_pattern == columns & OWN.get(asset, set())
    assert [name for name in columns if find_column(asset, name) is None] == []


@pytest.mark.parametrize("asset", COLUMNS)
def test_a_column_comes_from_columns_of_assets_upstream(toy_run: ToyRun, asset: str) -> None:
    dataset, _ = toy_run
    graph = definitions(dataset).resolve_asset_graph()
    above = {key.path[-1] for key in graph.get_ancestor_asset_keys(dataset.key(asset))}
    for column in COLUMNS[asset].values():
        for source in column.sources:
            origin, _, name = source.partition(".")
            assert origin in above or origin == "tool_schemas", source
            assert not name or origin == "raw_files" or name in COLUMNS[origin], source


@pytest.mark.parametrize("asset", COLUMNS)
def test_dagster_is_told_and_a_person_too(toy_run: ToyRun, asset: str) -> None:
    dataset, result = toy_run
    shown = metadata(result)[asset]
    schema, lineage = shown["dagster/column_schema"].schema, shown["dagster/column_lineage"].column_lineage
    columns = {column.name: column for column in schema.columns}
    assert columns.keys() == stored_columns(dataset, asset)
    assert all(column.description and column.type for column in schema.columns)
    for name, deps in lineage.deps_by_column.items():
        assert name in columns
        assert all(dep.asset_key.path[0] == dataset.name for dep in deps)
    lines = shown["columns"].value.splitlines()
    assert lines[0] == "| column | type | what it holds | from |"
    assert len(lines) == 2 + len(columns)


def test_columns_of_the_raw_files_have_the_names_that_the_yaml_gives_them(toy_run: ToyRun) -> None:
    dataset, _ = toy_run
    values = dataset.spec.model_dump()
    values["data"] |= {"prompt_key": "question", "reward_fn_key": "source"}
    renamed = GraphDataset(DataToRolloutSpec.model_validate(values), dataset.root)
    shown = column_metadata(renamed, "field_contract", ROW_SCHEMA)
    deps = shown["dagster/column_lineage"].deps_by_column
    assert [dep.column_name for dep in deps["prompt"]] == ["question"]
    assert [dep.column_name for dep in deps["data_source"]] == ["source"]
    assert "raw\\_files.question" in shown["columns"].value


def test_what_is_carried_beside_a_row_is_explained_in_the_shards() -> None:
    assert CARRIED_COLUMNS - {"prompt_length"} <= COLUMNS["rollouts"].keys()
