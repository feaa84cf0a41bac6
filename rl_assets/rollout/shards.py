"""Rollouts shard by shard: what is there already is kept, the rest is generated."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from upath import UPath

from rl_assets.progress import Log
from rl_assets.protocol import ShardManifest, ShardRef, find_shard, read_shard, write_shard
from rl_assets.rollout import (
    Policy,
    SamplingParams,
    generate_rollouts,
    load_policy,
    policy_fingerprint,
)
from rl_assets.store import digest_json


@dataclass(frozen=True)
class RolloutResult:
    """The rollout shards, and what it took to make them.

    Attributes:
        manifest: one rollout shard per prompt shard, in their order.
        policy_fingerprint: digest of the policy's config, weights and tokenizer.
        generated: responses that were generated; the others were there already.
        tokens: valid tokens of the generated responses.
        seconds: time spent generating, the loading of the policy left out.
    """

    manifest: ShardManifest
    policy_fingerprint: str
    generated: int
    tokens: int
    seconds: float


def roll_out_shards(
    prompts: ShardManifest,
    prompts_root: Path | UPath,
    root: Path | UPath,
    *,
    policy_path: Path | str,
    policy_options: Mapping[str, Any],
    sampling: Mapping[str, SamplingParams],
    prompt_length: int,
    response_length: int,
    max_batch_size: int | None,
    log: Log,
) -> RolloutResult:
    """Answer every prompt of every shard.

    A rollout shard is named after everything that its responses depend on: the digest of its prompt shard,
    the policy's fingerprint, the sampling parameters and the two lengths. One of that name that is there
    and whole is taken as it is, so a run that was killed goes on where it stopped, and a rebuild without a
    change generates nothing and does not load the policy.

    Args:
        prompts: manifest of the prompt shards; their names begin with their split.
        prompts_root: the folder in which they lie.
        root: the folder that receives the rollout shards.
        policy_path: folder or hub id of the policy.
        policy_options: keyword arguments of `load_policy`.
        sampling: how the prompts of each split are answered.
        prompt_length: width of the `prompts` tensor in tokens.
        response_length: width of the `responses` tensor in tokens.
        max_batch_size: most sequences decoded at once; None lets the engine choose.
        log: receives progress lines.

    Raises:
        InputError: the policy does not load, or a shard is damaged.
    """
    fingerprint = policy_fingerprint(policy_path)
    policy: Policy | None = None
    refs: list[ShardRef] = []
    generated = tokens = 0
    seconds = 0.0
    for number, shard in enumerate(prompts.shards, start=1):
        how = sampling[shard.name.split("-")[0]]
        address = digest_json(
            {
                "prompts": shard.digest,
                "policy": fingerprint,
                "sampling": how.digest,
                "lengths": [prompt_length, response_length],
            }
        )
        name = f"{shard.name}-{address[:12]}"
        where = f"shard {number} of {len(prompts.shards)} ({shard.name})"
        if there := find_shard(root, name):
            log(f"rollouts: {where} is up to date")
            refs.append(there)
            continue
        if policy is None:
            log(f"rollouts: loading {policy_path}")
            policy = load_policy(policy_path, **policy_options)
        log(f"rollouts: {where}, {shard.rows} prompts × {how.n}")
        start = time.monotonic()
        data = generate_rollouts(
            policy,
            read_shard(prompts_root, shard),
            how,
            prompt_length=prompt_length,
            response_length=response_length,
            max_batch_size=max_batch_size,
            log=log,
        )
        seconds += time.monotonic() - start
        generated += len(data)
        tokens += int(data.batch["response_mask"].sum())
        refs.append(write_shard(root, name, data))
    manifest = ShardManifest(shards=refs, stamps={**prompts.stamps, "policy": fingerprint})
    return RolloutResult(manifest, fingerprint, generated, tokens, seconds)
