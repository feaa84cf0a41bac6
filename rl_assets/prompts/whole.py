"""Whether a rendered prompt has everything that its row gives the chat template.

A row's shape (its roles, keys and the types of its values) is rendered once with a mark of its own in place
of every leaf; the marks that are not in the text tell which leaves the template does not write. A template
may look into values as well, so a leaf that seems to be lost is changed in the row itself, and the row is
rendered again: what is written shows the change.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rl_assets.base.jsontext import to_json
from rl_assets.contract.rules.code import Finding
from rl_assets.prompts.leaves import SWITCH, Code, Leaf, Walk, reasoning_cut

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[dict[str, Any]] | None
Render = Callable[[list[dict[str, Any]], Tools], str]

_MOST = 4096
"""Shapes kept at a time; rows with tools and calls of their own may each have their own."""

_MESSAGES_FROM = 1_000_000
"""Leaves of messages are numbered from here, those of tools from 0."""

_NUMBER = 7_390_000_000
_CHANGED = "qzchangedzq"


class _Shape(NamedTuple):
    """What the marks told: the numbers of the leaves that are not written; None where the template refuses
    marks."""

    unwritten: frozenset[int] | None


class WholeCheck:
    """Says what rendered prompts lack.

    Args:
        render: messages and tools to text, or an exception where the template refuses them.
    """

    def __init__(self, render: Render) -> None:
        self._render = render
        self._shapes: dict[Any, _Shape] = {}

    def losses(self, text: str, messages: Messages, tools: Tools) -> list[Finding]:
        """What is lost, at most one finding for each code.

        Args:
            text: what `render` made of the other two.
            messages: as the template is given them, media as parts without their content.
            tools: the function schemas that it is given.
        """
        found: dict[Code, Finding] = {}
        if absent := lost_text(text, messages):
            found["render.text_lost"] = Finding("render.text_lost", *absent)
        if not tools and all(map(_is_plain, messages)):
            # The marks of such rows depend on the roles alone: no walk for those that lose nothing.
            shape = self._shapes.get(tuple([message["role"] for message in messages]))
            if shape is not None and shape.unwritten is not None and not shape.unwritten:
                return list(found.values())
        leaves, shape = self._shape(messages, tools)
        for leaf in leaves:
            if (
                leaf.code
                and leaf.code not in found
                and not self._is_written(leaf, shape, text, messages, tools)
            ):
                found[leaf.code] = Finding(leaf.code, leaf.path, _reason(leaf, leaves, shape))
        return list(found.values())

    def _shape(self, messages: Messages, tools: Tools) -> tuple[list[Leaf], _Shape]:
        leaves: list[Leaf] = []

        def mark(leaf: Leaf) -> Any:
            leaves.append(leaf)
            return _mark(leaf)

        marked_tools = Walk(mark).tools(tools) if tools else None
        marked = Walk(mark, _MESSAGES_FROM).messages(messages)
        plain = not tools and all(map(_is_plain, messages))
        key = tuple([message["role"] for message in messages]) if plain else to_json([marked, marked_tools])
        if (shape := self._shapes.get(key)) is None:
            if len(self._shapes) >= _MOST:
                self._shapes.clear()
            shape = self._shapes[key] = _Shape(self._unwritten(leaves, marked, marked_tools))
        return leaves, shape

    def _unwritten(
        self, leaves: list[Leaf], messages: list[dict[str, Any]], tools: Tools
    ) -> frozenset[int] | None:
        try:
            text = self._render(messages, tools).lower()
        except Exception:  # a template raises what it likes, on marks too
            return None
        return frozenset(
            leaf.number
            for leaf in leaves
            if leaf.code and not self._shows(leaf, _mark(leaf), text, messages, tools)
        )

    def _shows(self, leaf: Leaf, mark: Any, text: str, messages: Messages, tools: Tools) -> bool:
        if _is_markable(leaf.value):
            return _digits(mark) in text
        changed = self._changed(leaf, messages, tools)
        return changed is None or changed.lower() != text

    def _is_written(self, leaf: Leaf, shape: _Shape, text: str, messages: Messages, tools: Tools) -> bool:
        unwritten = shape.unwritten
        if unwritten is not None and leaf.number not in unwritten:
            # The texts of messages are looked for by `lost_text`.
            if type(leaf.value) is not str or leaf.code == "render.text_lost" or _is_in(text, leaf.value):
                return True
        elif unwritten is None and _is_in(text, leaf.value):
            return True
        changed = self._changed(leaf, messages, tools)
        if changed is None:
            return (unwritten is not None and leaf.number not in unwritten) or _is_in(text, leaf.value)
        if changed == text:
            return False
        if _is_markable(leaf.value) and _digits(_change(leaf)) in changed.lower():
            return True
        return _is_in(text, leaf.value)

    def _changed(self, leaf: Leaf, messages: Messages, tools: Tools) -> str | None:
        """The text with another value in this leaf's place; None where the template refuses it."""

        def other(one: Leaf) -> Any:
            return _change(one) if one.number == leaf.number else one.value

        try:
            return self._render(
                Walk(other, _MESSAGES_FROM, keep_ids=True).messages(messages),
                Walk(other, keep_ids=True).tools(tools) if tools else tools,
            )
        except Exception:  # as above
            return None


def _is_plain(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return (
        len(message) == 2
        and type(content) is str
        and type(message.get("role")) is str
        and bool(content)
        and not content.isspace()
    )


def _is_markable(value: Any) -> bool:
    return type(value) is not bool and value != 0


def _mark(leaf: Leaf) -> Any:
    """What stands for a leaf in its shape: of the same type, as true or false as the value is."""
    value = leaf.value
    if type(value) is str:
        return value if value.isspace() else f"qz{leaf.number}zq"
    if not _is_markable(value):
        return value
    number = _NUMBER + leaf.number
    return (number if type(value) is int else number + 0.5) * (1 if value > 0 else -1)


def _change(leaf: Leaf) -> Any:
    value = leaf.value
    if type(value) is str:
        return f"{value}{_CHANGED}"
    if type(value) is bool:
        return not value
    return type(value)(_mark(leaf._replace(value=type(value)(1), number=leaf.number + 500_000)))


def _digits(mark: Any) -> str:
    """What is looked for of a mark."""
    if type(mark) is str:
        return _CHANGED if mark.endswith(_CHANGED) else mark
    return str(int(abs(mark)))


def _is_in(text: str, value: Any) -> bool:
    """Whether a text has a value in one of the forms in which templates write it."""
    if type(value) is str:
        trimmed = value.strip()
        return trimmed in text or to_json(trimmed)[1:-1] in text
    return to_json(value) in text or str(value) in text


def _reason(leaf: Leaf, leaves: Sequence[Leaf], shape: _Shape) -> str:
    if leaf.code == "render.text_lost":
        return "a text that is not in the rendered prompt"
    same = [one.number for one in leaves if one.code == leaf.code]
    if shape.unwritten is not None and shape.unwritten.issuperset(same):
        what = "tools" if leaf.code == "render.tools_lost" else "tool calls"
        return f"the chat template writes no {what} into the prompt"
    shown = str(leaf.value)
    return f"{shown if len(shown) <= 60 else shown[:59] + '…'!r} is not in the rendered prompt"


def lost_text(text: str, messages: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    """Where a rendered prompt lacks a text of its messages, and how; None where it has them all.

    A text may be trimmed, written as JSON, or without the switches that some templates take out of it
    (``/no_think``); an assistant's may lack the reasoning that it begins with.

    Args:
        text: what the chat template made.
        messages: what it was made of.
    """
    position = 0
    for number, message in enumerate(messages):
        content = message.get("content")
        if not content:
            continue
        if type(content) is str:
            if (at := text.find(content, position)) >= 0:
                position = at + len(content)
                continue
        elif str(content) in text:
            return f"prompt[{number}].content", "a list of parts that is written out as Python code"
        for said in _texts(message):
            at = text.find(said, position)
            if at < 0:  # the order may be another: some templates move the system message
                return _absent(text, messages)
            position = at + len(said)
    return None


def _absent(text: str, messages: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    """The first text that stands in `text` less often than in `messages`."""
    seen: Counter[str] = Counter()
    for number, message in enumerate(messages):
        for said in _texts(message):
            for piece in filter(None, map(str.strip, SWITCH.split(said))):
                seen[piece] += 1
                as_json = to_json(piece)[1:-1]
                found = text.count(piece) + (text.count(as_json) if as_json != piece else 0)
                if found < seen[piece]:
                    return f"prompt[{number}].content", "a text that is not in the rendered prompt"
    return None


def _texts(message: Mapping[str, Any]) -> list[str]:
    content = message.get("content") or ""
    said = [content] if isinstance(content, str) else [part.get("text") for part in content]
    if message.get("role") == "assistant":
        said = [reasoning_cut(text) if isinstance(text, str) else text for text in said]
    return [text.strip() for text in said if isinstance(text, str) and text and not text.isspace()]
