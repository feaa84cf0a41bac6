"""The blocks `policy`, `rollout` and `shards`: what answers the prompts, and how."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from rl_assets.spec.common import SpecModel
from rl_assets.spec.limits import Column, Count, PathText, Responses, Seed, Temperature, TopK
from rl_assets.spec.verl_keys import schema_extra


class PolicySpec(SpecModel):
    """The checkpoint that answers the prompts; its tokenizer and chat template render them."""

    model_config = ConfigDict(json_schema_extra=schema_extra("policy"))

    path: PathText
    """A local folder (relative to the project's top folder) or a hub id; verl's
    `actor_rollout_ref.model.path`."""

    device: Column = "auto"
    """`auto` is CUDA where there is one and the CPU otherwise; or `cpu`, `cuda`, `cuda:1`."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """`auto` is bfloat16 on CUDA and float32 on the CPU; verl's `actor_rollout_ref.rollout.dtype`."""

    attn_implementation: Column = "auto"
    """An attention implementation of transformers; `auto` is its default, sdpa."""


class ValKwargs(SpecModel):
    """verl's `val_kwargs`: how the prompts of `val_files` are answered."""

    model_config = ConfigDict(json_schema_extra=schema_extra("rollout.val_kwargs"))

    n: Responses = 1
    """Responses per prompt."""

    do_sample: bool = False
    """False, or a temperature of 0, is greedy."""

    temperature: Temperature = 0.0
    """Sampling temperature."""

    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling; 1 is off."""

    top_k: TopK = -1
    """Sample among this many tokens; -1 is off."""


class RolloutSpec(SpecModel):
    """verl's `actor_rollout_ref.rollout` block, for Hugging Face generate."""

    model_config = ConfigDict(json_schema_extra=schema_extra("rollout"))

    name: Literal["hf"] = "hf"
    """The engine."""

    n: Responses = 1
    """Responses per train prompt."""

    do_sample: bool = True
    """False, or a temperature of 0, is greedy."""

    temperature: Temperature = 1.0
    """Sampling temperature."""

    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling; 1 is off."""

    top_k: TopK = -1
    """Sample among this many tokens; -1 is off."""

    stop: list[Column] = Field([])
    """A response ends with the token that completes one of these texts."""

    seed: Seed = 0
    """With the uid and the sample index it decides every sampled token, whatever the batch."""

    micro_batch_size: Count | None = None
    """Most sequences that are decoded at once; null lets the engine choose."""

    val_kwargs: ValKwargs = Field(default_factory=ValKwargs)
    """How validation prompts are answered."""


class ShardSpec(SpecModel):
    """How rows are spread over shards: by uid modulo the count."""

    count: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Shards per split; null takes the smallest power of two that keeps every shard within the budget."""

    max_rows: Count = 8192
    """Most prompts in a shard, where `count` is null."""

    max_bytes: Annotated[int, Field(ge=1, le=2**40)] = 64 * 2**20
    """Largest shard in bytes, about, where `count` is null; media are kept apart and do not count."""
