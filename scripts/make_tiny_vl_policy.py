"""Makes a tiny vision-language policy, to try a dataset with images where there is no real one.

A Qwen2.5-VL of random weights, half a megabyte, with the real processor class and a tokenizer of bytes. It is
made offline and downloads nothing. What it answers is noise: it shows that rows, media and checks work.

Run it from the root of the project, in an environment with the extra `media`, and name the folder as
`policy.path`::

    python scripts/make_tiny_vl_policy.py
"""

import argparse
from pathlib import Path
from typing import Any

DEFAULT_OUT = Path(__file__).resolve().parents[1] / "data/policies/tiny-vl"
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
PATCH, MERGE = 14, 2
"""Pixels along a side of a patch, patches along a side of a token: a token is 28 x 28 pixels."""
PIXELS = {"shortest_edge": 4 * (PATCH * MERGE) ** 2, "longest_edge": 64 * (PATCH * MERGE) ** 2}
"""An image is scaled to 4 to 64 tokens."""
TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' }}"
    "{%- if message.content is string %}{{- message.content }}"
    "{%- else %}{%- for part in message.content %}"
    "{%- if part.type in ('image', 'video') %}"
    "{{- '<|vision_start|><|' + part.type + '_pad|><|vision_end|>' }}"
    "{%- else %}{{- part.text }}{%- endif %}{%- endfor %}{%- endif %}"
    "{{- '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)


def make_tokenizer() -> Any:
    """Byte-level BPE without merges: a token for every byte, and the special tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={symbol: at for at, symbol in enumerate(symbols)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=TEMPLATE
    )


def make_processor(tokenizer: Any) -> Any:
    """Qwen2.5-VL's processor for images and videos."""
    from transformers import Qwen2_5_VLProcessor, Qwen2VLImageProcessor, Qwen2VLVideoProcessor

    sizes = {"patch_size": PATCH, "merge_size": MERGE, "temporal_patch_size": 2}
    return Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(**sizes, size=dict(PIXELS)),
        video_processor=Qwen2VLVideoProcessor(**sizes, size=dict(PIXELS)),
        tokenizer=tokenizer,
        chat_template=TEMPLATE,
    )


def make_model(tokenizer: Any) -> Any:
    """A Qwen2.5-VL of two layers with random weights, the same each time."""
    import torch
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    def token(text: str) -> int:
        return tokenizer.convert_tokens_to_ids(text)

    shared = {"hidden_size": 32, "intermediate_size": 64, "initializer_range": 0.2}
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}
    config = Qwen2_5_VLConfig(
        text_config={
            **shared,
            "vocab_size": len(tokenizer),
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 8192,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
            "bos_token_id": None,
            "rope_parameters": rope,
        },
        vision_config={
            **shared,
            "depth": 2,
            "num_heads": 2,
            "out_hidden_size": 32,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": 2,
            "in_channels": 3,
            "window_size": 4 * PATCH * MERGE,
            "fullatt_block_indexes": [1],
        },
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
    )
    torch.manual_seed(0)
    return Qwen2_5_VLForConditionalGeneration(config)


def save_tiny_vl_policy(folder: Path) -> Path:
    """Write the policy to `folder` as a Hugging Face checkpoint and return the folder."""
    tokenizer = make_tokenizer()
    make_model(tokenizer).save_pretrained(folder)
    make_processor(tokenizer).save_pretrained(folder)
    return folder


def main() -> None:
    """Make the policy in the folder that the command line names."""
    parser = argparse.ArgumentParser(description="Make a tiny vision-language policy of random weights.")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="its folder (%(default)s)")
    print(save_tiny_vl_policy(parser.parse_args().out))


if __name__ == "__main__":
    main()
