"""What is a placeholder in an accepted row, and how many there are beside its media.

The one rule: `<image>`, `<video>` and `<audio>` in a text stand for media where the row's column has media of
that kind, and are text as any other where it has none, such as the tags of HTML. The contract refuses the
latter unless `contract.severities` lets `media.orphan_placeholder` pass; whoever builds, counts or checks
messages after it asks here.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from rl_assets.base.modalities import COLUMN_OF, PLACEHOLDERS
from rl_assets.media.forms import payload_keys


def media_counts(row: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Per modality, how many placeholders the prompt has and how many media the row has.

    This is the plain recount of what was stored, so that a fault in the contract's own rules, or in a later
    stage, does not pass unseen. A part of a media type that holds no medium of its own is a placeholder too.

    Args:
        row: a row in verl's schema, as `decode_row` gives it.
    """
    placeholders: Counter[str] = Counter()
    modalities = [modality for modality, column in COLUMN_OF.items() if row.get(column)]
    if modalities:
        for text in _texts(row["prompt"]):
            placeholders.update(modality for modality, _ in segments(text, modalities) if modality)
    for part in _parts(row["prompt"]):
        if is_bare(part):
            placeholders[part["type"]] += 1
    return {
        modality: (placeholders[modality], len(row.get(column) or ()))
        for modality, column in COLUMN_OF.items()
    }


def segments(text: str, modalities: Iterable[str]) -> list[tuple[str | None, str]]:
    """A text in pieces, none of them empty: placeholders, each with its modality, and what is around them.

    Args:
        text: of a message, or of a part of one.
        modalities: of which the row has media in its columns.
    """
    pieces = filter(None, _placeholder(frozenset(modalities)).split(text))
    known = {PLACEHOLDERS[modality]: modality for modality in modalities}
    return [(known.get(piece), piece) for piece in pieces]


@cache
def _placeholder(modalities: frozenset[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"({PLACEHOLDERS[modality]})" for modality in sorted(modalities)) or "(?!)")


def is_bare(part: Mapping[str, Any]) -> bool:
    """Whether a part of a message is of a medium that stands in the row's column."""
    kind = part.get("type")
    return kind in COLUMN_OF and all(part.get(key) is None for key in payload_keys(kind))


def has_inline_media(messages: list[dict[str, Any]]) -> bool:
    """Whether a part of a message is a medium itself."""
    return any(part.get("type") in COLUMN_OF and not is_bare(part) for part in _parts(messages))


def _texts(messages: list[dict[str, Any]]) -> Iterator[str]:
    for message in messages:
        if isinstance(message.get("content"), str):
            yield message["content"]
    for part in _parts(messages):
        if part.get("type") == "text" and isinstance(part.get("text"), str):
            yield part["text"]


def _parts(messages: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for message in messages:
        if isinstance(message.get("content"), list):
            yield from (part for part in message["content"] if isinstance(part, dict))
