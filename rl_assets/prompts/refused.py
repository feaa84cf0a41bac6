"""Why a prompt is not rendered, and the rules that a rendered one keeps."""

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rl_assets.errors import InputError, first_line
from rl_assets.prompts.media_source import media_parts
from rl_assets.store import to_json

# SmolLM3, Nemotron and others read these in a text and take them out of it.
_SWITCH = re.compile(r"/(?:no_)?think\b|/system_override\b")


class Refused(Exception):
    """A prompt with media that is not rendered.

    Attributes:
        code: a key of `CODES`.
        path: the field at fault.
        reason: what is wrong.
    """

    def __init__(self, code: str, path: str, reason: str) -> None:
        super().__init__(reason)
        self.code, self.path, self.reason = code, path, reason


@contextlib.contextmanager
def reasons(code: str, path: str) -> Iterator[None]:
    """Turns whatever a library raises into a refusal of the row.

    Raises:
        Refused: something but a `Refused` or an `InputError` was raised.
    """
    try:
        yield
    except (Refused, InputError):
        raise
    except Exception as error:
        raise Refused(code, path, first_line(error)) from error


def require_whole(text: str, messages: list[dict[str, Any]], tokens: Mapping[str, str | None]) -> None:
    """Refuse a rendered prompt that lost a text or does not hold every medium once.

    Args:
        text: what the chat template made, one placeholder per medium.
        messages: what it was made of.
        tokens: the placeholder of each kind of media; None where the processor names none.

    Raises:
        Refused: with ``render.media_lost`` or ``render.text_lost``.
    """
    kinds = [part["type"] for _, part in media_parts(messages)]
    for modality, token in tokens.items():
        media = kinds.count(modality)
        if token is not None and (found := text.count(token)) != media:
            reason = f"{found} {modality} placeholders in the rendered prompt of {media} {modality}s"
            raise Refused("render.media_lost", "prompt", reason)
    if lost := lost_text(text, messages):
        raise Refused("render.text_lost", *lost)


def lost_text(text: str, messages: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    """Where a rendered prompt lacks a text of its messages, and how; None where it has them all.

    Looked for are texts of all roles but the assistant's, whose reasoning templates leave out. A text may be
    trimmed, written as JSON, or without the switches that some templates take out of it (``/no_think``).

    Args:
        text: what the chat template made.
        messages: what it was made of.
    """
    position = 0
    for number, message in enumerate(messages):
        content = message.get("content")
        if not content or message.get("role") == "assistant":
            continue
        if type(content) is str:
            if (at := text.find(content, position)) >= 0:
                position = at + len(content)
                continue
        elif str(content) in text:
            return f"prompt[{number}].content", "a list of parts that is written out as Python code"
        for said in _texts(content):
            at = text.find(said, position)
            if at < 0:  # the order may be another: some templates move the system message
                return _absent(text, messages)
            position = at + len(said)
    return None


def _absent(text: str, messages: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    """The first text that stands in `text` less often than in `messages`."""
    seen: Counter[str] = Counter()
    for number, message in enumerate(messages):
        if message.get("role") == "assistant":
            continue
        for said in _texts(message.get("content") or ""):
            for piece in filter(None, map(str.strip, _SWITCH.split(said))):
                seen[piece] += 1
                as_json = to_json(piece)[1:-1]
                found = text.count(piece) + (text.count(as_json) if as_json != piece else 0)
                if found < seen[piece]:
                    return f"prompt[{number}].content", "a text that is not in the rendered prompt"
    return None


def _texts(content: str | list[Any]) -> list[str]:
    said = [content] if isinstance(content, str) else [part.get("text") for part in content]
    return [text.strip() for text in said if isinstance(text, str) and not text.isspace()]
