"""The control tokens with which a policy marks media, such as `<|image_pad|>`.

In a user's text they would be read as control tokens and not as text, so the field contract refuses them.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from rl_assets.contract.media import PLACEHOLDERS

_WORDS = ("image", "video", "audio", "vision")


def media_tokens(special: Iterable[str]) -> tuple[str, ...]:
    """Those of a tokenizer's special tokens that stand for media, sorted.

    A row's own placeholders are not among them, though LLaVA's token is one (`<image>`): the contract counts
    them.
    """
    marks = {token for token in special if any(word in token.lower() for word in _WORDS)}
    return tuple(sorted(marks - set(PLACEHOLDERS.values())))


def read_media_tokens(folder: Path) -> tuple[str, ...]:
    """The media tokens that a policy's `tokenizer.json` lists, without loading the policy.

    Empty where there is no such file, or none that can be read: whether the policy loads is found out, and
    said, by the step that needs it.
    """
    try:
        added = json.loads((folder / "tokenizer.json").read_bytes()).get("added_tokens", [])
        return media_tokens(token["content"] for token in added if token.get("special"))
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return ()
