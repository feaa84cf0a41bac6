"""Rollouts shard by shard: nothing is made twice, and devices share the work without changing its result."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl_assets.policy.fingerprint import policy_fingerprint
from rl_assets.policy.vocabulary import read_vocabulary
from rl_assets.protocol.manifest import ShardManifest
from rl_assets.protocol.shards import read_shard, write_shard
from rl_assets.rollout.params import SamplingParams
from rl_assets.rollout.shards import RolloutResult, roll_out_shards
from tests.rollout import tiny


def prompt_shards(root: Path, contents: Sequence[Sequence[Sequence[int]]]) -> ShardManifest:
    """One prompt shard per item; a prompt's uid is made of its tokens."""
    refs = []
    for number, ids in enumerate(contents):
        uids = ["".join(f"{token:02x}" for token in row) for row in ids]
        refs.append(write_shard(root, f"train-{number:04}", tiny.batch(ids, uid=uids)))
    return ShardManifest(shards=refs, stamps={"render": "r"})


def roll_out(
    prompts: ShardManifest, tmp_path: Path, policy: Path, said: list[str] | None = None, **options: Any
) -> RolloutResult:
    settings = {
        "policy_path": policy,
        "policy_options": {"device": "cpu"},
        "vocabulary": read_vocabulary(policy),
        "sampling": {"train": SamplingParams(n=3)},
        "prompt_length": 30,
        "response_length": 12,
        "max_batch_size": 4,
        "log": (said if said is not None else []).append,
        **options,
    }
    return roll_out_shards(prompts, tmp_path / "prompts", tmp_path / "rollouts", **settings)


IDS = tiny.text_ids(9, 30)
SHARDS = [IDS[:4], IDS[4:6], IDS[6:]]


def test_an_unchanged_rebuild_generates_nothing_and_loads_no_policy(
    tmp_path: Path, llama_folder: Path
) -> None:
    prompts = prompt_shards(tmp_path / "prompts", SHARDS)
    said: list[str] = []
    first = roll_out(prompts, tmp_path, llama_folder)
    again = roll_out(prompts, tmp_path, llama_folder, said)
    assert (first.stats.generated, again.stats.generated) == (27, 0)
    assert again.manifest == first.manifest
    assert first.manifest.stamps == {"render": "r", "policy": policy_fingerprint(llama_folder)}
    assert not any("loading" in line for line in said)


def test_of_a_changed_shard_only_the_new_rows_are_generated(tmp_path: Path, llama_folder: Path) -> None:
    roll_out(prompt_shards(tmp_path / "prompts", SHARDS), tmp_path, llama_folder)
    changed = prompt_shards(tmp_path / "prompts", [[*IDS[:3], [50, 51, 52]], *SHARDS[1:]])
    result = roll_out(changed, tmp_path, llama_folder)
    assert result.stats.generated == 3
    assert result.manifest.rows == 27


def test_other_parameters_are_other_shards_beside_the_first(tmp_path: Path, llama_folder: Path) -> None:
    prompts = prompt_shards(tmp_path / "prompts", SHARDS)
    first = roll_out(prompts, tmp_path, llama_folder)
    other = roll_out(prompts, tmp_path, llama_folder, sampling={"train": SamplingParams(n=3, seed=1)})
    assert other.stats.generated == 27
    for ref in (*first.manifest.shards, *other.manifest.shards):
        assert len(read_shard(tmp_path / "rollouts", ref)) == ref.rows


def test_two_devices_give_what_one_gives(tmp_path: Path, llama_folder: Path) -> None:
    said: list[str] = []
    prompts = prompt_shards(tmp_path / "prompts", SHARDS)
    one = roll_out(prompts, tmp_path, llama_folder)
    other = tmp_path / "other"
    prompt_shards(other / "prompts", SHARDS)
    two = roll_out(prompts, other, llama_folder, said, devices=["cpu", "cpu"])
    for left, right in zip(one.manifest.shards, two.manifest.shards, strict=True):
        assert left == right
    assert two.stats.generated_tokens == one.stats.generated_tokens
    assert two.stats.generated == one.stats.generated
    assert sum("loading" in line for line in said) == 2
    assert all(line.startswith("[cpu] ") for line in said)
