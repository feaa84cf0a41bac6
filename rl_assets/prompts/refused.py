"""Why a prompt with media is not rendered, and the rules that a rendered one keeps."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from rl_assets.errors import InputError, first_line
from rl_assets.prompts.media_source import media_parts


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
    position = 0
    for number, message in enumerate(messages):
        # Templates may leave out what an assistant thought earlier on.
        for said in _texts(message) if message.get("role") != "assistant" else ():
            position = text.find(said, position)
            if position < 0:
                raise Refused("render.text_lost", f"prompt[{number}].content", "a text that is not rendered")
            position += len(said)


def _texts(message: Mapping[str, Any]) -> list[str]:
    content = message.get("content")
    said = [content] if isinstance(content, str) else [part.get("text") for part in content or ()]
    return [text.strip() for text in said if isinstance(text, str) and text.strip()]
