"""What is asked for and what comes back: prompts read from a DataProto, responses, and their keys."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rl_assets.base.digests import digest_bytes, digest_json
from rl_assets.errors import InputError
from rl_assets.rollout.media import MediaInputs
from rl_assets.rollout.params import SamplingParams


@dataclass(frozen=True)
class Prompt:
    """One prompt to answer.

    Attributes:
        uid: names it, uniquely within a call.
        ids: its token ids, as rendered; no padding.
        limit: most tokens in each of its responses.
        media: `multi_modal_inputs` of its row: tensors that the model's forward takes, empty for text.
    """

    uid: str
    ids: tuple[int, ...]
    limit: int
    media: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Response:
    """One finished response.

    Attributes:
        token_ids: what was generated, with the token that ended it.
        log_probs: of each token, under the distribution it was drawn from.
        raw_log_probs: of each token, under the policy's own softmax.
        finish_reason: ``stop`` (EOS or a stop string) or ``length``.
    """

    token_ids: list[int]
    log_probs: list[float]
    raw_log_probs: list[float]
    finish_reason: str


def read_prompts(
    columns: Mapping[str, Any], rows: int, sampling: SamplingParams, prompt_length: int, response_length: int
) -> list[Prompt]:
    """The prompts of a batch, each checked, so that no token is generated for a batch that cannot finish.

    Args:
        columns: `non_tensor_batch`: `uid` and `prompt_ids`; `max_new_tokens` (a limit of the row's own) and
            `multi_modal_inputs` where rows have them.
        rows: how many rows the batch has.
        sampling: gives the limit of rows that have none.
        prompt_length: most tokens in a prompt.
        response_length: most tokens in a response.

    Raises:
        InputError: a uid is missing or there twice, a prompt is empty or too long, or a limit is wrong.
    """
    for name in ("uid", "prompt_ids"):
        if name not in columns:
            raise InputError(
                field=name,
                found="no such column in the prompts",
                expected="uid (text) and prompt_ids (token ids) for every row",
                remedy="Collate the rows with the project's shards, which carry both.",
            )
    most = response_length if sampling.max_new_tokens is None else sampling.max_new_tokens
    if most > response_length:
        raise InputError(
            field="rollout.max_new_tokens",
            found=str(most),
            expected=f"at most the response length, {response_length}",
            remedy="Raise the response length or lower the limit.",
        )
    limits = columns.get("max_new_tokens", [None] * rows)
    media = columns.get("multi_modal_inputs", [None] * rows)
    uids = list(columns["uid"])
    _check_uids(uids)
    return [
        Prompt(uid, _checked_ids(ids, uid, prompt_length), _checked_limit(limit, uid, most), inputs or {})
        for uid, ids, limit, inputs in zip(uids, columns["prompt_ids"], limits, media, strict=True)
    ]


def _check_uids(uids: list[Any]) -> None:
    for row, uid in enumerate(uids):
        if not isinstance(uid, str) or not uid:
            raise InputError(
                row=row, field="uid", found=repr(uid), expected="text", remedy="Give every row a uid."
            )
    uid, times = Counter(uids).most_common(1)[0] if uids else ("", 0)
    if times > 1:
        raise InputError(
            row=uids.index(uid),
            field="uid",
            found=f"{uid!r} {times} times",
            expected="every uid once: results are joined by it",
            remedy="Drop the duplicates, or let the contract number them.",
        )


def _checked_ids(ids: Any, uid: str, prompt_length: int) -> tuple[int, ...]:
    tokens = tuple(int(token) for token in ids)
    if not 0 < len(tokens) <= prompt_length:
        raise InputError(
            field="prompt_ids",
            found=f"{len(tokens)} tokens in the prompt of uid {uid!r}",
            expected=f"1 to {prompt_length} (the prompt length)",
            remedy="Filter overlong prompts, or raise data.max_prompt_length; an empty prompt has no answer.",
        )
    return tokens


def _checked_limit(limit: Any, uid: str, most: int) -> int:
    if limit is None:
        return most
    if not 0 <= int(limit) <= most:
        raise InputError(
            field="max_new_tokens",
            found=f"{limit} for uid {uid!r}",
            expected=f"0 to {most}, the limit of the call",
            remedy="Lower the row's limit, or raise the call's.",
        )
    return int(limit)


def response_keys(prompt: Prompt, sampling: SamplingParams, policy: Mapping[str, Any]) -> list[str]:
    """One key (32 hex digits) per sample of a prompt: equal keys mean equal responses.

    A key covers the uid, the sample's index, the prompt's tokens and media, its limit, the sampling
    parameters and what `policy` says of the policy (fingerprint and dtype).
    """
    shared = digest_json(
        {
            "uid": prompt.uid,
            "ids": prompt.ids,
            "limit": prompt.limit,
            "media": prompt.media.digest
            if isinstance(prompt.media, MediaInputs)
            else {name: _media_digest(value) for name, value in prompt.media.items()},
            "sampling": sampling.response_key(),
            "policy": dict(policy),
        }
    )
    return [digest_bytes(f"{shared}:{index}".encode()) for index in range(sampling.n)]


def _media_digest(value: Any) -> str:
    import numpy as np

    array = np.asarray(value)
    return digest_bytes(f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
