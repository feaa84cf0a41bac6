"""`rollouts`: the policy's responses to every prompt, shard by shard."""

from array import array
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg

from rl_assets.contract.files.manifest import SPLITS
from rl_assets.graph.assets.proto_shards import shard_metadata
from rl_assets.graph.assets.sources import Source
from rl_assets.graph.dataset import GraphDataset, device_retries, refusals
from rl_assets.graph.display import PREVIEW_ROWS, histogram, last_message
from rl_assets.graph.unchanged import step
from rl_assets.media.store import MediaStore
from rl_assets.protocol.manifest import ShardManifest
from rl_assets.rewards.solution import decode_responses

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rl_assets.protocol.dataproto import DataProto

DESCRIPTION = """\
The policy's responses: per prompt shard a `DataProto` with `prompts`, `responses`, `input_ids`,
`attention_mask`, `position_ids` and `response_mask`, `n` rows per prompt, with the uid and the reward
fields of the prompt beside every row.

Prompts of `train_files` are sampled as `rollout` says, prompts of `val_files` as `rollout.val_kwargs`
says. A shard whose prompts, policy and sampling parameters are unchanged is not generated again.
`rl-assets trace UID` shows a prompt as it was rendered, and all responses to it."""

_NO_WORK = {
    "generated_responses": 0,
    "generated_tokens": 0,
    "tokens_per_second": 0.0,
    "peak_memory_bytes": 0,
    "reused_responses": None,
}


def build_rollouts(dataset: GraphDataset) -> dg.AssetsDefinition:
    """The asset `<dataset>/rollouts`."""
    spec = dataset.spec

    @dg.asset(
        **dataset.describe(
            "rollouts",
            DESCRIPTION,
            "huggingface",
            "torch",
            reads={
                "policy": spec.policy.model_dump(include={"dtype", "attn_implementation"}),
                "rollout": spec.rollout.model_dump(exclude={"micro_batch_size"}),
                "data": spec.data.model_dump(
                    include={"max_prompt_length", "max_response_length", "mm_processor_kwargs"}
                ),
            },
        ),
        # One run at a time uses the accelerator: dagster.yaml gives pools run granularity and a limit of 1.
        pool="gpu",
        ins={"proto_shards": dg.AssetIn(key=dataset.key("proto_shards"))},
        deps=dataset.depends("policy"),
        partitions_def=dataset.partitions,
    )
    @step(dataset, work=_NO_WORK)
    def rollouts(
        dataset: GraphDataset, context: dg.AssetExecutionContext, proto_shards: ShardManifest
    ) -> dg.MaterializeResult[ShardManifest]:
        from rl_assets.policy.fingerprint import policy_folder
        from rl_assets.policy.vocabulary import read_vocabulary
        from rl_assets.protocol.shards import read_shard
        from rl_assets.rollout.shards import roll_out_shards

        with refusals(), device_retries():
            renderer = dataset.renderer()
            renderer.stamp.require(proto_shards.stamps, f"{dataset.name}/proto_shards")
            vocabulary = read_vocabulary(
                policy_folder(dataset.policy), renderer.tokenizer, spec.data.apply_chat_template_kwargs
            )
            for remark in vocabulary.remarks():
                context.log.warning(f"rollouts: {remark}")
            result = roll_out_shards(
                proto_shards,
                dataset.storage / "proto_shards",
                dataset.storage / "rollouts",
                policy_path=dataset.policy,
                policy_options={
                    **spec.policy.model_dump(exclude={"path"}),
                    "trust_remote_code": spec.data.trust_remote_code,
                },
                fingerprint=dataset.manifest(Source, "policy").digest,
                vocabulary=vocabulary,
                sampling={split: dataset.sampling(split) for split in SPLITS},
                prompt_length=spec.data.max_prompt_length,
                response_length=spec.data.max_response_length,
                max_batch_size=spec.rollout.micro_batch_size,
                media=renderer.media and renderer.media.reading(MediaStore(dataset.storage / "media")),
                log=context.log.info,
            )
            manifest, stats = result.manifest, result.stats
            shards = (read_shard(dataset.storage / "rollouts", ref) for ref in manifest.shards)
            responses = _responses(shards, renderer.tokenizer, dataset)
        return dg.MaterializeResult(
            value=manifest,
            data_version=dg.DataVersion(manifest.digest),
            metadata={
                **responses,
                **shard_metadata(dataset, "rollouts", manifest),
                "generated_responses": stats.generated,
                "reused_responses": manifest.rows - stats.generated,
                "generated_tokens": stats.generated_tokens,
                "tokens_per_second": round(stats.tokens_per_second, 1),
                "peak_memory_bytes": stats.peak_memory,
                "policy_fingerprint": manifest.stamps["policy"],
                "a_response_ends_at": vocabulary.ends(),
            },
        )

    return rollouts


def _responses(
    shards: Iterable["DataProto"], tokenizer: "PreTrainedTokenizerBase", dataset: GraphDataset
) -> Mapping[str, Any]:
    """Lengths, truncated share and a few responses, for the UI; one shard at a time is in memory."""
    limit = dataset.spec.data.max_response_length
    lengths: dict[str, array[int]] = {}
    truncated = rows = 0
    preview: list[dict[str, Any]] = []
    for data in shards:
        fields = data.non_tensor_batch
        valid = data.batch["response_mask"].sum(-1).tolist()
        for index, length in enumerate(valid):
            lengths.setdefault(fields["split"][index], array("i")).append(length)
            truncated += fields["finish_reason"][index] == "length"
            rows += 1
            if len(preview) < PREVIEW_ROWS:
                ids = data.batch["responses"][index, :length].tolist()
                preview.append(
                    {
                        "uid": fields["uid"][index],
                        "sample": fields["sample_index"][index],
                        "prompt": last_message(fields["raw_prompt"][index]),
                        "response": decode_responses(tokenizer, [ids])[0],
                        "finish_reason": fields["finish_reason"][index],
                    }
                )
    return {
        "preview": dataset.preview(preview, ["uid", "sample", "prompt", "response", "finish_reason"]),
        "response_lengths": histogram(lengths, "response length in tokens", limit),
        "truncated_share": round(truncated / max(rows, 1), 4),
    }
