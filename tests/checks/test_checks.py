"""Every check passes on what the graph made, and fails on what it is there to find."""

import math
import re
from collections.abc import Callable
from typing import Any, get_args

import pytest

from rl_assets.base.files import publish_file, staging, write_file
from rl_assets.base.tables import TableWriter
from rl_assets.graph.checks import CHECKS
from rl_assets.graph.checks.findings import SHOWN_ROWS, Findings
from rl_assets.graph.checks.record import READS
from rl_assets.graph.dataset import GraphDataset
from rl_assets.protocol.dataproto import DataProto
from rl_assets.protocol.manifest import ShardManifest
from rl_assets.protocol.shards import write_shard
from rl_assets.spec.checks import CheckName

Rows = list[dict[str, Any]]
BY_NAME = {f"{check.asset}.{check.name}": check for check in CHECKS}


def rewrite(dataset: GraphDataset, asset: str, change: Callable[[Rows], object]) -> None:
    """Change the rows that an asset stored."""
    table = dataset.table(asset)
    rows = list(table.rows())
    change(rows)
    with staging(dataset.storage) as folder:
        with TableWriter(folder / "table", table.schema) as writer:
            writer.write_rows(rows)
        publish_file(folder / "table", table.path)


def reshard(dataset: GraphDataset, asset: str, change: Callable[[DataProto], DataProto | None]) -> None:
    """Change the first shard of an asset; None takes it out of the manifest."""
    manifest = dataset.shard_manifest(asset)
    first, *others = manifest.shards
    data = change(next(iter(dataset.shards(asset)))[1])
    refs = [] if data is None else [write_shard(dataset.storage / asset, first.name, data)]
    changed = ShardManifest(shards=[*refs, *others], stamps=manifest.stamps)
    write_file(dataset.storage / f"{asset}.json", changed.model_dump_json().encode())


def set_field(column: str, value: Any) -> Callable[[Rows], object]:
    """Set a column of the first row."""
    return lambda rows: rows[0].update({column: value})


def drop_first(rows: Rows) -> None:
    del rows[0]


def repeat_first(rows: Rows) -> None:
    rows.append(rows[0])


def set_tensor(name: str, column: int, value: int) -> Callable[[DataProto], DataProto]:
    """Set one column of a tensor, in every row."""

    def change(data: DataProto) -> DataProto:
        data.batch[name][:, column] = value
        return data

    return change


def set_values(key: str, value: Any) -> Callable[[DataProto], DataProto]:
    """Set a field of the first row."""

    def change(data: DataProto) -> DataProto:
        data.non_tensor_batch[key][0] = value
        return data

    return change


def blocking_what_was_drawn(data: DataProto) -> DataProto:
    data.meta_info["blocked_token_ids"] = data.batch["responses"][0, :1].tolist()
    return data


def without_tensor(data: DataProto) -> DataProto:
    del data.batch["response_mask"]
    return data


def without_first_row(data: DataProto) -> DataProto:
    return data[1:]


def with_another_field(data: DataProto) -> DataProto:
    data.non_tensor_batch["surprise"] = data.non_tensor_batch["uid"].copy()
    return data


def gone(data: DataProto) -> None:
    return None


IMAGE = '[{"role":"user","content":[{"type":"image"},{"type":"text","text":"What is it?"}]}]'

TABLE_FAULTS = [
    ("field_contract.uids", "field_contract", set_field("uid", "")),
    ("field_contract.uids", "field_contract", set_field("uid", "with_underscore")),
    ("field_contract.uids", "field_contract", repeat_first),
    ("field_contract.rows_conserved", "rejected_rows", drop_first),
    ("field_contract.placeholder_media", "field_contract", set_field("prompt", IMAGE)),
    ("length_filtered.uids", "length_filtered", set_field("uid", "0" * 32)),
    ("length_filtered.rows_conserved", "overlong_rows", drop_first),
    ("length_filtered.placeholder_media", "length_filtered", set_field("prompt", IMAGE)),
    ("length_filtered.fills_a_batch", "length_filtered", lambda rows: rows.clear()),
    ("proto_shards.rows_conserved", "length_filtered", drop_first),
    ("proto_shards.uids", "length_filtered", lambda rows: rows.clear()),
    ("reward_inputs.uids", "reward_inputs", set_field("sample_index", 9)),
    ("reward_inputs.rows_conserved", "reward_inputs", drop_first),
    ("reward_inputs.reward_fields_unchanged", "reward_inputs", set_field("ground_truth", "0")),
    ("reward_inputs.reward_fields_unchanged", "reward_inputs", set_field("extra_info", "{}")),
    ("reward_inputs.reward_fields_unchanged", "reward_inputs", set_field("data_source", "other")),
    ("reward_inputs.reward_fields_unchanged", "reward_inputs", set_field("uid", "0" * 32)),
]

SHARD_FAULTS = [
    ("proto_shards.rows_conserved", "proto_shards", gone),
    ("proto_shards.uids", "proto_shards", set_values("uid", "1" * 32)),
    ("proto_shards.shard_rules", "proto_shards", set_values("prompt_ids", [])),
    ("proto_shards.shard_rules", "proto_shards", set_values("prompt_ids", [1] * 97)),
    ("proto_shards.shard_rules", "proto_shards", with_another_field),
    ("rollouts.rows_conserved", "rollouts", without_first_row),
    ("rollouts.uids", "rollouts", without_first_row),
    ("rollouts.uids", "rollouts", set_values("sample_index", 7)),
    ("rollouts.tensor_rules", "rollouts", without_tensor),
    ("rollouts.tensor_rules", "rollouts", set_tensor("attention_mask", 0, 1)),
    ("rollouts.tensor_rules", "rollouts", set_tensor("attention_mask", 96, 0)),
    ("rollouts.tensor_rules", "rollouts", set_tensor("response_mask", 0, 0)),
    ("rollouts.tensor_rules", "rollouts", set_tensor("position_ids", 0, 5)),
    ("rollouts.tensor_rules", "rollouts", set_tensor("position_ids", -1, 5)),
    ("rollouts.tensor_rules", "rollouts", set_tensor("input_ids", -1, 5)),
    ("rollouts.tensor_rules", "rollouts", set_tensor("prompts", 95, 5)),
    ("rollouts.tensor_rules", "rollouts", set_tensor("raw_log_probs", 0, math.nan)),
    ("rollouts.tensor_rules", "rollouts", set_tensor("rollout_log_probs", 0, -math.inf)),
    ("rollouts.tensor_rules", "rollouts", set_tensor("rollout_log_probs", 0, 0.5)),
    ("rollouts.tensor_rules", "rollouts", blocking_what_was_drawn),
]


CUT = "rollouts.few_are_truncated"
UNSOLVED = "prompt_difficulty.learning_signal"
"""Eight tokens are too few for an answer, so these two depend on what the policy happened to write."""
REFUSED = "rejected_rows.reward_model_rules"
"""The toy dataset has a row without a ground truth, so this one fails as it should."""


@pytest.mark.parametrize("name", sorted(BY_NAME.keys() - {REFUSED, CUT, UNSOLVED}))
def test_a_check_passes_on_what_the_graph_made(toy_run: tuple[GraphDataset, Any], name: str) -> None:
    assert BY_NAME[name].evaluate(toy_run[0]).passed


def test_many_truncated_responses_are_a_warning(toy_run: tuple[GraphDataset, Any]) -> None:
    """Eight tokens are too few for most answers of the toy dataset."""
    findings = BY_NAME[CUT].evaluate(toy_run[0])
    share = findings.numbers["truncated_share"]
    assert findings.passed is (share <= 0.5)
    spec = toy_run[0].spec
    checks = spec.checks.model_copy(update={"truncated_share": 1.0})
    assert (
        BY_NAME[CUT]
        .evaluate(GraphDataset(spec.model_copy(update={"checks": checks}), toy_run[0].root))
        .passed
    )
    checks = spec.checks.model_copy(update={"truncated_share": 0.0})
    strict = BY_NAME[CUT].evaluate(GraphDataset(spec.model_copy(update={"checks": checks}), toy_run[0].root))
    assert strict.failures == strict.numbers["truncated"] + 1  # the share, and each response


def test_a_theme_of_rules_counts_what_each_refused_zeros_included(toy_run: tuple[GraphDataset, Any]) -> None:
    findings = BY_NAME[REFUSED].evaluate(toy_run[0])
    assert findings.numbers["reward_model.ground_truth_missing"] == 1
    assert findings.numbers["reward_model.not_an_object"] == 0
    (row,) = findings.rows
    assert (row["source_file"], row["source_row"]) == ("data/toy/train.jsonl", 7)
    assert row["problem"].startswith("[reward_model.ground_truth_missing]")


@pytest.mark.parametrize(("name", "asset", "fault"), TABLE_FAULTS)
def test_a_check_finds_a_fault_in_a_table(
    toy: GraphDataset, name: str, asset: str, fault: Callable[[Rows], object]
) -> None:
    rewrite(toy, asset, fault)
    assert not BY_NAME[name].evaluate(toy).passed


@pytest.mark.parametrize(("name", "asset", "fault"), SHARD_FAULTS)
def test_a_check_finds_a_fault_in_a_shard(
    toy: GraphDataset, name: str, asset: str, fault: Callable[[DataProto], DataProto | None]
) -> None:
    reshard(toy, asset, fault)
    assert not BY_NAME[name].evaluate(toy).passed


def test_an_empty_file_is_found(toy: GraphDataset) -> None:
    manifest = toy.raw_manifest()
    files = [file.model_copy(update={"rows": 0}) for file in manifest.files]
    write_file(
        toy.storage / "raw_files.json",
        manifest.model_copy(update={"files": files}).model_dump_json().encode(),
    )
    findings = BY_NAME["raw_files.no_file_is_empty"].evaluate(toy)
    assert [row["source_file"] for row in findings.rows] == ["data/toy/train.jsonl", "data/toy/val.jsonl"]


def test_a_failing_row_is_named_with_its_uid_file_and_row(toy: GraphDataset) -> None:
    rewrite(toy, "field_contract", set_field("prompt", IMAGE))
    (row,) = BY_NAME["field_contract.placeholder_media"].evaluate(toy).rows
    first = toy.table("field_contract").head(1)[0]
    assert row == {
        "uid": first["uid"],
        "source_file": "data/toy/train.jsonl",
        "source_row": 0,
        "problem": "1 `<image>` and 0 images",
    }


def test_a_damaged_shard_fails_the_check_by_name(toy: GraphDataset) -> None:
    ref = toy.shard_manifest("proto_shards").shards[0]
    rows = toy.storage / "proto_shards" / ref.path / "rows.parquet"
    damaged = bytearray(rows.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    rows.write_bytes(damaged)
    result = BY_NAME["proto_shards.shard_rules"].result(toy)
    assert not result.passed
    assert ref.path in str(result.metadata["failing_rows"])


def test_a_check_shows_a_bounded_number_of_rows() -> None:
    findings = Findings()
    for number in range(SHOWN_ROWS + 5):
        findings.fail("problem", {"uid": str(number)})
    assert (findings.failures, len(findings.rows)) == (SHOWN_ROWS + 5, SHOWN_ROWS)
    assert not findings.passed


def test_the_yaml_knows_every_check_and_no_other() -> None:
    assert set(get_args(CheckName)) == {check.name for check in CHECKS}


def test_every_check_is_explained_to_a_newcomer() -> None:
    """In a sentence or more; what a check reads is known, so that its findings can be kept."""
    for check in CHECKS:
        assert re.fullmatch(r"[A-Z`].{40,}\.", check.description, re.DOTALL), (check.asset, check.name)
    assert {check.asset for check in CHECKS} <= READS.keys()


def test_checks_over_shards_show_numbers_per_shard(toy_run: tuple[GraphDataset, Any]) -> None:
    dataset = toy_run[0]
    for check in CHECKS:
        if check.asset in ("proto_shards", "rollouts"):
            findings = check.find(dataset)
            shards = {ref.name for ref in dataset.shard_manifest(check.asset).shards}
            shown = {line["shard"] for line in findings.shards}
            assert shown == shards or shown == {
                ref.name for ref in dataset.shard_manifest("proto_shards").shards
            }
            assert check.result(dataset, findings).metadata["shards"].records


def test_lost_rows_are_named(toy: GraphDataset) -> None:
    rewrite(toy, "rejected_rows", drop_first)
    findings = BY_NAME["field_contract.rows_conserved"].evaluate(toy)
    assert [row["source_row"] for row in findings.rows] == [None, 7]


def test_a_failing_shard_is_first_and_counts_its_rows(toy: GraphDataset) -> None:
    reshard(toy, "proto_shards", set_values("prompt_ids", []))
    metadata = BY_NAME["proto_shards.shard_rules"].result(toy).metadata
    first, *others = [record.data for record in metadata["shards"].records]
    assert first["failures"] == 1
    assert {line["failures"] for line in others} == {0}
