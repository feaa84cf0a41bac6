"""Retrying a failed run, as the UI's buttons do: what a failed blocking check stopped is made up for."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from rl_assets.dataset.dataset import ASSETS
from rl_assets.graph.dataset import GraphDataset
from rl_assets.spec.dataset import DataToRolloutSpec
from tests.build import BROKEN, definitions, make_dataset, problem, write_jsonl

TO_SHARDS = ASSETS[: ASSETS.index("proto_shards") + 1]
GATE, SHARDS = "toy__length_filtered", "toy__proto_shards"


def retried_job(root: str, spec: str) -> dg.JobDefinition:
    """The graph up to the shards of the dataset with this YAML; Dagster keeps one per argument."""
    dataset = GraphDataset(DataToRolloutSpec.model_validate_json(spec), Path(root))
    job = dg.define_asset_job("toy_to_shards", selection=[dataset.key(name) for name in TO_SHARDS])
    return dg.Definitions.merge(definitions(dataset), dg.Definitions(jobs=[job])).resolve_job_def(job.name)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def write_yaml(root: Path, rows: Sequence[Any], **attributes: Any) -> None:
    (root / "spec.json").write_text(make_dataset(root, rows, **attributes).spec.model_dump_json())


def execute(instance: dg.DagsterInstance, root: Path, **how: Any) -> dg.JobExecutionResult:
    """Run the job, as the dataset's YAML in `root` is now."""
    job = dg.build_reconstructable_job(__name__, "retried_job", (str(root), (root / "spec.json").read_text()))
    return dg.execute_job(job, instance, **how)


def from_failure(
    instance: dg.DagsterInstance, root: Path, failed: dg.JobExecutionResult
) -> dg.JobExecutionResult:
    """The UI's "Re-execute from failure"."""
    how = dg.ReexecutionOptions.from_failure(failed.run_id, instance)
    return execute(instance, root, reexecution_options=how)


def from_asset_failure(
    instance: dg.DagsterInstance, root: Path, failed: dg.JobExecutionResult
) -> dg.JobExecutionResult:
    """The UI's "From asset failure": Dagster itself says which assets that means."""
    run = instance.get_run_by_id(failed.run_id)
    assert run is not None
    assert run.execution_plan_snapshot_id is not None
    plan = instance.get_execution_plan_snapshot(run.execution_plan_snapshot_id)
    assets, _ = instance.run_domain.get_keys_to_reexecute(failed.run_id, plan)
    return execute(instance, root, asset_selection=sorted(assets))


def steps(result: dg.JobExecutionResult) -> list[str]:
    """The steps that were started, in order."""
    return [str(event.step_key) for event in result.all_events if event.is_step_start]


def evaluated(result: dg.JobExecutionResult) -> dict[str, bool]:
    found = [
        event.event_specific_data
        for event in result.all_events
        if event.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION
    ]
    return {f"{one.asset_key.path[-1]}.{one.check_name}": one.passed for one in found}  # type: ignore[union-attr]


def stopped_by_a_check(instance: dg.DagsterInstance, root: Path) -> dg.JobExecutionResult:
    """A run in which nobody knows how to score a row, and the YAML that fixes it."""
    rows = [problem(0), problem(1, data_source="nobody/scores")]
    severities = {"severities": {"data_source.unknown": "warning"}}
    write_yaml(root, rows, contract=severities)
    failed = execute(instance, root)
    assert not failed.success
    assert evaluated(failed)["field_contract.scorer_known"] is False
    assert GATE not in steps(failed)
    write_yaml(root, rows, contract={**severities, "known_data_sources": ["nobody/scores"]})
    return failed


def test_from_failure_evaluates_the_check_again_and_goes_on_from_there(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    failed = stopped_by_a_check(instance, tmp_path)
    retried = from_failure(instance, tmp_path, failed)
    assert retried.success
    assert steps(retried)[0] == "toy__field_contract__checks"
    assert [step for step in steps(retried) if not step.endswith("__checks")] == [GATE, SHARDS]
    assert evaluated(retried)["field_contract.scorer_known"] is True
    assert evaluated(retried)["proto_shards.uids"] is True


def test_from_asset_failure_makes_the_asset_again_too(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    failed = stopped_by_a_check(instance, tmp_path)
    retried = from_asset_failure(instance, tmp_path, failed)
    assert retried.success
    made = [step for step in steps(retried) if not step.endswith("__checks")]
    assert made == ["toy__field_contract", GATE, SHARDS]
    assert evaluated(retried)["field_contract.scorer_known"] is True
    assert evaluated(retried)["proto_shards.uids"] is True


def test_a_check_that_still_fails_stops_the_retry_as_well(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    failed = stopped_by_a_check(instance, tmp_path)
    spec = json.loads((tmp_path / "spec.json").read_text())
    spec["contract"]["known_data_sources"] = []
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    retried = from_failure(instance, tmp_path, failed)
    assert not retried.success
    assert GATE not in steps(retried)


def test_mended_raw_files_need_the_whole_run_and_the_retry_says_so(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    """A retry does not look at the raw files again, since the step that does so had not failed."""
    write_yaml(tmp_path, [problem(0), BROKEN])
    failed = execute(instance, tmp_path)
    assert not failed.success
    write_jsonl(tmp_path / "data/toy/train.jsonl", [problem(0), problem(1)])
    for retry in (from_failure, from_asset_failure):
        retried = retry(instance, tmp_path, failed)
        assert not retried.success
        (event,) = [event for event in retried.all_events if event.is_step_failure]
        assert "Scan the raw files again" in str(event.step_failure_data.user_failure_data)
    assert execute(instance, tmp_path).success
