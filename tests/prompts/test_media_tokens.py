"""A policy's own control tokens for media are found without loading it."""

import json
from pathlib import Path

from rl_assets.policy.control_tokens import read_policy_tokens
from rl_assets.policy.media_tokens import media_tokens, read_media_token_ids


def test_tokens_that_stand_for_media_are_told_from_others() -> None:
    assert media_tokens(["<|im_end|>", "<|vision_start|>", "<IMAGE_1>", "<eos>"]) == (
        "<IMAGE_1>",
        "<|vision_start|>",
    )


def test_they_are_read_from_tokenizer_json(tmp_path: Path) -> None:
    added = [
        {"content": "<|image_pad|>", "special": True, "id": 7},
        {"content": "<image>", "special": True, "id": 8},
        {"content": "<|im_end|>", "special": True, "id": 9},
        {"content": "image", "special": False, "id": 10},
    ]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    assert read_policy_tokens(tmp_path).media == ("<|image_pad|>",)
    assert read_media_token_ids(tmp_path) == {7, 8}


def test_a_text_policy_has_none(policy: Path) -> None:
    assert read_policy_tokens(policy).media == ()


def test_a_policy_that_cannot_be_read_has_none_here(tmp_path: Path) -> None:
    assert read_policy_tokens(tmp_path).media == ()
    (tmp_path / "tokenizer.json").write_text("{")
    assert read_policy_tokens(tmp_path).media == ()


def test_a_token_that_is_a_rows_own_placeholder_is_not_among_them() -> None:
    assert media_tokens(["<image>", "<image_soft_token>"]) == ("<image_soft_token>",)
