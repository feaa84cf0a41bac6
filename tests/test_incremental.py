"""What a change makes the graph do again, and that it does nothing else again."""

import dataclasses
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from rl_assets.dataset.records import read_record
from rl_assets.graph.assets import build_assets
from rl_assets.graph.dataset import GraphDataset
from rl_assets.graph.io import store_resources
from rl_assets.graph.provenance import git_commit
from rl_assets.graph.unchanged import UNCHANGED
from rl_assets.protocol import sharding
from rl_assets.spec.dataset import DataToRolloutSpec
from tests.build import BROKEN, LONG, VAL, failure, make_dataset, problem, write_jsonl
from tests.small import WITH_TOOLS, save_small_policy

TRAIN = [*(problem(number) for number in range(6)), LONG, BROKEN]
SCORE = (
    "def compute_score(data_source, solution_str, ground_truth, extra_info, base=0):\n    return base + {}\n"
)
TOOLS = "tools:\n- tool_schema:\n    type: function\n    function: {{name: {}, description: adds}}\n"

SOURCES = {"policy", "tokenizer", "tool_schemas", "reward_function"}
CONTRACT = {"rejected_rows", "field_contract"}
GATE = {"length_filtered", "overlong_rows", "unrenderable_rows"}
SCORED = {"reward_scores", "prompt_difficulty", "verl_dataset", "build_report"}
BELOW_ROLLOUTS = {"reward_inputs", *SCORED}
EVERYTHING = {*SOURCES, "raw_files", *CONTRACT, *GATE, "proto_shards", "rollouts", *BELOW_ROLLOUTS}
# The responses come out the same, so their scores are not computed again.
SAME_RESPONSES = BELOW_ROLLOUTS - {"reward_scores"}

Change = Callable[[GraphDataset], GraphDataset]


@pytest.fixture(scope="module", autouse=True)
def _without_checks() -> Iterator[None]:
    """Checks, and when they are evaluated again, have tests of their own; here they only take time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rl_assets.graph.unchanged.require_passed", lambda dataset, assets: None)
        yield


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> GraphDataset:
    """A dataset with tools and a reward function of its own, after one run; not to be changed."""
    root = tmp_path_factory.mktemp("project")
    policy = save_small_policy(root / "policy", template=WITH_TOOLS)
    (root / "score.py").write_text(SCORE.format("len(solution_str)"))
    (root / "tools.yaml").write_text(TOOLS.format("add"))
    dataset = make_dataset(
        root,
        TRAIN,
        VAL,
        data={"max_response_length": 4, "tool_config_path": "tools.yaml"},
        policy=policy.relative_to(root),
        checks={"reject_rate": {"max": 0.5}},
        shards={"count": 4},
        reward={"custom_reward_function": {"path": "score.py"}, "num_workers": 1},
    )
    assert recomputed(rebuild(dataset)) == EVERYTHING
    return dataset


@pytest.fixture
def dataset(built: GraphDataset, tmp_path: Path) -> GraphDataset:
    """The same in a folder of its own, to be changed."""
    shutil.copytree(built.root, tmp_path / "project")
    return dataclasses.replace(built, root=tmp_path / "project")


def rebuild(
    dataset: GraphDataset, *assets: str, instance: dg.DagsterInstance | None = None
) -> dg.ExecuteInProcessResult:
    """Run the graph (or the named assets), without its checks."""
    return dg.materialize(
        build_assets(dataset),
        selection=[dataset.key(name) for name in assets] or None,
        resources=store_resources(dataset.root),
        instance=instance,
        raise_on_error=False,
    )


def metadata(result: dg.ExecuteInProcessResult) -> dict[str, dict[str, Any]]:
    """What every asset that was materialised shows, by name."""
    return {
        event.asset_key.path[-1]: {k: v.value for k, v in event.materialization.metadata.items()}
        for event in result.get_asset_materialization_events()
    }


def recomputed(result: dg.ExecuteInProcessResult) -> set[str]:
    """The assets of a run that are not said to be unchanged."""
    assert result.success, failure(result)
    return {name for name, shown in metadata(result).items() if UNCHANGED not in shown}


def says(**blocks: Any) -> Change:
    """A change of the YAML: keys within blocks, or whole values."""

    def change(dataset: GraphDataset) -> GraphDataset:
        values = dataset.spec.model_dump()
        for name, value in blocks.items():
            values[name] = {**values[name], **value} if isinstance(value, dict) else value
        return dataclasses.replace(dataset, spec=DataToRolloutSpec.model_validate(values))

    return change


def writes(edit: Callable[[Path], object]) -> Change:
    """A change of files below the project's folder."""

    def change(dataset: GraphDataset) -> GraphDataset:
        edit(dataset.root)
        return dataset

    return change


def replace_row(root: Path, number: int = 0) -> None:
    rows = [*TRAIN]
    rows[number] = problem(70)
    write_jsonl(root / "data/toy/train.jsonl", rows)


def edit_template(root: Path) -> None:
    template = root / "policy/chat_template.jinja"
    template.write_text(template.read_text() + "Think first. ")


def edit_tokenizer(root: Path) -> None:
    path = root / "policy/tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][-1], "id": 49151, "content": "<|other|>"})
    path.write_text(json.dumps(tokenizer))


def move_policy(dataset: GraphDataset) -> GraphDataset:
    shutil.move(dataset.root / "policy", dataset.root / "moved")
    return says(policy={"path": "moved"})(dataset)


def edit_score(expression: str) -> Change:
    return writes(lambda root: (root / "score.py").write_text(SCORE.format(expression)))


ARGUMENTS = {"custom_reward_function": {"path": "score.py", "reward_kwargs": {"base": 1}}}

MATRIX: dict[str, tuple[Change, set[str]]] = {
    "nothing": (writes(lambda root: None), set()),
    "a raw file is touched": (writes(lambda root: (root / "data/toy/train.jsonl").touch()), set()),
    "one raw row": (writes(replace_row), EVERYTHING - SOURCES),
    "one rejected row": (
        writes(lambda root: write_jsonl(root / "data/toy/train.jsonl", [*TRAIN, BROKEN])),
        {"raw_files", *CONTRACT, "verl_dataset", "build_report"},
    ),
    "the template's arguments": (
        says(data={"apply_chat_template_kwargs": {"style": "brief"}}),
        {*GATE, "proto_shards", "rollouts", *SAME_RESPONSES},
    ),
    "the chat template": (
        writes(edit_template),
        {"policy", "tokenizer", *GATE, "proto_shards", "rollouts", *BELOW_ROLLOUTS},
    ),
    "the tokenizer": (
        writes(edit_tokenizer),  # a control token more: rows are judged again
        {"policy", "tokenizer", *CONTRACT, *GATE, "proto_shards", "rollouts", *SAME_RESPONSES},
    ),
    "the tool file": (
        writes(lambda root: (root / "tools.yaml").write_text(TOOLS.format("plus"))),
        {"tool_schemas", *GATE, "proto_shards", "rollouts", *SAME_RESPONSES},
    ),
    "a comment in the tool file": (
        writes(lambda root: (root / "tools.yaml").write_text("# adds\n" + TOOLS.format("add"))),
        set(),
    ),
    "the policy's weights": (
        writes(lambda root: save_small_policy(root / "policy", seed=1, template=WITH_TOOLS)),
        {"policy", "rollouts", *BELOW_ROLLOUTS},
    ),
    "the policy is moved": (move_policy, set()),
    "temperature": (says(rollout={"temperature": 0.5}), {"rollouts", *BELOW_ROLLOUTS}),
    "n": (says(rollout={"n": 3}), {"rollouts", *BELOW_ROLLOUTS}),
    "seed": (says(rollout={"seed": 1}), {"rollouts", *BELOW_ROLLOUTS}),
    # The same prompts fit, and their tensors have another width.
    "max_prompt_length": (
        says(data={"max_prompt_length": 95}),
        {*GATE, "rollouts", "reward_inputs", "prompt_difficulty"},
    ),
    "max_response_length": (says(data={"max_response_length": 5}), {"rollouts", *BELOW_ROLLOUTS}),
    "shard count": (says(shards={"count": 3}), {"proto_shards", "rollouts", *BELOW_ROLLOUTS}),
    "the reward function": (edit_score("2 * len(solution_str)"), {"reward_function", *SCORED}),
    "a comment in the reward function": (
        edit_score("len(solution_str)  # characters"),
        {"reward_function", "reward_scores"},
    ),
    "the reward function's arguments": (says(reward=ARGUMENTS), {"reward_function", *SCORED}),
    "curation": (says(curation={"max_per_source": 3}), {"verl_dataset", "build_report"}),
    "description": (says(description="Sums."), {"verl_dataset"}),
    "previews": (says(previews=False), EVERYTHING - SOURCES - {"raw_files"}),
    "micro_batch_size": (says(rollout={"micro_batch_size": 1}), set()),
    "device": (says(policy={"device": "cpu"}), set()),
    "thresholds of checks": (says(checks={"truncated_share": 0.9, "reject_rate": {"max": 0.6}}), set()),
    "schedule": (says(schedule={"cron": "0 5 * * *", "enabled": False}), set()),
    "owners": (says(owners=["team:other"]), set()),
}


@pytest.mark.parametrize("what", MATRIX)
def test_a_change_recomputes_exactly_what_depends_on_it(dataset: GraphDataset, what: str) -> None:
    change, expected = MATRIX[what]
    assert recomputed(rebuild(change(dataset))) == expected


def statuses(dataset: GraphDataset, instance: dg.DagsterInstance, status: StaleStatus) -> set[str]:
    """The assets that Dagster's UI shows with a status, by name."""
    defs = dg.Definitions(assets=build_assets(dataset), resources=store_resources(dataset.root))
    graph = defs.resolve_asset_graph()
    resolver = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
    return {key.path[-1] for key in graph.get_all_asset_keys() if resolver.get_status(key) == status}


@pytest.fixture
def watched(built: GraphDataset) -> dg.DagsterInstance:
    """An instance that has seen the dataset built."""
    instance = dg.DagsterInstance.ephemeral()
    rebuild(built, instance=instance)
    return instance


def test_after_a_rebuild_nothing_is_stale(dataset: GraphDataset, watched: dg.DagsterInstance) -> None:
    assert statuses(dataset, watched, StaleStatus.FRESH) == EVERYTHING
    rebuild(dataset, instance=watched)
    assert statuses(dataset, watched, StaleStatus.FRESH) == EVERYTHING


@pytest.mark.parametrize(
    ("edit", "seen", "stale"),
    [
        (edit_template, "tokenizer", {*GATE, "reward_inputs"}),
        (
            lambda root: save_small_policy(root / "policy", seed=1, template=WITH_TOOLS),
            "policy",
            {"rollouts"},
        ),
        (lambda root: (root / "tools.yaml").write_text(TOOLS.format("plus")), "tool_schemas", GATE),
        (
            lambda root: (root / "score.py").write_text(SCORE.format("1")),
            "reward_function",
            {"reward_scores"},
        ),
        (replace_row, "raw_files", {*CONTRACT, "verl_dataset"}),
    ],
    ids=["template", "policy", "tools", "reward function", "raw files"],
)
def test_a_changed_source_makes_stale_what_reads_it(
    dataset: GraphDataset,
    watched: dg.DagsterInstance,
    edit: Callable[[Path], object],
    seen: str,
    stale: set[str],
) -> None:
    edit(dataset.root)
    rebuild(dataset, seen, instance=watched)
    assert statuses(dataset, watched, StaleStatus.STALE) == stale


def test_a_changed_yaml_makes_stale_what_reads_it_until_the_rebuild(
    dataset: GraphDataset, watched: dg.DagsterInstance
) -> None:
    cooler = says(rollout={"temperature": 0.5})(dataset)
    assert statuses(cooler, watched, StaleStatus.STALE) == {"rollouts"}
    rebuild(cooler, instance=watched)
    assert statuses(cooler, watched, StaleStatus.FRESH) == EVERYTHING


def test_one_changed_row_touches_one_shard_and_is_answered_alone(
    built: GraphDataset, dataset: GraphDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    collate, collated = sharding.collate_fn, list[int]()
    monkeypatch.setattr(sharding, "collate_fn", lambda rows: collated.append(len(rows)) or collate(rows))
    replace_row(dataset.root)
    shown = metadata(rebuild(dataset))
    before, after = (
        {ref.name: ref for ref in part.shard_manifest("proto_shards").shards} for part in (built, dataset)
    )
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert 1 <= len(changed) <= 2  # the shard that lost the old row, and the one that got the new
    assert sum(collated) == sum(after[name].rows for name in changed & after.keys())
    assert shown["length_filtered"]["rendered_rows"] == 1
    assert shown["rollouts"]["generated_responses"] == 2
    assert shown["rollouts"]["reused_responses"] == dataset.shard_manifest("rollouts").rows - 2


DAMAGES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a table is gone": ("field_contract.parquet", Path.unlink),
    "a table is cut": ("length_filtered.parquet", lambda path: path.write_bytes(path.read_bytes()[:-9])),
    "a shard's file is gone": ("proto_shards/*/rows.parquet", Path.unlink),
    "a rollout's file is another": (
        "rollouts/*/tensors.safetensors",
        lambda path: path.write_bytes(bytes(path.stat().st_size)),
    ),
    "a file for the trainer is gone": ("verl_dataset/train.parquet", Path.unlink),
    "the report is gone": ("build_report.md", Path.unlink),
    "a record is gone": ("reward_inputs.build.json", Path.unlink),
    "a record is of another Dagster": (
        "length_filtered.build.json",
        lambda path: path.write_text(path.read_text().replace("MetadataEntryData", "OtherData")),
    ),
    "a record is cut": ("reward_inputs.build.json", lambda path: path.write_text("{")),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_what_is_missing_or_damaged_is_made_again(
    built: GraphDataset, dataset: GraphDataset, what: str
) -> None:
    pattern, damage = DAMAGES[what]
    target = next(iter(sorted(Path(str(dataset.storage)).glob(pattern))))
    whole = (Path(str(built.storage)) / target.relative_to(str(dataset.storage))).read_bytes()
    damage(target)
    asset = pattern.split("/")[0].split(".")[0]
    assert asset in recomputed(rebuild(dataset))
    if "record" not in what:
        assert target.read_bytes() == whole
    assert recomputed(rebuild(dataset)) == set()


def test_a_step_that_fails_half_way_is_done_whole_the_next_time(dataset: GraphDataset) -> None:
    """It stored two of its tables before it found a prompt that is too long."""
    strict = says(data={"filter_overlong_prompts": False})(dataset)
    assert not rebuild(strict, *GATE).success
    assert recomputed(rebuild(dataset)) == GATE


def test_a_lower_limit_stops_an_unchanged_contract_and_judges_no_row_again(dataset: GraphDataset) -> None:
    strict = says(checks={"reject_rate": {"max": 0.0}})(dataset)
    result = rebuild(strict)
    assert not result.success
    assert "refuses 1 of 11 rows" in failure(result)
    assert UNCHANGED in metadata(result)["rejected_rows"]
    assert "field_contract" not in metadata(result)
    assert recomputed(rebuild(dataset)) == set()


def test_a_changed_medium_is_judged_again(tmp_path: Path) -> None:
    from PIL import Image

    image = problem(
        1,
        prompt=[{"role": "user", "content": "<image>What is it?"}],
        images=[{"image": "a.png"}],
    )
    dataset = make_dataset(tmp_path, [problem(0), image], checks={"reject_rate": {"max": 0.5}})
    contract = ("raw_files", *CONTRACT)
    assert recomputed(rebuild(dataset, *contract)) == set(contract)
    assert recomputed(rebuild(dataset, *contract)) == set()
    for colour in ("red", "green"):
        Image.new("RGB", (8, 8), colour).save(tmp_path / "data/toy/a.png")
        assert recomputed(rebuild(dataset, *contract)) == CONTRACT
        assert recomputed(rebuild(dataset, *contract)) == set()
    assert dataset.table("field_contract").num_rows == 2


def test_every_materialisation_says_which_code_made_it(dataset: GraphDataset) -> None:
    (dataset.root / "data/toy/train.jsonl").touch()
    shown = metadata(rebuild(dataset))
    codes = {spec.key.path[-1]: spec.code_version for part in build_assets(dataset) for spec in part.specs}
    for name in EVERYTHING:
        assert shown[name]["code_version"] == codes[name]
        assert shown[name]["rl_assets"].startswith("0.")
        assert "git_commit" not in shown[name]  # the project lies in no checkout
        assert read_record(dataset, name).run_id in shown[name][UNCHANGED]


def test_the_commit_is_that_of_the_projects_checkout(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    assert git_commit.__wrapped__(tmp_path) is None
    subprocess.run([*git, "init", "-q"], check=True)
    assert git_commit.__wrapped__(tmp_path) is None
    (tmp_path / "file").touch()
    subprocess.run([*git, "add", "file"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "first"], check=True)
    head = subprocess.run(
        [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    assert git_commit.__wrapped__(tmp_path) == head
    (tmp_path / "file").write_text("other")
    assert git_commit.__wrapped__(tmp_path) == f"{head}-dirty"


def test_without_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert git_commit.__wrapped__(tmp_path) is None


def test_an_object_store_is_known_by_the_properties_of_its_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RL_ASSETS_STORAGE", f"memory://{tmp_path.name}")
    dataset = make_dataset(tmp_path, [problem(0)])
    contract = ("raw_files", *CONTRACT)
    assert recomputed(rebuild(dataset, *contract)) == set(contract)
    assert recomputed(rebuild(dataset, *contract)) == set()
    table = dataset.storage / "field_contract.parquet"
    table.write_bytes(table.read_bytes())
    assert recomputed(rebuild(dataset, *contract)) == CONTRACT
