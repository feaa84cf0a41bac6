"""Which rows are copies of each other, and which contradict: one definition from contract to training set.

A copy equals another row in everything that a policy is shown (prompt, media, and the columns `SHOWN_BESIDE`)
and that a scorer reads (data_source, ground truth). Rows that show a policy the same and name another ground
truth contradict.
"""

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from rl_assets.base.jsontext import canonical, decode
from rl_assets.base.modalities import COLUMN_OF
from rl_assets.contract.uids import content_digest, copy_digest, prompt_digest
from rl_assets.media.forms import payload_keys
from rl_assets.media.placeholders import has_inline_media

SHOWN_BESIDE = ("tools", "agent_name", "chat_template_kwargs")
"""Columns of a row that decide, beside its prompt and media, what its policy is shown."""

COMPARED_COLUMNS = (
    "data_source",
    "prompt",
    "reward_model",
    "extra_columns",
    "source_file",
    *COLUMN_OF.values(),
)
"""Columns of `ROW_SCHEMA` that `compared` reads."""


class Compared(NamedTuple):
    """What a row is compared with others by.

    Attributes:
        copy: digest of all that a policy is shown and a scorer reads: copies have equal ones.
        prompt: digest of messages and media.
        beside: what the policy is shown beside the texts, as canonical JSON; empty where that is nothing.
        media: digests of the row's media, those of columns.
        truth: its ground truth as canonical JSON.
    """

    copy: bytes
    prompt: bytes
    beside: bytes
    media: tuple[str, ...]
    truth: bytes


def shown_beside(own: Mapping[str, Any]) -> bytes:
    """What the policy is shown beside messages and media, as canonical JSON; empty where that is nothing.

    Args:
        own: the user's own columns of a row.
    """
    shown = {name: own[name] for name in SHOWN_BESIDE if own.get(name)} if own else {}
    return canonical(shown) if shown else b""


def compared(record: Mapping[str, Any]) -> Compared:
    """What a row of the contract's table is compared with others by.

    Args:
        record: of `ROW_SCHEMA`, with the columns `COMPARED_COLUMNS` at least.
    """
    messages, own = decode(record["prompt"]), record["extra_columns"]
    media = list(_media(record))
    if has_inline_media(messages):  # their paths are relative to the raw file
        media.append(str(PurePosixPath(record["source_file"]).parent))
    beside = shown_beside(decode(own)) if own != "{}" else b""
    digests = (medium["digest"] for name in COLUMN_OF.values() for medium in record[name] or ())
    truth = decode(record["reward_model"]).get("ground_truth")
    content = content_digest(record["data_source"], messages, media, truth)
    return Compared(
        copy=copy_digest(content, beside),
        prompt=prompt_digest(messages, media),
        beside=canonical([media, beside.decode()]) if media or beside else b"",
        media=tuple(filter(None, digests)),
        truth=canonical(truth),
    )


def _media(record: Mapping[str, Any]) -> Iterator[Any]:
    """A JSON value per medium of the row's columns that says which it is, wherever it is."""
    for modality, name in COLUMN_OF.items():
        aside = {"type", *payload_keys(modality)}
        for medium in record[name] or ():
            item = decode(medium["item"]) if medium["item"] else None
            own = {k: v for k, v in item.items() if k not in aside} if isinstance(item, dict) else {}
            yield [modality, medium["digest"] or item, own]
