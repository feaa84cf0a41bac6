"""A dataset that is cut along an axis: every partition has files, a store and verdicts of its own."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pydantic import ValidationError

from rl_assets.base.files import storage_root
from rl_assets.graph.dataset import GraphDataset
from rl_assets.graph.unchanged import UNCHANGED
from tests.build import (
    BROKEN,
    definitions,
    evaluations,
    failed,
    failure,
    make_dataset,
    materialize,
    materialized,
    problem,
    write_jsonl,
)
from tests.small import save_small_policy
from tests.test_component import load

STATIC = {"kind": "static", "values": ["v1.5", "v2"]}
FILES = {"train_files": "data/toy/{partition}.jsonl", "max_response_length": 3}


Built = tuple[GraphDataset, dict[str, dg.ExecuteInProcessResult]]


def partitioned(root: Path, policy: Path) -> GraphDataset:
    """Three prompts in each of two partitions; the second has a broken row as well."""
    write_jsonl(root / "data/toy/v1.5.jsonl", [problem(number) for number in range(3)])
    write_jsonl(root / "data/toy/v2.jsonl", [*(problem(number) for number in range(10, 13)), BROKEN])
    return make_dataset(
        root,
        data=FILES,
        policy=policy,
        partition_by=STATIC,
        reward={"num_workers": 1},
        checks={"reject_rate": {"max": 0.5}},
    )


def run(dataset: GraphDataset, partition: str, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    job = definitions(dataset).resolve_implicit_global_asset_job_def()
    return job.execute_in_process(partition_key=partition, instance=instance, raise_on_error=False)


@pytest.fixture(scope="module")
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture(scope="module")
def built(
    tmp_path_factory: pytest.TempPathFactory, small_policy: Path, instance: dg.DagsterInstance
) -> Built:
    """The dataset, and the run of each of its partitions."""
    dataset = partitioned(tmp_path_factory.mktemp("project"), small_policy)
    return dataset, {key: run(dataset, key, instance) for key in STATIC["values"]}


def partitions_of(result: dg.ExecuteInProcessResult) -> set[str | None]:
    """The partitions that a run materialised and that its checks were evaluated for."""
    made = {event.partition for event in result.get_asset_materialization_events()}
    return made | {check.partition for check in result.get_asset_check_evaluations()}


def test_each_partition_has_rows_storage_and_verdicts_of_its_own(
    built: Built, instance: dg.DagsterInstance
) -> None:
    dataset, results = built
    for number, (key, result) in enumerate(results.items()):  # as many broken rows as the number says
        assert result.success
        assert partitions_of(result) == {key}
        part = dataset.at(key)
        assert part.storage.name == key
        answered = [json.loads(row["extra_info"])["index"] for row in part.table("reward_inputs").rows()]
        assert sorted(answered) == sorted(2 * [10 * number + prompt for prompt in range(3)])
        assert part.table("rejected_rows").num_rows == number
    assert "rejected_rows.reward_model_rules" not in failed(results["v1.5"])
    assert "rejected_rows.reward_model_rules" in failed(results["v2"])
    assert len(evaluations(results["v1.5"])) == len(evaluations(results["v2"])) > 30
    graph_keys = {dataset.key(name) for name in materialized(results["v2"])}
    for key in graph_keys:
        assert instance.get_materialized_partitions(key) == set(STATIC["values"])


def test_a_second_rebuild_of_a_partition_is_unchanged_and_leaves_the_others_alone(
    built: Built, instance: dg.DagsterInstance
) -> None:
    dataset, _ = built
    other = {path: path.stat().st_mtime_ns for path in dataset.at("v2").storage.rglob("*")}
    again = run(dataset, "v1.5", instance)
    assert again.success
    for event in again.get_asset_materialization_events():
        assert UNCHANGED in event.materialization.metadata, event.asset_key
    assert {path: path.stat().st_mtime_ns for path in dataset.at("v2").storage.rglob("*")} == other


def test_a_run_without_a_partition_says_what_to_do(tmp_path: Path, small_policy: Path) -> None:
    dataset = partitioned(tmp_path, small_policy)
    result = materialize(dataset, "raw_files")
    assert not result.success
    assert "toy has partitions, and this run is not for one of them" in failure(result)
    assert not storage_root(dataset.root).exists()


def test_a_checkpoint_axis_changes_the_policy_alone(tmp_path: Path) -> None:
    for step in (1, 2):
        save_small_policy(tmp_path / f"checkpoints/step_{step}", seed=step)
    dataset = make_dataset(
        tmp_path,
        [problem(1)],
        policy=Path("checkpoints/{partition}"),
        partition_by={"kind": "checkpoint", "values": ["step_1", "step_2"]},
    )
    first, second = (dataset.at(key) for key in ("step_1", "step_2"))
    assert (first.policy, second.policy) == (tmp_path / "checkpoints/step_1", tmp_path / "checkpoints/step_2")
    assert first.spec.data.train_paths == second.spec.data.train_paths
    assert first.storage != second.storage


def test_every_asset_check_and_the_job_have_the_partitions() -> None:
    _, defs = load(data={**FILES, "max_prompt_length": 96}, partition_by=STATIC)
    expected = dg.StaticPartitionsDefinition(STATIC["values"])
    graph = defs.resolve_asset_graph()
    assert {node.partitions_def for node in graph.asset_nodes} == {expected}
    assert {graph.get(key).partitions_def for key in graph.asset_check_keys} == {expected}
    assert defs.resolve_job_def("toy_rebuild").partitions_def == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"partition_by": {"kind": "date"}}, "takes `start` where kind is date"),
        ({"partition_by": {"kind": "static", "start": "2026-01-01"}}, "and `values` otherwise"),
        ({"partition_by": {"kind": "static", "values": ["a", "a"]}}, "a more than once"),
        ({"partition_by": {"kind": "static", "values": ["../a"]}}, "should match pattern"),
        ({"partition_by": {"kind": "checkpoint", "values": ["a"]}}, "policy.path has no {partition}"),
        ({"data": {"train_files": "x.jsonl"}, "partition_by": STATIC}, "would all be the same"),
        ({}, "there is no partition_by to take it from"),
    ],
)
def test_an_axis_that_makes_no_sense_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message.replace("{", r"\{").replace("}", r"\}")):
        make_dataset(tmp_path, **{"data": FILES, **changes})


def test_loading_and_running_say_nothing_of_what_dagster_may_still_change(tmp_path: Path) -> None:
    """And of nothing else are warnings silenced: the last two are shown."""
    code = f"""
import warnings
from pathlib import Path
import dagster as dg
import rl_assets.definitions
from tests.test_partitions import *
folder = Path({str(tmp_path)!r})
job = definitions(partitioned(folder, folder)).resolve_implicit_global_asset_job_def()
assert load(partition_by=STATIC, data=FILES)
files = [dg.AssetKey(["toy", "raw_files"])]
assert job.execute_in_process(partition_key="v2", asset_selection=files, raise_on_error=False).success
warnings.warn("this is currently in preview, says another", UserWarning)
warnings.warn("this argument does nothing", dg.PreviewWarning)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shown = [line for line in done.stderr.splitlines() if "Warning" in line]
    assert len(shown) == 2, shown
    assert "says another" in shown[0]
    assert "does nothing" in shown[1]
