"""One row per response: the arguments of a reward function, and what traces them back."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from upath import UPath

from rl_assets.base.jsontext import to_json
from rl_assets.base.progress import Log, Progress
from rl_assets.base.tables import Table, TableWriter
from rl_assets.rewards.solution import decode_responses

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rl_assets.protocol.dataproto import DataProto
    from rl_assets.protocol.manifest import ShardManifest

REWARD_INPUT_SCHEMA = pa.schema(
    [
        pa.field("uid", pa.string(), nullable=False),
        pa.field("sample_index", pa.int32(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("data_source", pa.string(), nullable=False),
        pa.field("solution_str", pa.string(), nullable=False),
        pa.field("ground_truth", pa.string(), nullable=False),
        pa.field("extra_info", pa.string(), nullable=False),
        pa.field("finish_reason", pa.string(), nullable=False),
        pa.field("response_length", pa.int32(), nullable=False),
        pa.field("source_file", pa.string(), nullable=False),
        pa.field("source_row", pa.int64(), nullable=False),
    ]
)
"""`ground_truth` and `extra_info` are JSON text, so that a value keeps its type (`"72"` is a text, `72` a
number); everything else is plain."""


def build_reward_inputs(
    rollouts: "ShardManifest",
    root: Path | UPath,
    tokenizer: "PreTrainedTokenizerBase",
    *,
    folder: Path,
    log: Log,
) -> Table:
    """Decode every response and put it beside the reward fields of its prompt.

    `solution_str` is what verl's reward managers make of a response: its ids up to the valid length (the
    sum of the attention mask over the response columns), decoded without special tokens. Tags that the
    policy has as special tokens, such as `<answer>`, are kept, while verl drops them.

    Args:
        rollouts: the manifest of the rollout shards.
        root: the folder in which the shards lie.
        tokenizer: the policy's.
        folder: where the table is written.
        log: receives progress lines.
    """
    from rl_assets.protocol.shards import read_shard

    progress = Progress(log, "reward inputs", rollouts.rows, "responses")
    with TableWriter(folder / "reward_inputs.parquet", REWARD_INPUT_SCHEMA) as writer:
        for ref in rollouts.shards:
            writer.write_rows(_rows(read_shard(root, ref), tokenizer))
            progress.add(ref.rows)
    progress.close()
    return writer.table


def reward_batch(data: "DataProto") -> "DataProto":
    """The part of a rollout shard that a reward manager of verl's reads, as a batch of its own.

    `rl_assets.protocol.verl.to_verl` makes verl's class of it. The managers write into `extra_info`, so every
    row has a copy that is not shared with another row or with `data`.

    Args:
        data: a rollout shard.

    Returns:
        `prompts`, `responses` and `attention_mask` (int64), and `uid`, `data_source`, `reward_model` and
        `extra_info`.
    """
    from rl_assets.protocol.fields import column

    batch = data.select(
        batch_keys=["prompts", "responses", "attention_mask"],
        non_tensor_batch_keys=["uid", "data_source", "reward_model", "extra_info"],
        meta_info_keys=[],
    )
    infos = [copy.deepcopy(info) for info in batch.non_tensor_batch["extra_info"]]
    batch.non_tensor_batch["extra_info"] = column("extra_info", infos)
    return batch


def _rows(data: "DataProto", tokenizer: "PreTrainedTokenizerBase") -> Iterator[dict[str, Any]]:
    responses = data.batch["responses"]
    lengths = data.batch["attention_mask"][:, -responses.shape[1] :].sum(-1).tolist()
    valid = [ids[:length] for ids, length in zip(responses.tolist(), lengths, strict=True)]
    solutions = decode_responses(tokenizer, valid)
    fields = data.non_tensor_batch
    for index, solution in enumerate(solutions):
        yield {
            "uid": fields["uid"][index],
            "sample_index": fields["sample_index"][index],
            "split": fields["split"][index],
            "data_source": fields["data_source"][index],
            "solution_str": solution,
            "ground_truth": to_json(fields["reward_model"][index]["ground_truth"]),
            "extra_info": to_json(fields["extra_info"][index]),
            "finish_reason": fields["finish_reason"][index],
            "response_length": lengths[index],
            "source_file": fields["source_file"][index],
            "source_row": fields["source_row"][index],
        }
