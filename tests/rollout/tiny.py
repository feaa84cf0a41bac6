"""Tiny random models of several architectures, and prompts for them."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf

from rl_assets.protocol.dataproto import DataProto
from rl_assets.rollout.requests import Prompt

VOCAB = 120
EOS = 5
IMAGE, VIDEO, VISION_START, VISION_END = 110, 111, 112, 113
PATCH = 4

_TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": EOS,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}
VISION = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "out_hidden_size": 32,
    "patch_size": PATCH,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "in_channels": 3,
    "initializer_range": 0.2,
}
_MEDIA = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": VISION_START,
    "vision_end_token_id": VISION_END,
}


def mrope(sections: list[int]) -> dict[str, Any]:
    """Settings of multimodal RoPE with these sections (time, height, width)."""
    return {"rope_type": "default", "mrope_section": sections, "rope_theta": 1e4}


def _qwen2_5_vl() -> hf.PreTrainedModel:
    text = {key: value for key, value in _TEXT.items() if key != "head_dim"}
    vision = {**VISION, "window_size": 16, "fullatt_block_indexes": [1]}
    config = hf.Qwen2_5_VLConfig(
        text_config={**text, "rope_parameters": mrope([1, 1, 2])}, vision_config=vision, **_MEDIA
    )
    return hf.Qwen2_5_VLForConditionalGeneration(config)


def _qwen3_vl() -> hf.PreTrainedModel:
    vision = {**VISION, "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]}
    config = hf.Qwen3VLConfig(
        text_config={**_TEXT, "rope_parameters": mrope([2, 1, 1])}, vision_config=vision, **_MEDIA
    )
    return hf.Qwen3VLForConditionalGeneration(config)


MODELS: dict[str, Callable[[], hf.PreTrainedModel]] = {
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**_TEXT)),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**_TEXT)),
    # Windows of 8 tokens in all layers, and in every other layer.
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**_TEXT, sliding_window=8)),
    "gemma3": lambda: hf.Gemma3ForCausalLM(
        hf.Gemma3TextConfig(
            **_TEXT,
            sliding_window=8,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        )
    ),
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen3_vl": _qwen3_vl,
    "mamba": lambda: hf.MambaForCausalLM(
        hf.MambaConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=1, state_size=4, eos_token_id=EOS)
    ),
    "t5": lambda: hf.T5ForConditionalGeneration(
        hf.T5Config(vocab_size=VOCAB, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    ),
}


def save(kind: str, folder: Path) -> Path:
    """Save the model `kind`, with weights drawn from one seed, to `folder`."""
    torch.manual_seed(0)
    MODELS[kind]().save_pretrained(folder)
    return folder


def text_ids(count: int, longest: int = 40, seed: int = 0) -> list[list[int]]:
    """Token ids of `count` prompts of 1 to `longest` tokens; no special token among them."""
    draw = random.Random(seed)
    return [[draw.randrange(7, IMAGE) for _ in range(draw.randint(1, longest))] for _ in range(count)]


def column(values: Sequence[Any]) -> np.ndarray:
    """A 1-D object array, whatever the values are."""
    made = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        made[row] = value
    return made


def batch(ids: Sequence[Sequence[int]], **columns: Sequence[Any]) -> DataProto:
    """A batch of prompts with uids ``uid-0``, ``uid-1``, … and further columns."""
    uids = [f"uid-{row}" for row in range(len(ids))]
    fields = {"uid": uids, "prompt_ids": [list(row) for row in ids], **columns}
    return DataProto.from_dict(non_tensors={name: column(values) for name, values in fields.items()})


def image(*grids: tuple[int, int, int], seed: int = 0) -> dict[str, torch.Tensor]:
    """`multi_modal_inputs` of images with these (time, height, width) grids of patches."""
    generator = torch.Generator().manual_seed(seed)
    patches = sum(t * h * w for t, h, w in grids)
    return {
        "pixel_values": torch.randn(patches, 3 * 2 * PATCH * PATCH, generator=generator),
        "image_grid_thw": torch.tensor(grids),
        # verl's own count of patches, which no model takes.
        "images_seqlens": torch.tensor([h * w for t, h, w in grids for _ in range(t)]),
    }


def media_prompts(limit: int, kind: str) -> list[Prompt]:
    """Prompts with one image, two images, a video, and none, in the token order of model `kind`."""

    def seen(token: int, tokens: int) -> list[int]:
        return [VISION_START, *[token] * tokens, VISION_END]

    frames = [7, *seen(VIDEO, 4), 8, *seen(VIDEO, 4)] if kind == "qwen3_vl" else seen(VIDEO, 8)
    video = {
        "pixel_values_videos": torch.randn(
            32, 3 * 2 * PATCH * PATCH, generator=torch.Generator().manual_seed(3)
        ),
        "video_grid_thw": torch.tensor([[2, 4, 4]]),
    }
    if kind == "qwen2_5_vl":
        video["second_per_grid_ts"] = torch.tensor([1.0])
    one, two = image((1, 4, 4), seed=1), image((1, 4, 4), (1, 2, 6), seed=2)
    rows: list[tuple[list[int], dict[str, torch.Tensor]]] = [
        ([11, 12, *seen(IMAGE, 4), 13, 14, 15], one),
        ([21, *seen(IMAGE, 4), 22, *seen(IMAGE, 3), 23], two),
        ([31, 32, 33, 34, 35, 36, 37, 38, 39], {}),
        ([41, *frames, 42, 43], video),
        ([51, 52], {}),
    ]
    return [Prompt(f"uid-{row}", tuple(ids), limit, media) for row, (ids, media) in enumerate(rows)]
