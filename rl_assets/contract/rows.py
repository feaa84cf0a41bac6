"""One row judged by every rule that needs no other row."""

from typing import Any, NamedTuple

from rl_assets.contract.draft import Draft, without_null_keys
from rl_assets.contract.jsontext import describe, encode
from rl_assets.contract.media import RowMedia, check_media
from rl_assets.contract.media_files import MediaReader
from rl_assets.contract.options import RESERVED_PREFIX, ContractOptions
from rl_assets.contract.prompts import check_prompt
from rl_assets.contract.rewards import check_data_source, check_extra_info, check_reward_model
from rl_assets.contract.uids import content_digest, uid_fault


class Record(NamedTuple):
    """A row that passed, on its way into the table."""

    messages: list[Any]
    media: RowMedia
    content: bytes
    index: int | str
    data_source: str
    ability: str | None
    prompt: str
    reward_model: str
    extra_info: str
    extra_columns: str


def check_row(
    row: dict[str, Any], index: int, options: ContractOptions, reader: MediaReader, draft: Draft
) -> Record | None:
    """Judge one row by every rule that needs no other row; findings and healings go to `draft`.

    Args:
        row: as read; it is not changed.
        index: for rows without an `extra_info.index` of their own.

    Returns:
        The row ready for the table; None where it has an error that leaves nothing to write.
    """
    messages = check_prompt(row.get(options.prompt_key), options, draft)
    source = check_data_source(row.get(options.reward_fn_key), options, draft)
    model = check_reward_model(row.get("reward_model"), source, options, draft)
    info = check_extra_info(row.get("extra_info"), index, options, draft)
    media = check_media(row, options, reader, draft)
    ability = row.get("ability")
    if ability is not None and (type(ability) is not str or not ability.isascii()):
        if type(ability) is not str:
            draft.add("ability.not_text", "ability", f"found {describe(ability)}, expected text")
        else:
            encode(ability, "ability", draft.found)
    if (own := row.get("uid")) is not None and (fault := uid_fault(own)) is not None:
        draft.found.append(fault)
    found = draft.found
    extras = _extra_columns(row, options, draft)
    texts = [
        encode(messages, "prompt", found),
        encode(model, "reward_model", found),
        encode(info, "extra_info", found),
        encode(extras, "", found) if extras else "{}",
    ]
    if not source.isascii():
        texts.append(encode(source, "data_source", found))
    if None in texts or not messages:
        return None
    content = content_digest(source, messages, media.identities, model.get("ground_truth"))
    return Record(messages, media, content, info.get("index", 0), source, ability, *texts[:4])  # type: ignore[arg-type]


def _extra_columns(row: dict[str, Any], options: ContractOptions, draft: Draft) -> dict[str, Any]:
    """The row's columns that have no place of their own, under the names they are carried by."""
    extras: dict[str, Any] = {}
    for name, value in row.items():
        if name in options.fields:
            continue
        if name in options.reserved:
            if value is None:
                continue
            carried = RESERVED_PREFIX + name
            if options.reserved_columns == "refuse" or carried in row:
                draft.add("row.reserved_column", name, "found a column of a name that the trainer uses")
                continue
            draft.healed.add("columns_prefixed")
            name = carried
        extras[name] = value
    if "agent_name" in extras:
        _check_agent_name(extras, options, draft)
    if draft.columnar and options.drop_nulls and type(extras.get("tools")) is list:
        extras["tools"] = without_null_keys(extras["tools"])
    return extras


def _check_agent_name(extras: dict[str, Any], options: ContractOptions, draft: Draft) -> None:
    name = extras["agent_name"]
    if name is None and options.drop_nulls:
        draft.healed.add("null_keys_dropped")
        del extras["agent_name"]
    elif type(name) is not str or not name:
        draft.add("agent_name.not_text", "agent_name", f"found {describe(name)}, expected a name")
    elif not options.knows_agent(name):
        draft.add("agent_name.unknown", "agent_name", f"found {describe(name)}, which no agent loop has")
