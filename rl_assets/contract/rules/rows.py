"""One row judged by every rule that needs no other row."""

from typing import Any, NamedTuple

from rl_assets.base.jsontext import describe, quote
from rl_assets.contract.rules.control import check_control_tokens
from rl_assets.contract.rules.copies import shown_beside
from rl_assets.contract.rules.draft import Draft
from rl_assets.contract.rules.media import RowMedia, check_media
from rl_assets.contract.rules.options import RESERVED_PREFIX
from rl_assets.contract.rules.prompts import check_prompt
from rl_assets.contract.rules.rewards import check_data_source, check_extra_info, check_reward_model
from rl_assets.contract.rules.tools import check_tools
from rl_assets.contract.rules.values import encode
from rl_assets.contract.uids import content_digest, uid_fault
from rl_assets.media.files import MediaReader

MAX_PROMPT_CHARACTERS = 4 << 20


class Record(NamedTuple):
    """A row that passed, on its way into the table.

    Attributes:
        content: digest of what makes the row what it is.
        beside: what the policy is shown beside messages and media (`shown_beside`).
        truth: the ground truth.
        own_split, own_index: `split` and `index` of its extra_info.
    """

    messages: list[Any]
    media: RowMedia
    content: bytes
    beside: bytes
    truth: Any
    own_split: str | None
    own_index: Any
    data_source: str
    ability: str | None
    prompt: str
    reward_model: str
    extra_info: str
    extra_columns: str

    @property
    def num_bytes(self) -> int:
        """About how many bytes the row takes in the table."""
        texts = len(self.prompt) + len(self.reward_model) + len(self.extra_info) + len(self.extra_columns)
        return texts + self.media.num_bytes


def check_row(row: dict[str, Any], index: int, reader: MediaReader, draft: Draft) -> Record | None:
    """Judge one row by every rule that needs no other row; findings and repairs go to `draft`.

    Args:
        row: as read; it is not changed.
        index: for rows without an `extra_info.index` of their own.

    Returns:
        The row ready for the table; None where it has an error.
    """
    messages = check_prompt(row, draft)
    source = check_data_source(row.get(draft.options.reward_fn_key), draft)
    model = check_reward_model(row.get("reward_model"), source, draft)
    info = check_extra_info(row.get("extra_info"), index, draft)
    media = check_media(row, reader, draft)
    ability = row.get("ability")
    if ability is not None and (type(ability) is not str or not ability.isascii()):
        if type(ability) is not str:
            draft.add("ability.not_text", "ability", f"found {describe(ability)}, expected text")
        else:
            encode(ability, "ability", draft.found)
    found = draft.found
    if (own := row.get("uid")) is not None:
        fault = uid_fault(own)
        if fault is not None:
            found.append(fault)
        else:
            encode(own, "uid", found)
    extras = _extra_columns(row, draft)
    prompt = encode(messages, "prompt", found)
    if len(prompt) > MAX_PROMPT_CHARACTERS:
        draft.add("prompt.too_large", "prompt", f"found {len(prompt):,} characters")
    check_control_tokens(prompt, messages, extras, draft)
    reward_model = encode(model, "reward_model", found)
    extra_info = encode(info, "extra_info", found)
    extra_columns = encode(extras, "", found) if extras else "{}"
    if not source.isascii():
        encode(source, "data_source", found)
    if found and draft.errors:
        return None
    own_split, truth = info.get("split"), model.get("ground_truth")
    return Record(
        messages=messages,
        media=media,
        content=content_digest(source, messages, media.identities, truth),
        beside=shown_beside(extras),
        truth=truth,
        own_split=own_split if type(own_split) is str else None,
        own_index=info.get("index"),
        data_source=source,
        ability=ability,
        prompt=prompt,
        reward_model=reward_model,
        extra_info=extra_info,
        extra_columns=extra_columns,
    )


def _extra_columns(row: dict[str, Any], draft: Draft) -> dict[str, Any]:
    """The row's columns that have no place of their own, under the names they are carried by."""
    extras: dict[str, Any] = {}
    if row.keys() <= draft.options.fields:
        return extras
    for name, value in row.items():
        if name in draft.options.fields:
            continue
        if name in draft.options.reserved:
            if value is None:
                continue
            carried = RESERVED_PREFIX + name
            if draft.options.reserved_columns == "refuse" or carried in row:
                draft.add("row.reserved_column", name, "found a column of a name that the trainer uses")
                continue
            draft.repaired.add("columns_prefixed")
            name = carried
        extras[name] = value
    if "agent_name" in extras:
        _check_agent_name(extras, draft)
    if extras.get("tools") is not None:
        extras["tools"] = check_tools(extras["tools"], draft, filled="tools" in draft.filled)
    return extras


def _check_agent_name(extras: dict[str, Any], draft: Draft) -> None:
    name = extras["agent_name"]
    if name is None and draft.options.drop_nulls:
        draft.repaired.add("null_keys_dropped")
        del extras["agent_name"]
    elif type(name) is not str or not name:
        draft.add("agent_name.not_text", "agent_name", f"found {describe(name)}, expected a name")
    elif not draft.options.knows_agent(name):
        draft.add("agent_name.unknown", "agent_name", f"found {quote(name)}, which no agent loop has")
