"""A row in verl's schema as the item that is collated: messages with media parts, and verl's own fields."""

from collections.abc import Collection, Mapping
from typing import Any

from rl_assets.base.modalities import COLUMN_OF
from rl_assets.contract.schema import not_accepted
from rl_assets.media.store import MediaStore, by_reference
from rl_assets.prompts.messages import build_messages, media_of
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


def _refuse_unchecked(row: Mapping[str, Any]) -> None:
    """Raise where the row is not what the field contract lets pass."""
    messages, reward_model, extra_info = (row.get(key) for key in ("prompt", "reward_model", "extra_info"))
    if not isinstance(row.get("uid"), str) or not row["uid"]:
        raise not_accepted(row, "uid", describe(row.get("uid")), "a text that names the row")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise not_accepted(row, "prompt", describe(messages), "a list of messages, at least one")
    if not isinstance(reward_model, dict) or "ground_truth" not in reward_model:
        raise not_accepted(row, "reward_model", describe(reward_model), "an object with `ground_truth`")
    if extra_info is not None and not isinstance(extra_info, dict):
        raise not_accepted(row, "extra_info", describe(extra_info), "an object or null")
    for name in (*ADDED_FIELDS, "multi_modal_data"):
        if name in row:
            raise not_accepted(
                row, name, "a column of the row's own", "no column of a name that is added here"
            )
