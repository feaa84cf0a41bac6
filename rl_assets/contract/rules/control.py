"""Rules on control tokens: a text must be read as text, and not as the end of a turn."""

from collections.abc import Iterator
from typing import Any

from rl_assets.base.jsontext import join
from rl_assets.contract.rules.draft import Draft
from rl_assets.contract.rules.options import RENDERED


def check_control_tokens(prompt: str, messages: Any, extras: dict[str, Any], draft: Draft) -> None:
    """Find control tokens of the policy in what a row says, and contents that are a whole rendered prompt.

    Args:
        prompt: the messages as JSON text, which says quickly that most rows have none.
        messages: the same, decoded.
        extras: the row's further columns; of these the tools are rendered.
        draft: gets what is found.
    """
    options, tools = draft.options, extras.get("tools")
    if not tools and not any(start in prompt for start in options.control_starts):
        return
    for path, text in _texts({"prompt": messages, "tools": tools}, ""):
        if path.endswith(("content", "text")) and RENDERED.match(text):
            message = "found a prompt that is already in the form of a chat template"
            draft.add("prompt.already_rendered", path, message)
        elif options.control_pattern and (found := options.control_pattern.search(text)):
            draft.add("prompt.control_token", path, f"found {found.group()}")


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Every text inside a value with its path; the keys of objects are texts too."""
    if type(value) is str:
        yield path, value
    elif type(value) is list:
        for index, item in enumerate(value):
            yield from _texts(item, f"{path}[{index}]")
    elif type(value) is dict:
        for key, item in value.items():
            here = join(path, key) if path else key
            yield here, key
            yield from _texts(item, here)
