"""A blocking check holds back what comes next, also when that is started alone."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow.parquet as pq
import pytest

from rl_assets.base.digests import digest_file
from rl_assets.graph.checks import CHECKS
from rl_assets.graph.checks.check import Check
from rl_assets.graph.dataset import GraphDataset
from rl_assets.protocol.dataproto import DataProto
from rl_assets.spec.dataset import DataToRolloutSpec
from tests.build import failed, failure, make_dataset, materialize, materialized, problem
from tests.checks.test_checks import (
    BY_NAME,
    IMAGE,
    SHARD_FAULTS,
    TABLE_FAULTS,
    Rows,
    drop_first,
    repeat_first,
    reshard,
    rewrite,
    set_field,
)

GATE = ["unrenderable_rows", "overlong_rows", "length_filtered"]
NEXT = {
    "field_contract": GATE,
    "length_filtered": ["proto_shards"],
    "proto_shards": ["rollouts"],
    "rollouts": ["reward_inputs"],
    "reward_inputs": ["reward_scores"],
    "reward_scores": ["prompt_difficulty"],
    "prompt_difficulty": ["verl_dataset"],
    "verl_dataset": ["build_report"],
}
"""What is made of each asset."""


def table(asset: str, change: Callable[[Rows], object]) -> Callable[[GraphDataset], None]:
    return lambda dataset: rewrite(dataset, asset, change)


def shard(asset: str, change: Callable[[DataProto], DataProto | None]) -> Callable[[GraphDataset], None]:
    return lambda dataset: reshard(dataset, asset, change)


def no_score(rows: Rows) -> None:
    for row in rows:
        row.update(score=None, error="ValueError: no")


def another_prompt_in_the_first_row(data: DataProto) -> DataProto:
    data.batch["prompts"][0, -1] = 5
    return data


def export_file(dataset: GraphDataset, name: str) -> Path:
    return Path(str(dataset.storage / "verl_dataset" / name))


def a_train_row_is_lost(dataset: GraphDataset) -> None:
    path = export_file(dataset, "train.parquet")
    pq.write_table(pq.read_table(path).slice(1), path)


def validation_holds_the_train_prompts(dataset: GraphDataset) -> None:
    export_file(dataset, "val.parquet").write_bytes(export_file(dataset, "train.parquet").read_bytes())


def a_number_is_beyond_every_reader(dataset: GraphDataset) -> None:
    rewrite(dataset, "length_filtered", set_field("extra_info", json.dumps({"seed": 2**70})))
    manifest = Path(str(dataset.storage / "verl_dataset.json"))
    export = json.loads(manifest.read_text())
    for file in export["files"]:
        file["json_columns"] = ["extra_info"]
    manifest.write_text(json.dumps(export))


VIDEO = [{"item": '"clip.mp4"', "bytes": None, "digest": None}]
"""A video file, which is not put into the training files as bytes."""

FAULTS: dict[str, Callable[[GraphDataset], None]] = {
    **{name: shard(asset, fault) for name, asset, fault in reversed(SHARD_FAULTS)},
    **{name: table(asset, fault) for name, asset, fault in reversed(TABLE_FAULTS)},
    "field_contract.scorer_known": table("field_contract", set_field("data_source", "nobody/scores")),
    "length_filtered.few_are_unrenderable": table("unrenderable_rows", lambda rows: rows.extend(rows * 10)),
    "length_filtered.trainers_read_rows": table("length_filtered", set_field("videos", VIDEO)),
    "rollouts.groups": shard("rollouts", another_prompt_in_the_first_row),
    "reward_inputs.groups": table("reward_inputs", set_field("sample_index", 9)),
    "reward_scores.rows_conserved": table("reward_scores", drop_first),
    "reward_scores.scorer_works": table("reward_scores", no_score),
    "prompt_difficulty.rows_conserved": table("prompt_difficulty", drop_first),
    "verl_dataset.rows_conserved": table("length_filtered", drop_first),
    "verl_dataset.loads_whole": a_train_row_is_lost,
    "verl_dataset.values_exact": a_number_is_beyond_every_reader,
    "verl_dataset.splits_apart": validation_holds_the_train_prompts,
}
BLOCKING = sorted(name for name, check in BY_NAME.items() if check.severity == dg.AssetCheckSeverity.ERROR)


def with_severities(dataset: GraphDataset, severities: dict[str, str]) -> GraphDataset:
    values = dataset.spec.model_dump()
    values["checks"]["severities"] = severities
    return GraphDataset(DataToRolloutSpec.model_validate(values), dataset.root)


def blocked_by_one(dataset: GraphDataset, check: Check) -> GraphDataset:
    """The dataset in which no check blocks but those of this one's name."""
    return with_severities(dataset, {other.name: "warn" for other in CHECKS if other.name != check.name})


def stored(dataset: GraphDataset, assets: list[str]) -> list[str]:
    files = (Path(str(dataset.storage)).glob(f"{asset}.*") for asset in assets)
    return [digest_file(file) for found in files for file in sorted(found)]


@pytest.mark.parametrize("name", BLOCKING)
def test_the_next_asset_alone_refuses_what_a_blocking_check_does_not_pass(
    toy: GraphDataset, name: str
) -> None:
    check = BY_NAME[name]
    dataset, following = blocked_by_one(toy, check), NEXT[check.asset]
    before = stored(dataset, following)
    assert before
    FAULTS[name](dataset)
    result = materialize(dataset, *following)
    assert not result.success
    assert materialized(result) == []
    assert f"to pass its check {check.name}" in failure(result)
    if check.asset != "length_filtered":
        assert stored(dataset, following) == before


def test_a_check_that_fails_stops_the_run_before_the_next_asset(tmp_path: Path) -> None:
    unknown = {"severities": {"data_source.unknown": "warning"}}
    dataset = make_dataset(tmp_path, [problem(0), problem(1, data_source="nobody/scores")], contract=unknown)
    result = materialize(dataset)
    assert not result.success
    assert failed(result) == {"field_contract.scorer_known"}
    assert materialized(result)[-2:] == ["rejected_rows", "field_contract"]
    assert "1 rows of 'nobody/scores'" in failure(materialize(dataset, *GATE))


def test_the_log_and_the_step_say_what_does_not_pass(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [problem(0), *(problem(n, data_source=f"nobody/{n}") for n in range(1, 6))]
    unknown = {"severities": {"data_source.unknown": "warning"}}
    dataset = make_dataset(tmp_path, rows, contract=unknown)
    result = materialize(dataset, "raw_files", "rejected_rows", "field_contract")
    first, *quoted, last = failure(result).splitlines()
    assert first == "the check scorer_known on field_contract does not pass: 5 problems"
    assert [line.partition(": ")[0] for line in quoted] == [
        f"  data/toy/train.jsonl, row {n}" for n in (1, 2, 3)
    ]
    assert "no built-in scorer reads it" in quoted[0]
    assert "Name a reward.custom_reward_function" in quoted[0]
    assert last == "  and 2 more: the check's table in the UI"
    assert failure(result) in capfd.readouterr().err


def test_with_severity_warn_the_failure_is_shown_and_the_run_goes_on(tmp_path: Path) -> None:
    dataset = make_dataset(
        tmp_path,
        [problem(0), problem(1, data_source="nobody/scores")],
        contract={"severities": {"data_source.unknown": "warning"}},
        checks={"severities": {"scorer_known": "warn"}},
    )
    assets = ["raw_files", "rejected_rows", "field_contract", *GATE]
    result = materialize(dataset, *assets)
    assert result.success
    (evaluation,) = [
        check for check in result.get_asset_check_evaluations() if check.check_name == "scorer_known"
    ]
    assert (evaluation.passed, evaluation.severity) == (False, dg.AssetCheckSeverity.WARN)


def test_a_warning_may_be_made_to_stop_the_run(tmp_path: Path) -> None:
    checks = {"severities": {"fills_a_batch": "error"}}
    dataset = make_dataset(tmp_path, [problem(0)], data={"train_batch_size": 2}, checks=checks)
    result = materialize(dataset)
    assert not result.success
    assert failed(result) == {"length_filtered.fills_a_batch"}
    assert materialized(result)[-1] == "length_filtered"


class Counted:
    """Counts how often checks are evaluated."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        find = Check.find

        def counted(check: Check, dataset: GraphDataset) -> Any:
            self.names.append(f"{check.asset}.{check.name}")
            return find(check, dataset)

        monkeypatch.setattr(Check, "find", counted)


def test_a_check_is_evaluated_once_for_what_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for the check's own step; the next asset and a rebuild without a change take what was found."""
    counted = Counted(monkeypatch)
    dataset = make_dataset(tmp_path, [problem(0)])
    assets = ["raw_files", "rejected_rows", "field_contract", *GATE]
    first = materialize(dataset, *assets)
    assert first.success
    assert len(counted.names) == len(set(counted.names)) > 10
    counted.names.clear()
    again = materialize(dataset, *assets)
    assert again.success
    assert counted.names == []
    numbers = [
        [(c.check_name, c.passed, c.metadata) for c in r.get_asset_check_evaluations()]
        for r in (first, again)
    ]
    assert numbers[0] == numbers[1]


def test_what_changed_is_checked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assets = ["raw_files", "rejected_rows", "field_contract", *GATE]
    dataset = make_dataset(tmp_path, [problem(0)])
    assert materialize(dataset, *assets).success
    counted = Counted(monkeypatch)
    more_rows = make_dataset(tmp_path, [problem(0), problem(1)])
    assert materialize(more_rows, *assets).success
    assert {"field_contract.uids", "length_filtered.uids"} <= set(counted.names)
    counted.names.clear()
    another_yaml = make_dataset(tmp_path, [problem(0), problem(1)], data={"train_batch_size": 3})
    assert "length_filtered.fills_a_batch" in failed(materialize(another_yaml, *assets))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (set_field("uid", ""), "field `uid`"),
        (set_field("uid", "with_underscore"), "field `uid`"),
        (repeat_first, "field `uid`"),
        (set_field("prompt", IMAGE), "1 <image> and 0 images"),
        (set_field("reward_model", "{}"), "field `reward_model`"),
    ],
)
def test_the_collator_refuses_such_rows_whatever_the_severities(
    toy: GraphDataset, fault: Callable[[Rows], object], message: str
) -> None:
    dataset = with_severities(toy, {check.name: "warn" for check in CHECKS})
    before = dataset.shard_manifest("proto_shards")
    rewrite(dataset, "length_filtered", fault)
    result = materialize(dataset, "proto_shards")
    assert not result.success
    assert message in failure(result)
    assert "data/toy/train.jsonl, row 0" in failure(result)
    assert dataset.shard_manifest("proto_shards") == before
