"""`rl-assets trace`: where a row is, what became of it, and what made it."""

import json
from pathlib import Path

import dagster as dg
import pytest
from pydantic import BaseModel
from rich.console import Console

from rl_assets.cli.trace import _view
from rl_assets.cli.trace_row import find_row, trace_row
from rl_assets.cli.traced import Place, Tools, Trace
from rl_assets.errors import InputError
from rl_assets.graph.dataset import GraphDataset
from tests.build import BROKEN, TRAIN, make_dataset, materialize, problem, write_jsonl
from tests.checks.stores import bare_dataset, contract_row, put, put_contract
from tests.prompts.families import WEATHER

ToyRun = tuple[GraphDataset, dg.ExecuteInProcessResult]
FILE = "data/toy/train.jsonl"


def trace(dataset: GraphDataset, target: str, history: dg.DagsterInstance | None = None) -> Trace:
    found, place = find_row([dataset], target)
    return trace_row(found, place, history)


def screen(trace: Trace) -> list[str]:
    """What a terminal of 100 columns shows."""
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(_view(trace))
    return console.export_text().splitlines()


def test_an_accepted_row_is_followed_to_its_scores(toy_run: ToyRun) -> None:
    dataset, _ = toy_run
    first = trace(dataset, f"{FILE}:0")
    assert (first.source_file, first.source_row, first.split) == (FILE, 0, "train")
    assert first.contract is not None
    assert first.contract.verdict == "accepted"
    assert first.contract.ground_truth == TRAIN[0]["reward_model"]["ground_truth"]
    assert first.contract.extra_info == TRAIN[0]["extra_info"]
    assert first.prompt is not None
    assert first.prompt.verdict == "fits"
    question = TRAIN[0]["prompt"][0]["content"]
    assert f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n" in (first.prompt.text or "")
    assert first.shard is not None
    (ref,) = [one for one in dataset.shard_manifest("proto_shards").shards if one.name == first.shard.name]
    uids = next(data for shard, data in dataset.shards("proto_shards") if shard == ref).non_tensor_batch[
        "uid"
    ]
    assert uids[first.shard.row] == first.uid
    scores = [row for row in dataset.table("reward_scores").rows() if row["uid"] == first.uid]
    assert [(r.sample_index, r.text, r.score, r.finish_reason, r.tokens) for r in first.responses] == [
        (s["sample_index"], s["solution_str"], s["score"], s["finish_reason"], s["response_length"])
        for s in scores
    ]
    assert len(scores) == 2
    assert first.difficulty is not None
    assert first.difficulty["n"] == 2
    assert first.verl_dataset is not None
    assert (first.verl_dataset.taken, first.verl_dataset.file) == (True, "train.parquet")


def test_a_uid_its_beginning_and_the_end_of_a_path_lead_to_the_same_row(toy_run: ToyRun) -> None:
    dataset, _ = toy_run
    uid = trace(dataset, f"{FILE}:0").uid
    assert uid
    for target in (uid, uid[:12], "train.jsonl:0", "toy/train.jsonl:0"):
        assert find_row([dataset], target)[1] == Place(uid, FILE, 0, "train")


@pytest.mark.parametrize(
    ("row", "asset", "problem"),
    [
        (5, "overlong_rows", "overlong: "),
        (6, "unrenderable_rows", "render.template_error"),
        (7, "rejected_rows", "reward_model.ground_truth_missing"),
    ],
)
def test_a_row_that_was_set_aside_says_why(toy_run: ToyRun, row: int, asset: str, problem: str) -> None:
    dataset, _ = toy_run
    lines = screen(trace(dataset, f"{FILE}:{row}"))
    assert any(line.startswith("✗") and asset in line for line in lines)
    assert any(problem in line for line in lines)
    for later in ("rollouts", "prompt_difficulty", "verl_dataset"):
        assert any(later in line and "did not come here" in line for line in lines)


def test_a_rejected_row_shows_itself(toy_run: ToyRun) -> None:
    contract = trace(toy_run[0], f"{FILE}:7").contract
    assert contract is not None
    assert json.loads(contract.row or "") == BROKEN


def test_the_screen_holds_every_stage_within_100_columns(toy_run: ToyRun) -> None:
    lines = screen(trace(toy_run[0], f"{FILE}:0"))
    assert max(map(len, lines)) <= 100
    stages = [line.split()[1] for line in lines if line.startswith("✓")]
    assert stages == [
        "field_contract",
        "length_filtered",
        "proto_shards",
        "rollouts",
        "reward_inputs",
        "reward_scores",
        "prompt_difficulty",
        "verl_dataset",
    ]
    assert any("No run history" in line for line in lines)


def test_a_row_that_came_halfway_is_shown_as_far_as_it_came(tmp_path: Path, small_policy: Path) -> None:
    """Here a run stopped after the rollouts: responses are decoded from the shards."""
    dataset = make_dataset(tmp_path, [problem(0)], data={"max_response_length": 2}, policy=small_policy)
    instance = dg.DagsterInstance.ephemeral()
    materialize(dataset, "policy", "raw_files", "rejected_rows", "field_contract", instance=instance)
    early = trace(dataset, f"{FILE}:0", instance)
    assert (early.prompt, early.shard, early.responses) == (None, None, [])
    assert any("rollouts" in line and "not made yet" in line for line in screen(early))
    gate = ["unrenderable_rows", "overlong_rows", "length_filtered"]
    result = materialize(dataset, *gate, "proto_shards", "rollouts", instance=instance)
    late = trace(dataset, f"{FILE}:0", instance)
    assert len(late.responses) == 2
    assert all(response.score is None and response.tokens <= 2 for response in late.responses)
    assert late.made["rollouts"].run_id == result.run_id
    assert late.made["field_contract"].run_id != result.run_id
    assert late.made["rollouts"].time is not None
    assert any(f"run {result.run_id[:8]}" in line for line in screen(late))


def test_an_asset_that_was_never_made_is_named_where_it_is_needed(tmp_path: Path, small_policy: Path) -> None:
    dataset = make_dataset(tmp_path, [problem(0)], policy=small_policy)
    for asset in ("policy", "proto_shards"):
        with pytest.raises(InputError, match=f"expected the asset toy/{asset}"):
            dataset.manifest(BaseModel, asset)


def test_tools_and_warnings_of_a_row_are_shown(tmp_path: Path) -> None:
    rows = [problem(0), problem(1, tools=[WEATHER]), problem(2, tools=[]), problem(0, extra_info={})]
    other = {"type": "function", "function": {"name": "clock"}}
    (tmp_path / "tools.yaml").write_text(json.dumps({"tools": [{"tool_schema": other}]}))
    dataset = make_dataset(
        tmp_path,
        rows,
        data={"tool_config_path": "tools.yaml"},
        contract={"severities": {"render.tools_lost": "warning"}},
    )
    contract = ["tool_schemas", "raw_files", "rejected_rows", "field_contract"]
    materialize(dataset, *contract, "unrenderable_rows", "overlong_rows", "length_filtered")
    traces = [trace(dataset, f"{FILE}:{row}") for row in range(4)]
    configured = Tools(names=["clock"], source="tools.yaml (data.tool_config_path)")
    own = Tools(names=["weather"], source="the row's column `tools`")
    assert [one.contract and one.contract.tools for one in traces] == [configured, own, None, configured]
    warnings = [
        ([w.code for w in one.contract.warnings], [w.code for w in one.prompt.warnings])
        for one in traces
        if one.contract and one.prompt
    ]
    lost = ["render.tools_lost"]
    assert warnings == [([], lost), ([], lost), ([], []), (["row.duplicate"], lost)]
    lines = screen(traces[3])
    assert any("clock (from tools.yaml (data.tool_config_path))" in line for line in lines)
    for code in ("row.duplicate", "render.tools_lost"):
        assert any(code in line for line in lines)
    long = make_dataset(
        tmp_path,
        rows,
        data={"max_prompt_length": 5},
        contract={"severities": {"render.tools_lost": "warning"}},
    )
    materialize(long, *contract[1:], "unrenderable_rows", "overlong_rows", "length_filtered")
    prompt = trace(long, f"{FILE}:1").prompt
    assert prompt
    assert (prompt.verdict, [one.code for one in prompt.warnings]) == ("overlong", lost)
    # A table that an older version wrote is shown as far as it goes.
    old = long.table("field_contract").read().drop_columns(["warnings"])
    put(long, "field_contract", old.schema, old.to_pylist())
    contract_before = trace(long, f"{FILE}:3").contract
    assert contract_before
    assert (contract_before.verdict, contract_before.warnings) == ("accepted", [])


def test_a_raw_file_that_changed_since_is_said(toy: GraphDataset) -> None:
    write_jsonl(toy.root / FILE, TRAIN[1:])
    assert "has changed since" in trace(toy, f"{FILE}:0").notes[0]


def test_why_a_prompt_was_not_taken_into_the_training_set(tmp_path: Path, small_policy: Path) -> None:
    dataset = make_dataset(
        tmp_path,
        [problem(0), problem(1)],
        data={"max_response_length": 2},
        policy=small_policy,
        curation={"max_per_source": 1},
    )
    materialize(dataset)
    verdicts = [trace(dataset, f"{FILE}:{row}").verl_dataset for row in (0, 1)]
    (left,) = [verdict for verdict in verdicts if verdict and not verdict.taken]
    assert left.reason
    assert left.detail


def test_an_ambiguous_beginning_lists_the_rows(tmp_path: Path) -> None:
    dataset = bare_dataset(tmp_path)
    put_contract(dataset, *(contract_row(number) for number in range(5)))
    with pytest.raises(InputError, match=r"5 rows for '000'.*train.jsonl:0.*2 more, expected one"):
        find_row([dataset], "000")


@pytest.mark.parametrize("target", ["zzz", "train.jsonl:99", "other.jsonl:0", ".*:0", ""])
def test_what_no_row_has_is_refused(tmp_path: Path, target: str) -> None:
    dataset = bare_dataset(tmp_path)
    put_contract(dataset, contract_row(0), contract_row(1))
    with pytest.raises(InputError, match=r"no row for|2 rows for ''"):
        find_row([dataset], target)


def test_a_dataset_that_was_never_built_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="DATASET_rebuild"):
        find_row([bare_dataset(tmp_path)], "abc")
