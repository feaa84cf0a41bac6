"""The length gate in the graph: what it shows, what it uses again, and what a cut prompt becomes."""

import shutil
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from rl_assets.dataset.dataset import Dataset
from rl_assets.graph.dataset import GraphDataset
from rl_assets.protocol.manifest import ShardManifest
from tests.build import LONG, POLICY, evaluations, failed, failure, make_dataset, materialize, problem
from tests.prompts.families import GEMMA, WEATHER

GATE = ("length_filtered", "overlong_rows", "unrenderable_rows")
SYSTEM = problem(
    7, prompt=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]
)


def metadata(result: dg.ExecuteInProcessResult, asset: str = "length_filtered") -> dict[str, Any]:
    (event,) = [e for e in result.get_asset_materialization_events() if e.asset_key.path[-1] == asset]
    return {name: value.value for name, value in event.materialization.metadata.items()}


def up_to_the_gate(dataset: GraphDataset) -> dg.ExecuteInProcessResult:
    sources = ("tokenizer", "raw_files", "rejected_rows", "field_contract")
    return materialize(dataset, *sources, *GATE)


def test_the_ui_shows_lengths_other_limits_and_the_work(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path, [*(problem(n) for n in range(4)), LONG])
    shown = metadata(up_to_the_gate(dataset))
    assert (shown["rendered_rows"], shown["reused_rows"], shown["cut"]) == (5, 0, 0)
    assert shown["encoder"] == "fastokens"
    table = {
        name: [dict(record.data) for record in shown[name].records] for name in ("quantiles", "other_limits")
    }
    lengths = sorted(
        row["prompt_length"]
        for name in ("length_filtered", "overlong_rows")
        for row in dataset.table(name).rows(["prompt_length"])
    )
    assert [row["quantile"] for row in table["quantiles"]] == ["min", "median", "p90", "p99", "max"]
    assert [row["tokens"] for row in table["quantiles"]] == [lengths[0], lengths[2], *[lengths[4]] * 3]
    assert table["other_limits"] == [
        {"max_prompt_length": limit, "kept": sum(length <= limit for length in lengths)}
        for limit in (48, 96, 192)
    ]


def test_a_changed_row_is_the_only_one_that_is_rendered_again(tmp_path: Path) -> None:
    rows = [*(problem(number) for number in range(4)), LONG]
    up_to_the_gate(make_dataset(tmp_path, rows))
    result = up_to_the_gate(make_dataset(tmp_path, [*rows[:3], problem(33), LONG]))
    assert (metadata(result)["rendered_rows"], metadata(result)["reused_rows"]) == (1, 4)
    wider = make_dataset(tmp_path, [*rows[:3], problem(33), LONG], data={"max_prompt_length": 400})
    result = up_to_the_gate(wider)
    assert (metadata(result)["rendered_rows"], metadata(result)["overlong"]) == (1, 0)


def test_an_overlong_prompt_is_cut_where_the_yaml_says_so_and_its_rollout_holds(
    tmp_path: Path, small_policy: Path
) -> None:
    data = {
        "filter_overlong_prompts": False,
        "truncation": "left",
        "max_prompt_length": 40,
        "max_response_length": 2,
    }
    dataset = make_dataset(tmp_path, [problem(1), LONG], data=data, rollout={"n": 1}, policy=small_policy)
    result = materialize(dataset)
    assert result.success
    assert "length_filtered.none_is_cut" in failed(result)
    assert not failed(result) & {"proto_shards.shard_rules", "rollouts.tensor_rules"}
    rows = list(dataset.table("length_filtered").rows())
    assert [row["prompt_length"] for row in rows] == [40, 40]
    assert all(row["uncut_length"] > 40 for row in rows)
    ((_, data_),) = dataset.shards("rollouts")
    prompts = {tuple(ids) for ids in data_.batch["prompts"].tolist()}
    assert prompts == {tuple(row["prompt_ids"]) for row in rows}


def policy_with(folder: Path, template: str) -> Path:
    """The demo policy with another chat template."""
    folder.mkdir()
    for file in POLICY.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.jinja").write_text(template)
    return folder


def test_rows_that_the_template_refuses_stop_the_run_like_rejects(tmp_path: Path) -> None:
    policy = policy_with(tmp_path / "policy", GEMMA)
    strict = make_dataset(tmp_path, [problem(1), SYSTEM], policy=policy)
    result = materialize(strict)
    assert not result.success
    assert "length_filtered.few_are_unrenderable" in failed(result)
    (refused,) = strict.table("unrenderable_rows").rows()
    assert refused["message"] == "the chat template refuses it: System role not supported"
    loose = make_dataset(tmp_path, [problem(1), SYSTEM], policy=policy, checks={"reject_rate": {"max": 0.5}})
    assert "length_filtered.few_are_unrenderable" not in failed(up_to_the_gate(loose))


def test_a_policy_that_knows_no_tools_answers_rows_with_tools_where_the_yaml_says_so(
    tmp_path: Path, small_policy: Path
) -> None:
    rows = [problem(0), problem(1, tools=[WEATHER]), problem(2, tools=[WEATHER])]

    def dataset(severity: Any) -> Dataset:
        return make_dataset(
            tmp_path,
            rows,
            data={"max_response_length": 2},
            rollout={"n": 1},
            policy=small_policy,
            contract={"severities": {"render.tools_lost": severity}},
            checks={"reject_rate": {"max": 1.0}, "severities": {"trainers_read_rows": "warn"}},
        )

    strict, loose = dataset("error"), dataset("warning")
    up_to_the_gate(strict)
    assert strict.table("unrenderable_rows").num_rows == 2
    result = materialize(loose)
    assert result.success
    shown = metadata(result)
    assert [dict(record.data) for record in shown["warnings"].records] == [
        {"code": "render.tools_lost", "rows": 2}
    ]
    verdict = evaluations(result)["length_filtered.prompts_are_whole"]
    assert (verdict.passed, verdict.severity.value) == (False, "WARN")
    assert verdict.metadata["lacking"].value == 2
    uids = {row["uid"] for row in loose.table("field_contract").rows(["uid"])}
    for asset in ("reward_inputs", "verl_dataset/train"):
        assert {row["uid"] for row in loose.table(asset).rows(["uid"])} == uids
    assert "warnings" in metadata(up_to_the_gate(loose))
    # What was a warning is not taken for granted when it is an error again.
    assert "warnings" not in metadata(up_to_the_gate(strict))
    assert strict.table("unrenderable_rows").num_rows == 2


@pytest.mark.parametrize("part", ["tokenizer", "chat_template", "template_kwargs", "tools", "processor"])
def test_a_rollout_of_prompts_of_another_stamp_stops_with_the_part_named(
    toy: GraphDataset, part: str
) -> None:
    manifest = toy.shard_manifest("proto_shards")
    other = ShardManifest(shards=manifest.shards, stamps={**manifest.stamps, part: "0" * 32})
    (toy.storage / "proto_shards.json").write_text(other.model_dump_json())
    shutil.rmtree(toy.storage / "rollouts")
    (toy.storage / "rollouts.build.json").unlink(missing_ok=True)
    result = materialize(toy, "rollouts")
    assert not result.success
    assert f"rendered with another {part.replace('_', ' ')}," in failure(result)
