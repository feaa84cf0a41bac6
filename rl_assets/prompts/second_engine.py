"""A faster engine for chat templates, used for what it is known to render as Jinja does.

minijinja renders a template some four times as fast as Jinja's sandbox. The two differ in corners: how a
list is printed, what counts as a sequence, how JSON is written, what upper case is. So it is given only
templates that are made of what both do alike, only prompts whose messages are a role and a text, and only
after it agreed with Jinja on `PROBES`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rl_assets.prompts.time_limit import FUEL

if TYPE_CHECKING:
    from jinja2 import Environment

_FILTERS = frozenset({"count", "default", "first", "join", "last", "length", "tojson", "trim"})
_TESTS = frozenset({"boolean", "defined", "false", "mapping", "none", "string", "true", "undefined"})
_METHODS = frozenset(
    {"endswith", "get", "items", "lstrip", "replace", "rstrip", "split", "startswith", "strip"}
)

_EDGES = " \n\tA b.\n\n \u3000\u00a0"
PROBES: tuple[list[dict[str, str]], ...] = (
    [{"role": "user", "content": "2 + 2?"}],
    [{"role": "user", "content": ""}],
    [{"role": "system", "content": _EDGES}, {"role": "user", "content": _EDGES}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "<think>a</think>b <|im_end|> {{ x }} {% if %}"},
        {"role": "assistant", "content": "<think>\n你好\n</think>\n\n<b> & 'c' \"d\" \\n"},
        {"role": "user", "content": "<tool_response>é 👩‍👩‍👧</tool_response>"},
    ],
    [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    [{"role": "assistant", "content": "a"}, {"role": "tool", "content": "b"}],
    [{"role": "nobody", "content": "a"}],
)
"""Prompts on which the engines are held against each other, refusals included."""

Render = Callable[[Sequence[Mapping[str, Any]]], str | None]


def second_engine(source: str, sandbox: "Environment", variables: Mapping[str, Any]) -> Render | None:
    """A function that renders messages as Jinja does, or answers None where Jinja is to be asked.

    Args:
        source: the chat template.
        sandbox: the environment in which Jinja compiles it.
        variables: all that the template sees besides the messages.

    Returns:
        None where minijinja is not installed, or the template is not made of what both do alike.
    """
    try:
        import minijinja
    except ImportError:
        return None
    if not _is_common(source, sandbox):
        return None
    try:
        environment = minijinja.Environment(
            trim_blocks=sandbox.trim_blocks, lstrip_blocks=sandbox.lstrip_blocks, templates={"chat": source}
        )
        environment.fuel = FUEL
        environment.add_filter("tojson", sandbox.filters["tojson"])
        for name, value in variables.items():
            if name not in _BUILT_IN:
                environment.add_global(name, value)
        render = environment.render_template
        render("chat", messages=PROBES[0])
    except Exception:  # a template that minijinja does not read, or a variable that it does not take
        return None

    def rendered(messages: Sequence[Mapping[str, Any]]) -> str | None:
        if not messages or not all(map(_is_text, messages)):
            return None
        try:
            return render("chat", messages=messages)
        except Exception:  # Jinja has the last word on an error
            return None

    return rendered


_BUILT_IN = frozenset({"range", "dict", "lipsum", "cycler", "joiner", "namespace"})


def _is_common(source: str, sandbox: "Environment") -> bool:
    """Whether all that the template calls is on the lists above, or its own or transformers' function."""
    from jinja2 import nodes

    tree = sandbox.parse(source)
    return (
        all(node.name in _FILTERS for node in tree.find_all(nodes.Filter))
        and all(node.name in _TESTS for node in tree.find_all(nodes.Test))
        and all(
            node.node.attr in _METHODS if isinstance(node.node, nodes.Getattr) else True
            for node in tree.find_all(nodes.Call)
        )
    )


def _is_text(message: Mapping[str, Any]) -> bool:
    """Whether a message is a role and a text, without the four characters that only Python strips."""
    content = message.get("content")
    return (
        len(message) == 2
        and type(content) is str
        and type(message.get("role")) is str
        and "\x1c" not in content
        and "\x1d" not in content
        and "\x1e" not in content
        and "\x1f" not in content
    )
