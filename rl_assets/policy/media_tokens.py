"""The control tokens with which a policy marks media, such as `<|image_pad|>`.

In a user's text they would be read as control tokens and not as text, so the field contract refuses them.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from rl_assets.base.modalities import PLACEHOLDERS

_WORDS = ("image", "video", "audio", "vision")


class _AddedToken(msgspec.Struct):
    content: str
    id: int
    special: bool = False


class _Tokenizer(msgspec.Struct):
    """What is read of a tokenizer.json; its vocabulary, which is most of it, is passed over."""

    added_tokens: list[_AddedToken] = []


def media_tokens(special: Iterable[str]) -> tuple[str, ...]:
    """Those of a tokenizer's special tokens that stand for media, sorted.

    A row's own placeholders are not among them, though LLaVA's token is one (`<image>`): the contract counts
    them.
    """
    return tuple(sorted({token for token in special if _marks_media(token)} - set(PLACEHOLDERS.values())))


def read_media_token_ids(folder: Path) -> frozenset[int]:
    """The ids of these tokens, and of a row's own placeholder where the policy has it as a token."""
    return frozenset(number for token, number in special_tokens(folder).items() if _marks_media(token))


def _marks_media(token: str) -> bool:
    return any(word in token.lower() for word in _WORDS)


def special_tokens(folder: Path) -> dict[str, int]:
    """The ids of the special tokens that a policy's `tokenizer.json` lists, by token.

    Empty where there is no such file, or none that can be read.
    """
    try:
        tokenizer = msgspec.json.decode((folder / "tokenizer.json").read_bytes(), type=_Tokenizer)
    except (OSError, msgspec.MsgspecError):
        return {}
    return {token.content: token.id for token in tokenizer.added_tokens if token.special}
