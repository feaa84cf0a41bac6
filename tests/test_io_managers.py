"""Assets are kept whole, on any file system, and come back as the consumer asks for them."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
import pyarrow as pa
import pytest
from moto.server import ThreadedMotoServer
from upath import UPath

from rl_assets.base.files import staging
from rl_assets.base.tables import Table, TableWriter
from rl_assets.graph.io import StoreIOManager
from rl_assets.protocol.manifest import ShardManifest, ShardRef

SCHEMA = pa.schema([("n", pa.int64())])
MANIFEST = ShardManifest(shards=[ShardRef(name="a", path="a-1", digest="1" * 32, rows=3, bytes=9)])


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A bucket of a real S3 server on loopback."""
    import fsspec

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "any")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "any")
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        fsspec.filesystem("s3").mkdir("assets")
        yield "s3://assets"
    server.stop()


@pytest.fixture(params=["local", "memory", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        return str(tmp_path / "store")
    place = "memory://" if request.param == "memory" else request.getfixturevalue("bucket") + "/"
    return place + uuid.uuid4().hex


def table_asset(root: str, numbers: list[int], *, breaks: bool = False) -> dg.AssetsDefinition:
    @dg.asset(key=["toy", "numbers"])
    def numbers_asset() -> Iterator[dg.MaterializeResult[Table]]:
        with staging(UPath(root)) as folder:
            with TableWriter(folder / "t.parquet", SCHEMA) as writer:
                writer.write_rows([{"n": number} for number in numbers])
                if breaks:
                    raise RuntimeError("killed half-way")
            yield dg.MaterializeResult(value=writer.table)

    return numbers_asset


@dg.asset(key=["toy", "manifest"])
def manifest_asset() -> dg.MaterializeResult[ShardManifest]:
    return dg.MaterializeResult(value=MANIFEST)


def run(root: str, *assets: dg.AssetsDefinition, selection: Any = None) -> dg.ExecuteInProcessResult:
    return dg.materialize(
        list(assets),
        selection=selection,
        resources={"io_manager": StoreIOManager(root=root)},
        raise_on_error=False,
    )


def consumer(annotation: Any, seen: list[Any]) -> dg.AssetsDefinition:
    def consume(numbers: Any) -> None:
        seen.append(numbers)

    consume.__annotations__["numbers"] = annotation
    return dg.asset(key=["toy", "consumer"], ins={"numbers": dg.AssetIn(["toy", "numbers"])})(consume)


def test_a_table_comes_back_as_its_consumer_asks_for_it(root: str) -> None:
    for annotation in (Table, pa.Table, pd.DataFrame):
        seen: list[Any] = []
        assert run(root, table_asset(root, [1, 2, 3]), consumer(annotation, seen)).success
        assert isinstance(seen[0], annotation)
        values = {
            Table: lambda found: [row["n"] for row in found.rows()],
            pa.Table: lambda found: found["n"].to_pylist(),
            pd.DataFrame: lambda found: found["n"].tolist(),
        }[annotation](seen[0])
        assert values == [1, 2, 3]


def test_a_manifest_comes_back_equal(root: str) -> None:
    seen: list[ShardManifest] = []

    @dg.asset(key=["toy", "reader"], ins={"manifest": dg.AssetIn(["toy", "manifest"])})
    def reader(manifest: ShardManifest) -> None:
        seen.append(manifest)

    assert run(root, manifest_asset, reader).success
    assert seen == [MANIFEST]


def test_each_partition_lies_in_a_folder_of_its_key(root: str) -> None:
    parts = dg.StaticPartitionsDefinition(["v1.5", "2026-01-01"])
    seen: list[list[int]] = []

    @dg.asset(key=["toy", "numbers"], partitions_def=parts)
    def numbers(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[Table]]:
        with staging(UPath(root)) as folder:
            with TableWriter(folder / "t.parquet", SCHEMA) as writer:
                writer.write_rows([{"n": len(context.partition_key)}])
            yield dg.MaterializeResult(value=writer.table)

    @dg.asset(key=["toy", "reader"], ins={"numbers": dg.AssetIn(["toy", "numbers"])}, partitions_def=parts)
    def reader(numbers: Table) -> None:
        seen.append([row["n"] for row in numbers.rows()])

    for key in parts.get_partition_keys():
        assert dg.materialize(
            [numbers, reader], partition_key=key, resources={"io_manager": StoreIOManager(root=root)}
        ).success
        assert (UPath(root) / "toy" / key / "numbers.parquet").exists()
    assert seen == [[4], [10]]


def test_a_failed_rebuild_leaves_the_last_good_table_and_no_litter(root: str) -> None:
    assert run(root, table_asset(root, [1])).success
    assert not run(root, table_asset(root, [2], breaks=True)).success
    assert [row["n"] for row in Table(UPath(root) / "toy/numbers.parquet").rows()] == [1]
    assert [path.name for path in (UPath(root) / "toy").iterdir()] == ["numbers.parquet"]


def test_an_asset_that_was_never_materialised_is_named(tmp_path: Path) -> None:
    use = consumer(Table, [])
    result = run(str(tmp_path), table_asset(str(tmp_path), [1]), use, selection=[use])
    assert not result.success
    assert "expected the asset toy/numbers" in str(
        [e.step_failure_data for e in result.all_events if e.is_step_failure]
    )


def test_an_annotation_that_cannot_be_served_is_refused(tmp_path: Path) -> None:
    result = run(str(tmp_path), table_asset(str(tmp_path), [1]), consumer(dict, []))
    assert not result.success
    assert "found the annotation" in str(
        [e.step_failure_data for e in result.all_events if e.is_step_failure]
    )


def test_an_asset_that_returns_something_else_is_refused(tmp_path: Path) -> None:
    @dg.asset(key=["toy", "numbers"])
    def wrong() -> dict:
        return {}

    result = run(str(tmp_path), wrong)
    assert not result.success
    assert "return a Table or a pydantic model" in str(
        [e.step_failure_data for e in result.all_events if e.is_step_failure]
    )
