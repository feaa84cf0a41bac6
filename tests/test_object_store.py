"""The whole graph with its store in a bucket (a real S3 server on loopback): what a local store holds, and no
credential anywhere."""

import logging
from collections.abc import Iterator

import dagster as dg
import fsspec
import pytest
import s3fs
from moto.server import ThreadedMotoServer

from rl_assets.base.files import storage_root
from rl_assets.cli.tidy import delete, find_garbage
from rl_assets.cli.trace_row import find_row, trace_row
from rl_assets.graph.dataset import GraphDataset
from tests.build import failed, materialize, versions

SECRET = "s3cr3t-of-the-bucket"


@pytest.fixture
def bucket() -> Iterator[str]:
    """Address of an empty bucket; how to reach it is in the environment only."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for every request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "someone")
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("RL_ASSETS_STORAGE", "s3://graph/store")
        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().mkdir("graph")
        yield "s3://graph/store"
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


def test_the_graph_in_a_bucket(
    toy_run: tuple[GraphDataset, dg.ExecuteInProcessResult],
    bucket: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    local, here = toy_run
    dataset = GraphDataset(local.spec, local.root)
    assert str(storage_root(dataset.root)) == bucket
    with dg.instance_for_test() as instance:
        there = materialize(dataset, instance=instance)
        told = [event.to_json() for event in instance.all_logs(there.run_id)]
        assert there.success
        assert (versions(there), failed(there)) == (versions(here), failed(here))
        again = materialize(dataset, "rollouts", instance=instance)
        (rollouts,) = again.filter_events(lambda event: event.asset_key == dataset.key("rollouts"))
        assert "unchanged" in rollouts.step_materialization_data.materialization.metadata
        found, place = find_row([dataset], "data/toy/train.jsonl:0")
        assert len(trace_row(found, place, instance).responses) == 2
    assert find_garbage(dataset) == []
    delete(dataset, [])
    assert len(told) > 100
    assert not any(SECRET in event for event in told)
    assert SECRET not in caplog.text
    files = fsspec.filesystem("s3").find(bucket)
    assert len(files) > 30
    assert not any(SECRET.encode() in fsspec.filesystem("s3").cat_file(file) for file in files)
