"""A row in verl's schema as the item that is collated: messages with media parts, and verl's own fields."""

from collections.abc import Collection, Mapping
from typing import Any

from rl_assets.contract.consistency import is_bare, segments
from rl_assets.contract.schema import COLUMN_OF, MODALITIES
from rl_assets.errors import InputError
from rl_assets.protocol.media import MediaStore, by_reference
from rl_assets.protocol.values import describe

ADDED_FIELDS = ("raw_prompt", "dummy_tensor", "index", "tools_kwargs", "interaction_kwargs")
"""Fields that `to_item` adds, as verl's dataset does."""


def to_item(
    row: Mapping[str, Any],
    *,
    media: MediaStore | None = None,
    columns: Collection[str] = (),
) -> dict[str, Any]:
    """The item that verl's dataset makes of a row, with references in place of the bytes of media.

    Args:
        row: as `decode_row` gives it: `prompt` (list of messages), `reward_model` (dict with
            `ground_truth`), `extra_info` (dict or None), `uid`, media, and any other column; it is not
            changed.
        media: where bytes of media go; needed when a row holds any.
        columns: names that every item of the dataset has; a row that lacks one gets None, so that rows of
            files with other columns collate.

    Returns:
        The row without its media columns, with `raw_prompt` (messages, placeholders replaced by parts; the
        column `prompt` is the same list, as in verl), `dummy_tensor` (uint8 tensor of shape (1,)),
        `index`, `tools_kwargs`, `interaction_kwargs`, `extra_info` (always a dict), and `multi_modal_data`
        (see `media_of`).

    Raises:
        InputError: a row that the field contract would not have passed: no uid, no messages, a reward_model
            without ground_truth, placeholders and media that do not match, a field of a name that verl adds.
    """
    import torch

    _refuse_unchecked(row)
    present = {
        modality: [by_reference(item, media) for item in items]
        for modality, name in COLUMN_OF.items()
        if (items := row.get(name))
    }
    item: dict[str, Any] = dict.fromkeys(columns)
    item |= row
    for name in COLUMN_OF.values():
        item.pop(name, None)
    messages = build_messages(row, row["prompt"], present)
    extra_info = row.get("extra_info") or {}
    item |= {
        "prompt": messages,
        "raw_prompt": messages,
        "extra_info": extra_info,
        "dummy_tensor": torch.tensor([0], dtype=torch.uint8),
        "index": extra_info.get("index", 0),
        "tools_kwargs": extra_info.get("tools_kwargs") or {},
        "interaction_kwargs": extra_info.get("interaction_kwargs") or {},
        "multi_modal_data": media_of(messages),
    }
    return item


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
            raise _refusal(
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


def _refuse_unchecked(row: Mapping[str, Any]) -> None:
    """Raise where the row is not what the field contract lets pass."""
    messages, reward_model, extra_info = (row.get(key) for key in ("prompt", "reward_model", "extra_info"))
    if not isinstance(row.get("uid"), str) or not row["uid"]:
        raise _refusal(row, "uid", describe(row.get("uid")), "a text that names the row")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise _refusal(row, "prompt", describe(messages), "a list of messages, at least one")
    if not isinstance(reward_model, dict) or "ground_truth" not in reward_model:
        raise _refusal(row, "reward_model", describe(reward_model), "an object with `ground_truth`")
    if extra_info is not None and not isinstance(extra_info, dict):
        raise _refusal(row, "extra_info", describe(extra_info), "an object or null")
    for name in (*ADDED_FIELDS, "multi_modal_data"):
        if name in row:
            raise _refusal(row, name, "a column of the row's own", "no column of a name that is added here")


def _refusal(row: Mapping[str, Any], field: str, found: str, expected: str) -> InputError:
    return InputError(
        file=row.get("source_file"),
        row=row.get("source_row"),
        field=field,
        found=found + (f" (uid {row['uid']})" if row.get("uid") else ""),
        expected=expected,
        remedy="Take the rows from field_contract: it sets such rows aside with a reason.",
    )
