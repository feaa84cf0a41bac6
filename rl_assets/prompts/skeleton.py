"""Prompts of a template that only copies contents, by joining: what stands around the contents is rendered
once for all prompts with the same roles."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

Messages = Sequence[Mapping[str, Any]]
Roles = tuple[str, ...]
Render = Callable[[Messages], str]

_MOST = 4096
"""Roles kept at a time; conversations of agents may each have roles of their own."""

_EDGES = "\x1c\u2003\x1f"
_MARKS = ("\ue000<&'\"{{ %s }}Aé>\ue001", "\ue001</%s>\ue000")
"""Contents to put in, of characters that an escape or a filter changes; two sets of them, so that what
happens to stand in the template or a role is not taken for one."""


class Skeleton(NamedTuple):
    """The text of prompts with certain roles, without their contents.

    Attributes:
        parts: the text; empty where a content belongs.
        places: where which content belongs, and whether it is trimmed: (part, message, trimmed).
    """

    parts: list[str]
    places: list[tuple[int, int, bool]]

    def fill(self, messages: Messages) -> str:
        """The text with the contents of these messages."""
        parts = self.parts.copy()
        for part, message, trimmed in self.places:
            content = messages[message]["content"]
            parts[part] = content.strip() if trimmed else content
        return "".join(parts)


class Skeletons:
    """Renders messages as `render` does, which must be proven to copy contents (`is_verbatim`).

    A skeleton is made when roles are seen for the second time, and held against `render` before it is used.
    What it renders holds the whole text of every message, and all else that `is_whole` demands.

    Args:
        render: messages to text, or an exception where the template refuses them.
        is_whole: whether a text has everything that the template was given to make it of these messages; so
            have all texts of the same roles then.
    """

    def __init__(self, render: Render, is_whole: Callable[[str, Messages], bool]) -> None:
        self._render, self._is_whole = render, is_whole
        self._seen: set[Roles] = set()
        self._made: dict[Roles, Skeleton | None] = {}

    def __call__(self, messages: Messages) -> str | None:
        """The text, or None where `render` is to be asked: roles that are new or refused, blank contents,
        messages that are more than a role and a text."""
        found = []
        for message in messages:
            role, content = message.get("role"), message.get("content")
            if type(content) is not str or type(role) is not str or len(message) != 2:
                return None
            if not content or content.isspace():
                return None
            found.append(role)
        roles = tuple(found)
        if roles not in self._made:
            if roles not in self._seen:
                if len(self._seen) < _MOST:
                    self._seen.add(roles)
                return None
            self._made[roles] = self._make(roles, messages)
        skeleton = self._made[roles]
        return skeleton.fill(messages) if skeleton else None

    def _make(self, roles: Roles, messages: Messages) -> Skeleton | None:
        """The skeleton for these roles; None where the template refuses them, leaves anything out, or differs
        from `render`."""
        try:
            one, other = (self._without_contents(roles, mark) for mark in _MARKS)
            copied = {message for _, message, _ in one.places}
            text = self._render(messages)
            same = one == other and one.fill(messages) == text
            whole = len(copied) == len(roles) and self._is_whole(text, messages)
            return one if same and whole else None
        except Exception:  # the template raises what it likes; it is asked again for each prompt
            return None

    def _without_contents(self, roles: Roles, mark: str) -> Skeleton:
        contents = (f"{_EDGES}{mark % index}{_EDGES}" for index in range(len(roles)))
        text = self._render(
            [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
        )
        around = re.split(f"({_EDGES})?{re.escape(mark).replace('%s', '([0-9]+)')}({_EDGES})?", text)
        parts, places = around[:1], []
        for before, index, after, fixed in zip(*(around[first::4] for first in range(1, 5)), strict=True):
            if before != after:
                raise ValueError("a content is trimmed on one side")
            places.append((len(parts), int(index), before is None))
            parts += ["", fixed]
        return Skeleton(parts, places)
