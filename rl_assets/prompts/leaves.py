"""What a row gives its chat template, leaf by leaf: texts, tools, tool calls. The same walk puts marks in
place of the leaves, or changes one of them.

What templates leave out, or say in words of their own, on purpose is here and nowhere else: `reasoning_cut`,
`SWITCH`, `SCHEMA_WORDS`, and of messages and calls every key that `Walk` does not demand.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

Code = Literal["render.text_lost", "render.tools_lost", "render.tool_calls_lost"]

SWITCH = re.compile(r"/(?:no_)?think\b|/system_override\b")
"""SmolLM3, Nemotron and others read these in a text and take them out of it."""

SCHEMA_WORDS = frozenset(
    {"type", "required", "additionalProperties", "$schema", "title", "strict", "nullable"}
)
"""Words of JSON schema whose values a template may write in other words (`city?: string`) or leave out."""

_REASONING_ENDS = re.compile(r"</(?:think|thinking|thought|reasoning|seed:think)>|\[/THINK\]")
_NAMES = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_SCHEMAS = frozenset({"items", "prefixItems", "anyOf", "oneOf", "allOf", "not", "if", "then", "else"})
_IDS = frozenset({"id", "tool_call_id"})


def reasoning_cut(content: str) -> str:
    """What an assistant says after its last reasoning, which many templates leave out of earlier turns."""
    return _REASONING_ENDS.split(content)[-1]


class Leaf(NamedTuple):
    """A value, or a key, that a template is given.

    Attributes:
        number: its place in the walk; equal for rows of the same shape.
        code: why a row is refused whose prompt lacks it; None where nothing demands it.
        path: where it is in the row, such as `prompt[1].tool_calls[0].function.name`.
        value: the value, or the text of a key.
    """

    number: int
    code: Code | None
    path: str
    value: Any


class Walk:
    """Goes through messages and tools and copies them, with what `at` gives in place of each leaf.

    Leaves are texts, numbers, true and false, and the keys of arguments and the names of parameters; what is
    empty or null has nothing to lose. Ids are renamed in the order in which they come, and as long as before.

    Args:
        at: the leaf to what is put in its place.
        first: number of the first leaf.
        keep_ids: leaves ids as they are.
    """

    def __init__(self, at: Callable[[Leaf], Any], first: int = 0, *, keep_ids: bool = False) -> None:
        self._at, self._number, self._keep_ids = at, first, keep_ids
        self._ids: dict[str, str] = {}

    def tools(self, tools: Sequence[Any]) -> list[Any]:
        """The schemas: demanded are a function's name, its description and its parameters."""
        return [self._tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]

    def messages(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The messages: demanded are their texts, and the name and the arguments of each call."""
        return [self._message(message, f"prompt[{index}]") for index, message in enumerate(messages)]

    def _leaf(self, value: Any, path: str, code: Code | None) -> Any:
        if value is None or value == "":
            return value
        leaf = Leaf(self._number, code, path, value)
        self._number += 1
        return self._at(leaf)

    def _message(self, message: Mapping[str, Any], path: str) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, value in message.items():
            if key == "content":
                made[key] = self._content(value, f"{path}.content", message.get("role"))
            elif key == "tool_calls" and isinstance(value, list):
                made[key] = [self._call(call, f"{path}.{key}[{n}]") for n, call in enumerate(value)]
            elif key == "role":
                made[key] = value
            else:
                made[key] = self._undemanded(key, value)
        return made

    def _content(self, content: Any, path: str, role: Any) -> Any:
        if isinstance(content, str):
            said = reasoning_cut(content) if role == "assistant" else content
            blank = not said or said.isspace()
            return self._leaf(content, path, None if blank else "render.text_lost")
        if not isinstance(content, list):
            return content
        return [
            {
                key: self._content(value, f"{path}[{index}].text", role) if key == "text" else value
                for key, value in part.items()
            }
            if isinstance(part, Mapping)
            else part
            for index, part in enumerate(content)
        ]

    def _call(self, call: Any, path: str) -> Any:
        if not isinstance(call, Mapping):
            return call
        made: dict[str, Any] = {}
        for key, value in call.items():
            if key == "function" and isinstance(value, Mapping):
                made[key] = self._call(value, f"{path}.function")
            elif key == "name":
                made[key] = self._leaf(value, f"{path}.name", "render.tool_calls_lost")
            elif key == "arguments":
                made[key] = self._value(value, f"{path}.arguments", "render.tool_calls_lost")
            else:
                made[key] = self._undemanded(key, value)
        return made

    def _tool(self, tool: Any, path: str) -> Any:
        if not isinstance(tool, Mapping):
            return tool
        made: dict[str, Any] = {}
        for key, value in tool.items():
            if key == "function" and isinstance(value, Mapping):
                made[key] = self._tool(value, f"{path}.function")
            elif key in ("name", "description"):
                made[key] = self._value(value, f"{path}.{key}", "render.tools_lost")
            elif key == "parameters":
                made[key] = self._schema(value, f"{path}.parameters")
            else:
                made[key] = value
        return made

    def _schema(self, schema: Any, path: str) -> Any:
        if isinstance(schema, list):
            return [self._schema(one, f"{path}[{index}]") for index, one in enumerate(schema)]
        if not isinstance(schema, Mapping):
            return schema
        made: dict[str, Any] = {}
        names: dict[str, str] = {}
        for key, value in schema.items():
            if key in _NAMES and isinstance(value, Mapping):
                made[key] = {}
                for name, inner in value.items():
                    new = self._leaf(name, f"{path}.{key}.{name}", "render.tools_lost")
                    names[name] = new
                    made[key][new] = self._schema(inner, f"{path}.{key}.{name}")
            elif key in _SCHEMAS:
                made[key] = self._schema(value, f"{path}.{key}")
            elif key in SCHEMA_WORDS:
                made[key] = value
            else:
                made[key] = self._value(value, f"{path}.{key}", "render.tools_lost")
        if isinstance(required := made.get("required"), list):
            made["required"] = [names.get(name, name) if type(name) is str else name for name in required]
        return made

    def _value(self, value: Any, path: str, code: Code | None) -> Any:
        if isinstance(value, Mapping):
            return {
                self._leaf(key, f"{path}.{key}", code): self._value(inner, f"{path}.{key}", code)
                for key, inner in value.items()
            }
        if isinstance(value, list):
            return [self._value(inner, f"{path}[{index}]", code) for index, inner in enumerate(value)]
        return self._leaf(value, path, code)

    def _undemanded(self, key: str, value: Any) -> Any:
        if key in _IDS and type(value) is str:
            known = self._ids.setdefault(value, str(len(self._ids)).zfill(len(value)))
            return value if self._keep_ids else known
        return value if key == "type" else self._value(value, key, None)
