"""The messages of a prompt with media parts in place of placeholders, as verl's dataset builds them."""

from collections.abc import Mapping
from typing import Any

from rl_assets.base.modalities import MODALITIES
from rl_assets.contract.schema import not_accepted
from rl_assets.media.placeholders import is_bare, segments


def media_of(messages: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The media of a prompt in order: by modality, each part without its `type`. Empty for text."""
    found: dict[str, list[dict[str, Any]]] = {}
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and part.get("type") in MODALITIES:
                rest = {key: value for key, value in part.items() if key != "type"}
                found.setdefault(part["type"], []).append(rest)
    return found


def build_messages(
    row: Mapping[str, Any], messages: list[dict[str, Any]], media: Mapping[str, list[Any]]
) -> list[dict[str, Any]]:
    """Messages whose placeholders are replaced by the row's media, in order across messages.

    In a row without media nothing is replaced; in one with media every text content becomes a list of parts,
    in which a mark of a kind of which the row has none is text.
    In a content that is such a list already, a placeholder in a text and a media part without its medium are
    replaced too, which verl does not do: it refuses such rows.

    Args:
        row: named in the message when something is wrong.
        messages: the prompt.
        media: items by modality.

    Raises:
        InputError: fewer or more placeholders of a modality than media.
    """
    if not media:
        return messages
    left = {modality: iter(items) for modality, items in media.items()}
    count = dict.fromkeys(MODALITIES, 0)

    def medium(modality: str) -> dict[str, Any]:
        count[modality] += 1
        return _media_part(modality, next(left.get(modality, iter(())), None))

    def parts(content: Any) -> Any:
        if isinstance(content, str):
            return [
                medium(modality) if modality else {"type": "text", "text": piece}
                for modality, piece in segments(content, media)
            ]
        return [made for one in content or () for made in expanded(one)]

    def expanded(given: dict[str, Any]) -> list[dict[str, Any]]:
        if given.get("type") == "text":
            pieces = parts(given.get("text") or "")
            return pieces if any(piece["type"] != "text" for piece in pieces) else [given]
        return [{**given, **medium(given["type"])}] if is_bare(given) else [given]

    built = [
        {**message, "content": parts(message["content"])} if message.get("content") is not None else message
        for message in messages
    ]
    for modality, placeholders in count.items():
        if placeholders != len(media.get(modality, ())):
            raise not_accepted(
                row,
                modality + "s",
                f"{placeholders} <{modality}> placeholders and {len(media.get(modality, ()))} {modality}s",
                "as many placeholders as media",
            )
    return built


def _media_part(modality: str, item: Any) -> dict[str, Any]:
    """The part that verl makes of one medium of the row."""
    if isinstance(item, dict):
        if modality == "audio":
            if "audio" in item or "audio_url" in item:
                return {**item, "type": "audio"}
            return {"type": "audio", "audio": item}
        return {"type": modality, **item}
    return {"type": modality, modality: item}


def present(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message without keys that are null."""
    return {key: value for key, value in message.items() if value is not None}


def without_media(content: Any) -> Any:
    """Content as a template looks at it: of a medium its kind alone."""
    if not isinstance(content, list):
        return content
    return [
        {"type": part["type"], part["type"]: part["type"]}
        if part.get("type") in MODALITIES
        else present(part)
        for part in content
    ]
