"""Real processor classes with small settings and a tokenizer of bytes, saved as a checkpoint has them."""

from pathlib import Path

import numpy as np
import torch
import transformers as hf
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from torchvision.transforms.functional import InterpolationMode, resize

from tests.rollout.tiny import PATCH, VISION, mrope

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|audio_bos|>",
    "<|audio_eos|>",
    "<|AUDIO|>",
    "<image>",
    "<start_of_image>",
    "<end_of_image>",
    "<image_soft_token>",
)
FACTOR = 2 * PATCH
"""A side of an image is a multiple of this many pixels, each such square is one token."""

_BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())

_PARTS = (
    "{{%- for message in messages %}}{{{{- '<|im_start|>' + message.role + '\n' }}}}"
    "{{%- if message.content is string %}}{{{{- message.content }}}}"
    "{{%- else %}}{{%- for part in message.content %}}"
    "{{%- if part.type == 'image' %}}{{{{- '{image}' }}}}"
    "{{%- elif part.type == 'video' %}}{{{{- '{video}' }}}}"
    "{{%- elif part.type == 'audio' %}}{{{{- '{audio}' }}}}"
    "{{%- else %}}{{{{- part.text }}}}{{%- endif %}}{{%- endfor %}}{{%- endif %}}"
    "{{{{- '<|im_end|>\n' }}}}{{%- endfor %}}"
    "{{%- if tools %}}{{{{- tools | tojson }}}}{{%- endif %}}"
    "{{%- if add_generation_prompt %}}{{{{- '<|im_start|>assistant\n' }}}}{{%- endif %}}"
)
_QWEN = _PARTS.format(
    image="<|vision_start|><|image_pad|><|vision_end|>",
    video="<|vision_start|><|video_pad|><|vision_end|>",
    audio="",
)


def tokenizer(template: str = _QWEN, **tokens: str) -> hf.PreTrainedTokenizerFast:
    """Byte-level BPE without merges: 256 bytes and the special tokens; `tokens` are named ones."""
    vocabulary = {symbol: number for number, symbol in enumerate(_BYTES)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=tokens or None,
        chat_template=template,
    )


def tokenizer_with_bos(template: str, **tokens: str) -> hf.PreTrainedTokenizerFast:
    """The same, which begins every text with a token, as those of Gemma and Llama do."""
    made, bos = tokenizer(template, **tokens), "<|endoftext|>"
    made.bos_token = bos
    made.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, made.convert_tokens_to_ids(bos))]
    )
    return made


def token_id(token: str) -> int:
    """The id of a special token."""
    return tokenizer().convert_tokens_to_ids(token)


VOCABULARY = len(_BYTES) + len(SPECIAL)

_SIZES = {"patch_size": PATCH, "merge_size": 2, "temporal_patch_size": 2}
_LIMITS = {"shortest_edge": 4 * FACTOR**2, "longest_edge": 40 * FACTOR**2}


def qwen2_vl(kind: type[hf.ProcessorMixin] = hf.Qwen2VLProcessor) -> hf.ProcessorMixin:
    """Images of 4 to 40 tokens; videos with every frame, each pair of 4 to 40 tokens."""
    return kind(
        image_processor=hf.Qwen2VLImageProcessor(**_SIZES, size=dict(_LIMITS)),
        video_processor=hf.Qwen2VLVideoProcessor(**_SIZES, size=dict(_LIMITS)),
        tokenizer=tokenizer(),
        chat_template=_QWEN,
    )


def qwen2_5_vl() -> hf.ProcessorMixin:
    """The same with seconds per frame for the model."""
    return qwen2_vl(hf.Qwen2_5_VLProcessor)


def qwen3_vl() -> hf.ProcessorMixin:
    """Videos sampled at 2 frames a second, each pair of frames with its time."""
    return hf.Qwen3VLProcessor(
        image_processor=hf.Qwen2VLImageProcessor(**_SIZES, size=dict(_LIMITS)),
        video_processor=hf.Qwen3VLVideoProcessor(
            **_SIZES, size={"shortest_edge": 4 * FACTOR**2, "longest_edge": 200 * FACTOR**2}
        ),
        tokenizer=tokenizer(),
        chat_template=_QWEN,
    )


def llava() -> hf.ProcessorMixin:
    """Every image is cut to 24 × 24 pixels: 36 patches."""
    template = _PARTS.format(image="<image>\n", video="", audio="")
    return hf.LlavaProcessor(
        image_processor=hf.CLIPImageProcessor(
            size={"shortest_edge": 24}, crop_size={"height": 24, "width": 24}
        ),
        tokenizer=tokenizer(template),
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=template,
    )


def gemma3() -> hf.ProcessorMixin:
    """Every image is 4 tokens between two marks and blank lines."""
    template = _PARTS.format(image="<start_of_image>", video="", audio="")
    return hf.Gemma3Processor(
        image_processor=hf.Gemma3ImageProcessor(size={"height": 16, "width": 16}),
        tokenizer=tokenizer(
            template,
            boi_token="<start_of_image>",
            eoi_token="<end_of_image>",
            image_token="<image_soft_token>",
        ),
        image_seq_length=4,
        chat_template=template,
    )


def glm4v() -> hf.ProcessorMixin:
    """Images and pairs of frames of 4 to 40 tokens."""
    return hf.Glm4vProcessor(
        image_processor=hf.Glm4vImageProcessor(**_SIZES, size=dict(_LIMITS)),
        video_processor=hf.Glm4vVideoProcessor(**_SIZES, size=dict(_LIMITS)),
        tokenizer=tokenizer(image_token="<|image_pad|>", video_token="<|video_pad|>"),
        chat_template=_QWEN,
    )


def glm46v() -> hf.ProcessorMixin:
    """The same with the time of each pair of frames."""
    return hf.Glm46VProcessor(
        image_processor=hf.Glm46VImageProcessor(**_SIZES, size=dict(_LIMITS)),
        video_processor=hf.Glm46VVideoProcessor(**_SIZES, size=dict(_LIMITS)),
        tokenizer=tokenizer(image_token="<|image_pad|>", video_token="<|video_pad|>"),
        chat_template=_QWEN,
    )


def gemma4() -> hf.ProcessorMixin:
    """Images and frames of up to 70 tokens, each of 12 × 12 pixels."""
    template = _PARTS.format(image="<image>", video="<|video|>", audio="")
    sizes = {"patch_size": PATCH, "pooling_kernel_size": 3, "max_soft_tokens": 70}
    names = ("<image>", "<start_of_image>", "<end_of_image>", "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>")
    roles = ("image_token", "boi_token", "eoi_token", "audio_token", "boa_token", "eoa_token")
    return hf.Gemma4Processor(
        feature_extractor=hf.Gemma4AudioFeatureExtractor(),
        image_processor=hf.Gemma4ImageProcessor(**sizes),
        video_processor=hf.Gemma4VideoProcessor(**sizes),
        tokenizer=tokenizer_with_bos(template, **dict(zip(roles, names, strict=True))),
        chat_template=template,
    )


def mllama() -> hf.ProcessorMixin:
    """Every image is one token and up to four tiles of 28 × 28 pixels."""
    template = _PARTS.format(image="<image>", video="", audio="")
    return hf.MllamaProcessor(
        image_processor=hf.MllamaImageProcessor(size={"height": 28, "width": 28}),
        tokenizer=tokenizer_with_bos(template, image_token="<image>"),
        chat_template=template,
    )


def qwen2_audio() -> hf.ProcessorMixin:
    """Clips of up to one second at 16 kHz, 25 tokens a second."""
    template = _PARTS.format(image="", video="", audio="<|audio_bos|><|AUDIO|><|audio_eos|>\n")
    return hf.Qwen2AudioProcessor(
        feature_extractor=hf.WhisperFeatureExtractor(feature_size=16, chunk_length=1),
        tokenizer=tokenizer(template),
        chat_template=template,
    )


PROCESSORS = {
    made.__name__: made
    for made in (
        *(qwen2_vl, qwen2_5_vl, qwen3_vl, llava, gemma3, qwen2_audio),
        *(glm4v, glm46v, gemma4, mllama),
    )
}
READ_BY_VERL = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v", "glm46v", "gemma4", "mllama")
"""Kinds of which verl 0.9.1 loads the processor; with any other it reads text alone."""


def verls_image(kind: str, image: Image.Image) -> Image.Image:
    """A small image as verl hands it to a processor: for Qwen-VL its sides are whole tokens."""
    if not kind.startswith("qwen"):
        return image
    return image.resize((round(image.width / FACTOR) * FACTOR, round(image.height / FACTOR) * FACTOR))


def verls_frames(frames: np.ndarray) -> torch.Tensor:
    """Frames of 32 × 48 pixels as verl hands them to a processor of Qwen-VL: at least 128 tokens each."""
    return resize(torch.from_numpy(frames), [80, 112], InterpolationMode.BICUBIC, antialias=True).float()


def save(kind: str, folder: Path) -> Path:
    """Save the processor `kind` with its tokenizer and template to `folder`."""
    PROCESSORS[kind]().save_pretrained(folder)
    return folder


_TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "eos_token_id": token_id("<|im_end|>"),
    "pad_token_id": token_id("<|endoftext|>"),
    "bos_token_id": None,
    "initializer_range": 0.2,
}
_MEDIA = {
    "image_token_id": token_id("<|image_pad|>"),
    "video_token_id": token_id("<|video_pad|>"),
    "vision_start_token_id": token_id("<|vision_start|>"),
    "vision_end_token_id": token_id("<|vision_end|>"),
}


def _qwen2_5_vl_model() -> hf.PreTrainedModel:
    config = hf.Qwen2_5_VLConfig(
        text_config={**_TEXT, "rope_parameters": mrope([1, 1, 2])},
        vision_config={**VISION, "window_size": 16, "fullatt_block_indexes": [1]},
        **_MEDIA,
    )
    return hf.Qwen2_5_VLForConditionalGeneration(config)


def _qwen3_vl_model() -> hf.PreTrainedModel:
    config = hf.Qwen3VLConfig(
        text_config={**_TEXT, "head_dim": 8, "rope_parameters": mrope([2, 1, 1])},
        vision_config={**VISION, "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]},
        **_MEDIA,
    )
    return hf.Qwen3VLForConditionalGeneration(config)


def _llava_model() -> hf.PreTrainedModel:
    config = hf.LlavaConfig(
        vision_config=hf.CLIPVisionConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=24,
            patch_size=PATCH,
            initializer_range=0.2,
        ),
        text_config=hf.LlamaConfig(**_TEXT),
        image_token_id=token_id("<image>"),
        image_token_index=token_id("<image>"),
        vision_feature_select_strategy="default",
    )
    return hf.LlavaForConditionalGeneration(config)


def _gemma3_model() -> hf.PreTrainedModel:
    config = hf.Gemma3Config(
        vision_config=hf.SiglipVisionConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=16,
            patch_size=PATCH,
        ),
        text_config=hf.Gemma3TextConfig(
            **{**_TEXT, "head_dim": 8},
            sliding_window=8,
            layer_types=["sliding_attention", "full_attention"],
        ),
        mm_tokens_per_image=4,
        image_token_index=token_id("<image_soft_token>"),
        boi_token_index=token_id("<start_of_image>"),
        eoi_token_index=token_id("<end_of_image>"),
    )
    model = hf.Gemma3ForConditionalGeneration(config)
    # Zeros at first, with which every image would look the same.
    torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight, std=0.2)
    return model


def _qwen2_audio_model() -> hf.PreTrainedModel:
    config = hf.Qwen2AudioConfig(
        audio_config=hf.Qwen2AudioEncoderConfig(
            num_mel_bins=16,
            encoder_layers=2,
            encoder_attention_heads=2,
            encoder_ffn_dim=64,
            d_model=32,
            max_source_positions=50,
        ),
        text_config=hf.Qwen2Config(**_TEXT),
        audio_token_index=token_id("<|AUDIO|>"),
    )
    return hf.Qwen2AudioForConditionalGeneration(config)


MODELS = {
    "qwen2_5_vl": _qwen2_5_vl_model,
    "qwen3_vl": _qwen3_vl_model,
    "llava": _llava_model,
    "gemma3": _gemma3_model,
    "qwen2_audio": _qwen2_audio_model,
}


def save_policy(kind: str, folder: Path) -> Path:
    """Save a tiny model with random weights (one of `MODELS`) and its processor to `folder`."""
    torch.manual_seed(0)
    MODELS[kind]().save_pretrained(folder)
    return save(kind, folder)
