"""The control tokens of a policy, read from its files: what in a user's text would not be read as text.

A tokenizer encodes the text `<|im_end|>` as the end of a turn, whoever wrote it. Of a policy's special tokens
those are control tokens that have a role of their own (begin and end of a sequence, padding, unknown), that
its chat template writes, or that have the form `<|…|>`. Tags of contents, such as `<think>` or `<answer>`,
are none, even where they are special tokens: data speaks of them.
"""

import functools
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from rl_assets.policy.media_tokens import media_tokens, special_tokens

_CONTENT_TAG = re.compile(
    r"</?(?:think|thinking|thought|reasoning|answer|solution|search|information|result|tools?|tool_calls?"
    r"|tool_responses?|tool_results?|code|output)>",
    re.IGNORECASE,
)
_BAR = re.compile(r"[|｜]")
_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template*")


class PolicyTokens(NamedTuple):
    """What a row's texts must not hold.

    Attributes:
        media: tokens that stand for media, sorted.
        control: other control tokens, sorted.
    """

    media: tuple[str, ...] = ()
    control: tuple[str, ...] = ()


def read_policy_tokens(policy: Path | str) -> PolicyTokens:
    """The tokens of a policy, given as a folder or as a hub id, without loading it.

    There are none where it has no `tokenizer.json` that can be read, or is not to be had: whether a policy
    loads is found out, and said, by the step that needs it.
    """
    folder = policy if isinstance(policy, Path) or Path(policy).is_dir() else _snapshot(policy)
    return PolicyTokens() if folder is None else _read(Path(folder))


def _read(folder: Path) -> PolicyTokens:
    special = {token for token in special_tokens(folder) if token.strip()}
    media = media_tokens(special)
    roles, template = _roles(folder), _template(folder)
    control = {
        token
        for token in special.difference(media)
        if token in roles or _BAR.search(token) or (token in template and not _CONTENT_TAG.fullmatch(token))
    }
    return PolicyTokens(media, tuple(sorted(control)))


def _roles(folder: Path) -> set[str]:
    """The tokens that a setting such as `eos_token` names."""
    found: set[str] = set()
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        for key, value in _json(folder / name).items():
            token = value.get("content") if isinstance(value, dict) else value
            if key.endswith("_token") and isinstance(token, str):
                found.add(token)
    return found


def _template(folder: Path) -> str:
    """The text of all chat templates."""
    files = sorted(folder.glob("chat_template*"))
    texts = [file.read_text(errors="replace") for file in files if file.is_file()]
    return "\n".join([*texts, json.dumps(_json(folder / "tokenizer_config.json"), ensure_ascii=False)])


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


@functools.cache
def _snapshot(policy: str) -> str | None:
    """The folder of a hub id's tokenizer files; None where they cannot be had."""
    from huggingface_hub import snapshot_download

    try:
        return snapshot_download(policy, allow_patterns=list(_FILES))
    except Exception:  # whoever loads the policy says what is wrong with it
        return None
