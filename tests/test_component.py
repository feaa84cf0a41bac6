"""The component: one YAML becomes one dataset's assets, checks, job and schedule."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster.components.testing.utils import create_defs_folder_sandbox

from rl_assets import DataToRollout
from rl_assets.graph.dataset import GraphDataset
from tests.project import attributes

CONTRACT = {"field_contract", "rejected_rows"}


def load(**changes: Any) -> tuple[DataToRollout, dg.Definitions]:
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(
            component_cls=DataToRollout,
            defs_yaml_contents={"type": "rl_assets.DataToRollout", "attributes": attributes(**changes)},
        )
        with sandbox.load_component_and_build_defs(defs_path=path) as (component, defs):
            assert isinstance(component, DataToRollout)
            return component, defs


def schedule(defs: dg.Definitions) -> dg.ScheduleDefinition:
    (found,) = defs.schedules or []
    assert isinstance(found, dg.ScheduleDefinition)
    return found


def test_asset_keys_are_dataset_and_asset() -> None:
    _, defs = load()
    keys = {key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys()}
    assert keys >= {
        "toy/raw_files",
        "toy/field_contract",
        "toy/rejected_rows",
        "toy/length_filtered",
        "toy/overlong_rows",
        "toy/unrenderable_rows",
        "toy/proto_shards",
        "toy/rollouts",
        "toy/reward_inputs",
        "toy/policy",
        "toy/tokenizer",
        "toy/reward_function",
    }
    assert "toy/tool_schemas" not in keys


def test_what_is_read_beside_the_raw_files_is_upstream_of_what_it_touches() -> None:
    _, defs = load(data={**attributes()["data"], "tool_config_path": "tools.yaml"})
    graph = defs.resolve_asset_graph()

    def children(asset: str) -> set[str]:
        return {key.path[-1] for key in graph.get(dg.AssetKey(["toy", asset])).child_keys}

    gate = {"length_filtered", "overlong_rows", "unrenderable_rows"}
    assert children("policy") == {"rollouts"}
    assert children("tokenizer") == {*gate, "reward_inputs"}
    assert children("tool_schemas") == gate
    assert children("reward_function") == {"reward_scores"}


def test_every_asset_has_an_owner_kinds_a_description_a_group_and_a_code_version() -> None:
    _, defs = load(owners=["team:rl-data", "ann@example.com"])
    for node in defs.resolve_asset_graph().asset_nodes:
        assert node.owners == ["team:rl-data", "ann@example.com"]
        assert 1 <= len(node.kinds) <= 3
        assert node.description
        assert (node.group_name, node.code_version is not None) == ("toy", True)


def test_every_check_is_described_and_those_that_protect_a_reward_block() -> None:
    _, defs = load()
    specs = [spec for checks in defs.asset_checks or [] for spec in checks.check_specs]
    assert all(spec.description for spec in specs)
    assert {spec.name for spec in specs if spec.blocking} >= {
        "uids",
        "rows_conserved",
        "placeholder_media",
        "shard_rules",
        "tensor_rules",
        "reward_fields_unchanged",
    }
    assert {spec.name for spec in specs if not spec.blocking} >= {"no_file_is_empty", "fills_a_batch"}


def test_the_job_rebuilds_the_whole_dataset() -> None:
    _, defs = load()
    job = defs.resolve_job_def("toy_rebuild")
    assert job.asset_layer.selected_asset_keys == defs.resolve_asset_graph().get_all_asset_keys()


def test_the_schedule_runs_nightly_unless_the_yaml_says_otherwise() -> None:
    _, defs = load()
    nightly = schedule(defs)
    assert (nightly.name, nightly.cron_schedule, nightly.execution_timezone) == (
        "toy_nightly",
        "0 2 * * *",
        "UTC",
    )
    assert nightly.default_status == dg.DefaultScheduleStatus.RUNNING
    _, defs = load(schedule={"cron": "30 4 * * 1", "timezone": "Europe/Berlin", "enabled": False})
    weekly = schedule(defs)
    assert (weekly.cron_schedule, weekly.execution_timezone) == ("30 4 * * 1", "Europe/Berlin")
    assert weekly.default_status == dg.DefaultScheduleStatus.STOPPED


def test_templates_in_the_yaml_are_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLICY", "/models/large")
    component, _ = load(policy={"path": "{{ env('POLICY') }}"})
    assert component.spec.policy.path == "/models/large"


@pytest.mark.parametrize(
    ("changes", "stale"),
    [
        ({"rollout": {"temperature": 0.5}}, {"rollouts"}),
        (
            {"data": {**attributes()["data"], "max_prompt_length": 50}},
            {"length_filtered", "overlong_rows", "unrenderable_rows", "rollouts"},
        ),
        ({"shards": {"count": 3}}, {"proto_shards"}),
        ({"policy": {"path": "elsewhere"}}, {"policy", "tokenizer"}),
        ({"reward": {"custom_reward_function": {"path": "score.py"}}}, {"reward_function", *CONTRACT}),
        ({"rollout": {"micro_batch_size": 3}}, set()),
        ({"schedule": {"cron": "0 5 * * *"}}, set()),
        ({"owners": ["team:other"], "description": "other"}, set()),
        ({"checks": {"truncated_share": 0.1, "reject_rate": {"max": 0.2}}}, set()),
    ],
)
def test_a_change_of_the_yaml_changes_the_code_version_of_what_reads_it(
    changes: dict[str, Any], stale: set[str]
) -> None:
    def versions(**changes: Any) -> dict[str, str | None]:
        graph = load(**changes)[1].resolve_asset_graph()
        return {node.key.path[-1]: node.code_version for node in graph.asset_nodes}

    before, after = versions(), versions(**changes)
    assert {name for name in before if before[name] != after[name]} == stale


def test_a_policy_is_a_folder_or_a_hub_id(tmp_path: Path) -> None:
    def policy(path: str) -> Path | str:
        component, _ = load(policy={"path": path})
        return GraphDataset(component.spec, tmp_path).policy

    (tmp_path / "models/tiny").mkdir(parents=True)
    assert policy("models/tiny") == tmp_path / "models/tiny"
    assert policy("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"
    assert policy("data/policies/absent") == tmp_path / "data/policies/absent"
    assert policy("/models/large") == Path("/models/large")
