"""The whole graph on a small dataset with the demo policy, as one run makes it."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from rl_assets.dataset.dataset import ASSETS
from rl_assets.graph.checks.rules import THEMES
from rl_assets.graph.dataset import GraphDataset
from rl_assets.spec.dataset import DataToRolloutSpec
from tests.build import (
    BROKEN,
    IN_PARTS,
    LONG,
    TRAIN,
    VAL,
    evaluations,
    failed,
    failure,
    make_dataset,
    materialize,
    materialized,
    problem,
    versions,
    write_jsonl,
)

LOOSE = {"reject_rate": {"max": 0.5}}
ToyRun = tuple[GraphDataset, dg.ExecuteInProcessResult]


def changed(dataset: GraphDataset, **blocks: dict[str, Any]) -> GraphDataset:
    """The dataset with some keys of some blocks of its YAML changed."""
    values = dataset.spec.model_dump()
    for block, changes in blocks.items():
        values[block].update(changes)
    return GraphDataset(DataToRolloutSpec.model_validate(values), dataset.root)


def generated(result: dg.ExecuteInProcessResult) -> int:
    (event,) = [e for e in result.get_asset_materialization_events() if e.asset_key.path[-1] == "rollouts"]
    return event.materialization.metadata["generated_responses"].value


def test_the_run_succeeds_with_every_asset_and_evaluates_every_check(toy_run: ToyRun) -> None:
    _, result = toy_run
    assert result.success
    made = materialized(result)
    sources = ["reward_function", "tokenizer", "policy"]
    assert sorted(made) == sorted([*ASSETS, *sources])
    assert [name for name in made if name not in sources] == list(ASSETS)
    assert set(evaluations(result)) >= {
        "raw_files.no_file_is_empty",
        "rejected_rows.reject_rate",
        "field_contract.uids",
        "field_contract.rows_conserved",
        "field_contract.placeholder_media",
        "length_filtered.uids",
        "length_filtered.rows_conserved",
        "length_filtered.placeholder_media",
        "length_filtered.fills_a_batch",
        "proto_shards.uids",
        "proto_shards.rows_conserved",
        "proto_shards.shard_rules",
        "rollouts.uids",
        "rollouts.rows_conserved",
        "rollouts.tensor_rules",
        "reward_inputs.uids",
        "reward_inputs.rows_conserved",
        "reward_inputs.reward_fields_unchanged",
        "reward_scores.scorer_works",
        "prompt_difficulty.learning_signal",
        "verl_dataset.loads_whole",
    }
    # Eight tokens are too few for most answers, and one row has no ground truth.
    expected = {"rejected_rows.reward_model_rules"}
    assert failed(result) - {"prompt_difficulty.learning_signal", "rollouts.few_are_truncated"} == expected


def test_every_raw_row_is_somewhere(toy_run: ToyRun) -> None:
    dataset, _ = toy_run
    rows = {
        name: [(row["source_file"], row["source_row"]) for row in dataset.table(name).rows()]
        for name in ("rejected_rows", "overlong_rows", "unrenderable_rows", "length_filtered")
    }
    train = "data/toy/train.jsonl"
    assert rows["overlong_rows"] == [(train, 5)]
    assert rows["unrenderable_rows"] == [(train, 6)]
    assert rows["rejected_rows"] == [(train, 7)]
    everything = [(train, row) for row in range(8)] + [("data/toy/val.jsonl", row) for row in range(3)]
    assert sorted(place for places in rows.values() for place in places) == everything


def test_a_refused_row_says_why_and_is_itself_in_the_table(toy_run: ToyRun) -> None:
    dataset, _ = toy_run
    (contract,) = dataset.table("rejected_rows").rows()
    assert contract["code"] == "reward_model.ground_truth_missing"
    assert json.loads(contract["row"]) == BROKEN
    (render,) = dataset.table("unrenderable_rows").rows()
    assert (render["code"], render["stage"]) == ("render.template_error", "render")
    assert json.loads(render["row"])["prompt"] == IN_PARTS["prompt"]


def test_reward_inputs_hold_the_raw_reward_fields_n_times(toy_run: ToyRun) -> None:
    dataset, _ = toy_run
    rows = list(dataset.table("reward_inputs").rows())
    sources = {"data/toy/train.jsonl": (TRAIN, 2), "data/toy/val.jsonl": (VAL, 1)}
    assert Counter(row["source_file"] for row in rows) == {
        "data/toy/train.jsonl": 10,
        "data/toy/val.jsonl": 3,
    }
    for row in rows:
        raw, n = sources[row["source_file"]]
        source = raw[row["source_row"]]
        assert json.loads(row["ground_truth"]) == source["reward_model"]["ground_truth"]
        assert json.loads(row["extra_info"]) == source["extra_info"]
        assert row["data_source"] == source["data_source"]
        assert row["sample_index"] in range(n)
        assert row["finish_reason"] in ("stop", "length")
    assert any(row["solution_str"] for row in rows)


def test_validation_prompts_are_answered_greedily_and_train_prompts_are_sampled(toy_run: ToyRun) -> None:
    dataset, _ = toy_run
    for ref, data in dataset.shards("rollouts"):
        assert data.meta_info["sampling"]["do_sample"] is (ref.name.startswith("train"))


def test_a_rebuild_without_a_change_generates_nothing_and_keeps_every_data_version(
    toy_run: ToyRun, toy: GraphDataset
) -> None:
    _, first = toy_run
    again = materialize(toy)
    assert generated(again) == 0
    assert versions(again) == versions(first)


def test_one_changed_row_rolls_out_only_its_shard(toy_run: ToyRun, toy: GraphDataset) -> None:
    rows = [*TRAIN]
    rows[0] = problem(70)
    write_jsonl(toy.root / "data/toy/train.jsonl", rows)
    result = materialize(toy)
    assert result.success
    before, after = (
        {ref.name: ref for ref in dataset.shard_manifest("proto_shards").shards}
        for dataset in (toy_run[0], toy)
    )
    touched = [ref for name, ref in after.items() if ref != before.get(name)]
    assert len(touched) < len(after)
    assert 0 < generated(result) <= 2 * sum(ref.rows for ref in touched)


def test_other_sampling_parameters_roll_out_again(toy: GraphDataset) -> None:
    assert generated(materialize(changed(toy, rollout={"seed": 1}), "rollouts")) == 10


def test_other_template_arguments_stop_a_rollout_of_old_prompts(toy: GraphDataset) -> None:
    same = {"chat_template": (toy.root / toy.spec.policy.path / "chat_template.jinja").read_text()}
    other = changed(toy, data={"apply_chat_template_kwargs": same}, rollout={"temperature": 0.9})
    result = materialize(other, "rollouts")
    assert not result.success
    assert "rendered with another template kwargs" in failure(result)


def test_too_many_rejects_stop_the_run_and_leave_the_contract(toy: GraphDataset) -> None:
    write_jsonl(toy.root / "data/toy/train.jsonl", [*TRAIN, *[BROKEN] * 20])
    contract = toy.table("field_contract").digest
    result = materialize(toy)
    assert not result.success
    sources = ["policy", "reward_function", "tokenizer"]
    assert materialized(result) == ["raw_files", *sources, "rejected_rows"]
    assert failed(result) == {"rejected_rows.reject_rate", "rejected_rows.reward_model_rules"}
    of_rows = {name for name in evaluations(result) if name.startswith("rejected_rows.")}
    assert of_rows == {f"rejected_rows.{theme}_rules" for theme in THEMES} | {"rejected_rows.reject_rate"}
    rules = evaluations(result)["rejected_rows.reward_model_rules"]
    assert rules.metadata["failures"].value == 21
    assert "train.jsonl" in str(rules.metadata["failing_rows"].value)
    (why,) = [event for event in result.all_events if event.event_type_value == "ASSET_OBSERVATION"]
    assert why.asset_key == toy.key("field_contract")
    said = why.asset_observation_data.asset_observation.metadata["why"].value
    assert "refuses 21 of 31 rows" in said
    assert "reward_model.ground_truth_missing: 21 rows" in said
    assert "rl-assets check --dataset toy" in failure(result)
    assert "refuses 21 of 31 rows" in failure(result)
    assert "data/toy/train.jsonl, row 7: [reward_model.ground_truth_missing]" in failure(result)
    assert toy.table("field_contract").digest == contract
    assert toy.table("rejected_rows").num_rows == 21


def test_a_theme_of_severity_error_stops_the_run_before_the_contract_is_replaced(tmp_path: Path) -> None:
    severities = {"reward_model_rules": "error"}
    checks = {"reject_rate": {"max": 1.0}, "severities": severities}
    dataset = make_dataset(tmp_path, [problem(1), BROKEN], checks=checks)
    result = materialize(dataset, "raw_files", "rejected_rows", "field_contract")
    assert not result.success
    assert materialized(result) == ["raw_files", "rejected_rows"]
    assert "reward_model_rules" in failure(result)


def test_a_reject_rate_of_severity_warn_is_shown_and_the_run_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    dataset = make_dataset(
        tmp_path, [problem(1), BROKEN], checks={"reject_rate": {"max": 0.0, "severity": "warn"}}
    )
    result = materialize(dataset, "raw_files", "rejected_rows", "field_contract")
    assert result.success
    assert failed(result) == {"rejected_rows.reject_rate", "rejected_rows.reward_model_rules"}
    assert dataset.table("field_contract").num_rows == 1
    log = capfd.readouterr().err
    assert "The field contract refuses 1 of 2 rows" in log
    assert "the check reward_model_rules on rejected_rows does not pass: 1 problem" in log


def test_warnings_of_the_contract_are_counted_in_the_log_before_anything_is_generated(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    dataset = make_dataset(tmp_path, [problem(1)] * 50 + [problem(2)])
    assert materialize(dataset, "raw_files", "rejected_rows", "field_contract").success
    told = "rows with warnings: extra_info.index_duplicate 49, row.duplicate 49"
    assert told in capfd.readouterr().err


def test_an_overlong_prompt_is_an_error_when_the_filter_is_off(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path, [problem(1), LONG], data={"filter_overlong_prompts": False})
    result = materialize(
        dataset,
        "raw_files",
        "rejected_rows",
        "field_contract",
        "overlong_rows",
        "unrenderable_rows",
        "length_filtered",
    )
    assert not result.success
    assert "data/toy/train.jsonl, row 1" in failure(result)
    assert "filter_overlong_prompts" in failure(result)


def test_a_cap_takes_the_same_prompts_whatever_else_is_there(tmp_path: Path) -> None:
    def sharded(rows: list[dict]) -> set[str]:
        dataset = make_dataset(tmp_path / str(len(rows)), rows, data={"train_max_samples": 3})
        assets = ["raw_files", "rejected_rows", "field_contract"]
        assets += ["overlong_rows", "unrenderable_rows", "length_filtered", "proto_shards"]
        result = materialize(dataset, *assets)
        assert result.success
        assert failed(result) == set()
        return {uid for _, data in dataset.shards("proto_shards") for uid in data.non_tensor_batch["uid"]}

    ten = [problem(number) for number in range(10)]
    assert len(sharded(ten)) == 3
    assert len(sharded(ten) & sharded(ten[:-1])) >= 2


def test_a_dataset_may_have_only_validation_files(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path, val=VAL[:1])
    result = materialize(dataset)
    assert result.success
    assert failed(result) == set()
    assert dataset.table("reward_inputs").num_rows == 1


def test_without_previews_no_text_of_a_row_reaches_the_event_log(tmp_path: Path, small_policy: Path) -> None:
    secret = [problem(1, prompt=[{"role": "user", "content": "the secret question"}])]
    dataset = make_dataset(
        tmp_path,
        [*secret, problem(2, prompt=[{"role": "the secret role", "content": "x"}])],
        data={"max_response_length": 2},
        policy=small_policy,
        previews=False,
        checks=LOOSE,
    )
    result = materialize(dataset)
    assert result.success
    events = "".join(str(event.event_specific_data) for event in result.all_events)
    assert "hidden: previews is false" in events
    assert "the secret" not in events


def test_the_policys_own_media_tokens_are_refused_in_text(tmp_path: Path) -> None:
    policy = tmp_path / "policy"
    policy.mkdir()
    added = [{"id": 7, "content": "[[picture-of-image]]", "special": True}]
    (policy / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    injected = problem(1, prompt=[{"role": "user", "content": "What is on [[picture-of-image]]?"}])
    dataset = make_dataset(tmp_path, [problem(0), injected], policy=policy, checks=LOOSE)
    assert materialize(dataset, "raw_files", "rejected_rows", "field_contract").success
    (row,) = dataset.table("rejected_rows").rows()
    assert (row["source_row"], row["code"]) == (1, "media.vision_token")
