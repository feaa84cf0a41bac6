"""Keys of a verl configuration that a defs.yaml does not have, and what to write in their place.

One table: the schema that `dg check yaml` uses and the errors of loading are both made from it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

_TRAINER = "leave it out: it belongs to the trainer"
_ENGINE = (
    "leave it out: it is a setting of an inference server, and responses are generated with transformers"
)
_MODEL = "leave it out: a setting of the trained model; the checkpoint is policy.path"
_TURNS = "leave it out: a response is one turn"
_METRICS = "leave it out: the run's own log and metadata say what was done"

_ENGINE_KEYS = """
    mode nnodes n_gpus_per_node gpu_memory_utilization enforce_eager cudagraph_capture_sizes
    free_cache_engine tensor_model_parallel_size data_parallel_size expert_parallel_size
    pipeline_model_parallel_size max_num_batched_tokens max_num_seqs max_model_len
    enable_chunked_prefill enable_prefix_caching logprobs_mode scheduling_policy load_format
    layered_summon disable_log_stats over_sample_rate multi_stage_wake_up engine_kwargs
    router_config_path checkpoint_engine skip_tokenizer_init enable_rollout_routing_replay
    moe_load_balance_metrics_interval quantization quantization_config_file mtp qat disaggregation
    limit_images log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu log_prob_use_dynamic_bsz
    log_prob_max_token_len_per_gpu
"""
_PENALTIES = (
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_p",
    "typical_p",
    "min_tokens",
)
_SAMPLERS = "leave it out: responses are sampled with temperature, top_p and top_k alone"
_SAMPLING = {
    **dict.fromkeys(_PENALTIES, _SAMPLERS),
    "response_length": "write data.max_response_length in its place",
    "prompt_length": "write data.max_prompt_length in its place",
    "max_tokens": "write data.max_response_length in its place",
    "max_new_tokens": "write data.max_response_length in its place",
}
_TRAINER_KEYS = """
    trainer critic actor ref optim distillation transfer_queue global_profiler profiler ray_kwargs
    ray_init skip model_engine hydra defaults
"""
_MODEL_KEYS = """
    hf_config_path use_shm external_lib override_config enable_gradient_checkpointing
    enable_activation_offload use_remove_padding lora_rank lora_alpha target_modules exclude_modules
    lora use_liger use_fused_kernels fused_kernel_options tiled_mlp mtp
"""
_REWARD_MODEL = (
    "leave it out: scores come from reward.custom_reward_function or the built-in scorers. Where a reward "
    "model scores elsewhere, list its sources in contract.known_data_sources"
)
_MANAGER = "leave it out: it belongs to the trainer; here each response is scored by itself"

ANSWERS: Mapping[str, Mapping[str, str]] = {
    "": {
        **dict.fromkeys(_TRAINER_KEYS.split(), _TRAINER),
        "actor_rollout_ref": "write its model.path as policy.path and its rollout block as rollout",
        "model": "write its path as policy.path",
        "algorithm": "leave it out; for its filter_groups write curation.pass_rate, such as [0.1, 0.9]",
        "filter_groups": "write curation.pass_rate, such as [0.1, 0.9]",
        "custom_reward_function": "write it one level down, as reward.custom_reward_function",
        "reward_model": _REWARD_MODEL,
        "reward_manager": _MANAGER,
        "sandbox_fusion": "leave it out: call the service in a reward.custom_reward_function of your own",
        "train_files": "write it one level down, as data.train_files",
        "val_files": "write it one level down, as data.val_files",
        "train_batch_size": "write it one level down, as data.train_batch_size",
    },
    "data": {
        "path": "write data.train_files",
        "filter_groups": "write curation.pass_rate, such as [0.1, 0.9]",
        "response_key": "leave it out: the policy writes the responses",
        "chat_template": "leave it out: the template is that of the policy's folder",
        "continue_final_message": "write it in data.apply_chat_template_kwargs",
        "enable_thinking": "write it in data.apply_chat_template_kwargs",
        "reward_model": _REWARD_MODEL,
        "custom_reward_function": "write it as reward.custom_reward_function",
        "tokenizer_path": "leave it out: the tokenizer is that of the policy's folder",
        "partial_pretrain": "write policy.path",
    },
    "policy": {
        **dict.fromkeys(_MODEL_KEYS.split(), _MODEL),
        "tokenizer_path": "leave it out: the tokenizer is that of policy.path",
        "trust_remote_code": "write data.trust_remote_code in its place",
        "custom_chat_template": "leave it out: the template is that of the policy's folder",
        "lora_adapter_path": "merge the adapter into the checkpoint and name that in policy.path",
    },
    "rollout": {
        **dict.fromkeys(_ENGINE_KEYS.split(), _ENGINE),
        **_SAMPLING,
        "dtype": "write policy.dtype in its place",
        "ignore_eos": "leave it out: a response ends where the policy ends it",
        "full_determinism": "leave it out: sampling depends on rollout.seed, not on the batch",
        "calculate_log_probs": "leave it out: log-probabilities are always in the shards",
        "multi_turn": f"{_TURNS}. Write its tool_config_path as data.tool_config_path",
        "tool_config_path": "write data.tool_config_path in its place",
        "agent": f"{_TURNS}. Write names of agent loops of your own in contract.known_agent_names",
        "trace": _METRICS,
        "profiler": _METRICS,
        "prometheus": _METRICS,
        "max_response_length": "write data.max_response_length in its place",
        "max_prompt_length": "write data.max_prompt_length in its place",
    },
    "rollout.val_kwargs": {**_SAMPLING, "seed": "write rollout.seed: it holds for both splits"},
    "reward": {
        "reward_manager": _MANAGER,
        "manager": _MANAGER,
        "reward_model": _REWARD_MODEL,
        "sandbox_fusion": "leave it out: call the service in a reward.custom_reward_function of your own",
        "reward_kwargs": "write reward.custom_reward_function.reward_kwargs in its place",
        "overlong_buffer": "leave it out: punish length in a reward.custom_reward_function of your own",
        "path": "write reward.custom_reward_function.path in its place",
        "name": "write reward.custom_reward_function.name in its place",
    },
}
"""By block (its path in the YAML; `""` is the top level) and key."""

VALUES: Mapping[str, tuple[str, str]] = {
    "rollout.name": (
        "hf",
        "leave it out: responses are generated with transformers here, whichever engine the trainer uses",
    ),
}
"""By path: the only value, and what to do about another."""


def answer(path: str) -> str | None:
    """What to write in place of a key of verl's that is not known here; None where it is not verl's."""
    block, _, key = path.rpartition(".")
    if path in VALUES:
        return VALUES[path][1]
    return ANSWERS.get(block, {}).get(key)


def schema_extra(block: str) -> dict[str, Any]:
    """The answers of a block as a part of its JSON schema: a validator quotes them at the key's line.

    They are a condition inside `allOf`, so that they are no keys of the block.
    """
    found = dict(_constants(block))
    return {"allOf": [{"properties": found}]} if found else {}


def _constants(block: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """A key that may only be its own answer is refused, and the message is `'<answer>' was expected`."""
    for key, text in ANSWERS.get(block, {}).items():
        yield key, {"const": f"(nothing: {text})"}
    for path, (value, text) in VALUES.items():
        if path.rpartition(".")[0] == block:
            yield path.rpartition(".")[2], {"enum": [value, f"(or {text})"]}
