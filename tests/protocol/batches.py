"""Batches for the tests of the shard store."""

import random

import torch

from rl_assets.protocol.collate import collate_fn
from rl_assets.protocol.dataproto import DataProto
from rl_assets.protocol.item import to_item

WORDS = [
    "apples",
    "pears",
    "Tom",
    "basket",
    "half",
    "buys",
    "sells",
    "how",
    "many",
    "are",
    "left",
    "in",
    "the",
    "box",
]


def text_rows(count: int, seed: int = 0) -> list[dict]:
    """Rows in verl's schema as the length gate hands them on, ordered by uid."""
    choose = random.Random(seed)
    rows = []
    for index in range(count):
        question = " ".join(choose.choices(WORDS, k=40)) + f" {choose.randrange(1000)}?"
        rows.append(
            {
                "uid": f"{index:032x}",
                "data_source": "openai/gsm8k",
                "ability": "math",
                "prompt": [{"role": "user", "content": question}],
                "reward_model": {"style": "rule", "ground_truth": str(choose.randrange(1000))},
                "extra_info": {"index": index, "split": "train", "question": question},
                "prompt_ids": [choose.randrange(49152) for _ in range(choose.randrange(40, 90))],
            }
        )
    return rows


def text_batch(count: int, seed: int = 0) -> DataProto:
    """A prompt shard's batch."""
    return DataProto.from_single_dict(collate_fn([to_item(row) for row in text_rows(count, seed)]))


def rollout_batch(prompts: int, n: int = 4) -> DataProto:
    """A rollout shard's batch: n rows per prompt, with the tensors of a rollout."""
    data = text_batch(prompts).repeat(n)
    rows = len(data)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 49152, (rows, 48), generator=generator)
    tensors = {
        "prompts": ids[:, :16],
        "responses": ids[:, 16:],
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "rollout_log_probs": torch.randn(rows, 32, generator=generator),
        "flags": torch.randint(0, 2, (rows,), generator=generator, dtype=torch.bool),
        "half": torch.randn(rows, 3, generator=generator).bfloat16(),
        "empty": torch.zeros(rows, 0),
    }
    samples = {"sample_index": list(range(n)) * prompts}
    return data.union(DataProto.from_dict(tensors, samples, {"temperature": 0.7, "eos": [0, 2]}))
