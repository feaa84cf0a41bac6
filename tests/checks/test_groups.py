"""Checks on groups: the responses under a uid answer one prompt for one reward, n times."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rl_assets.graph.dataset import GraphDataset
from rl_assets.protocol.dataproto import DataProto
from rl_assets.protocol.manifest import ShardManifest
from rl_assets.protocol.shards import write_shard
from rl_assets.rewards.inputs import REWARD_INPUT_SCHEMA
from tests.checks.stores import bare_dataset, evaluate, problems, put
from tests.rewards.builders import reward_input, uid


def inputs(dataset: GraphDataset, *rows: dict[str, Any]) -> list[str]:
    put(dataset, "reward_inputs", REWARD_INPUT_SCHEMA, rows)
    return problems(evaluate(dataset, "reward_inputs", "groups"))


def rollouts(dataset: GraphDataset, prompts: list[int], texts: list[str]) -> list[str]:
    """Problems of a shard with one response per entry, all under one uid."""
    data = DataProto.from_dict(
        tensors={"prompts": torch.tensor(prompts).reshape(-1, 1)},
        non_tensors={
            "uid": [uid(0)] * len(prompts),
            "raw_prompt": [[{"role": "user", "content": text}] for text in texts],
            "source_file": ["t.jsonl"] * len(prompts),
            "source_row": [0] * len(prompts),
        },
    )
    ref = write_shard(dataset.storage / "rollouts", "train-00000-of-00001", data)
    manifest = ShardManifest(shards=[ref]).model_dump_json()
    (dataset.storage / "rollouts.json").write_text(manifest)
    return problems(evaluate(dataset, "rollouts", "groups"))


def test_whole_groups_pass(tmp_path: Path) -> None:
    dataset = bare_dataset(tmp_path)
    validation = reward_input(2, 0, split="val")
    rows = [reward_input(prompt, sample) for prompt in (0, 1) for sample in (0, 1)]
    assert inputs(dataset, *rows, validation) == []


def test_a_short_group_is_found(tmp_path: Path) -> None:
    dataset = bare_dataset(tmp_path)
    assert inputs(dataset, reward_input(0, 0), reward_input(0, 1), reward_input(1, 1)) == [
        "the sample indices are [1], expected 0 … 1 once each"
    ]


def test_a_group_whose_ground_truths_differ_is_found(tmp_path: Path) -> None:
    (problem,) = inputs(bare_dataset(tmp_path), reward_input(0, 0), reward_input(0, 1, ground_truth=72))
    assert problem.startswith("`ground_truth` differs within the group")


def test_a_group_in_two_places_is_found(tmp_path: Path) -> None:
    rows = [reward_input(prompt, sample) for sample in (0, 1) for prompt in (0, 1)]
    assert any("in more than one place" in problem for problem in inputs(bare_dataset(tmp_path), *rows))


@pytest.mark.parametrize(
    ("prompts", "texts", "faults"),
    [([7, 7], ["a", "a"], 0), ([7, 8], ["a", "a"], 1), ([7, 7], ["a", "b"], 1)],
    ids=["same", "other ids", "other text"],
)
def test_responses_under_a_uid_answer_one_prompt(
    tmp_path: Path, prompts: list[int], texts: list[str], faults: int
) -> None:
    found = rollouts(bare_dataset(tmp_path), prompts, texts)
    assert found == ["the prompt is not that of the group's first response"] * faults
