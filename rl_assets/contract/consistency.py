"""Placeholders and media of an accepted row, counted again from the row alone.

The contract's own rules look at much more; this is the plain recount that the asset checks make of what
was stored, so that a fault in those rules, or in a later stage, does not pass unseen.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from rl_assets.contract.media import payload_keys
from rl_assets.contract.schema import COLUMN_OF


def media_counts(row: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Per modality, how many placeholders the prompt has and how many media the row has.

    A placeholder is `<image>`, `<video>` or `<audio>` in a text, or a part of that type that holds no medium
    of its own.

    Args:
        row: a row in verl's schema, as `decode_row` gives it.
    """
    placeholders: Counter[str] = Counter()
    for text in _texts(row["prompt"]):
        for modality in COLUMN_OF:
            placeholders[modality] += text.count(f"<{modality}>")
    for part in _parts(row["prompt"]):
        if is_bare(part):
            placeholders[part["type"]] += 1
    return {
        modality: (placeholders[modality], len(row.get(column) or ()))
        for modality, column in COLUMN_OF.items()
    }


def is_bare(part: Mapping[str, Any]) -> bool:
    """Whether a part of a message is of a medium that stands in the row's column."""
    kind = part.get("type")
    return kind in COLUMN_OF and all(part.get(key) is None for key in payload_keys(kind))


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
