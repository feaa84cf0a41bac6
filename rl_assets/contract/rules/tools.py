"""Rules on tools: the function schemas of a row, and the calls in its messages."""

from typing import Any

from rl_assets.base.jsontext import describe, parse, quote
from rl_assets.contract.rules.draft import Draft, has_null_key, without_null_keys

_HINT = "JSON text, which `contract.parse_json: true` reads"


def check_tools(tools: Any, draft: Draft, *, filled: bool) -> Any:
    """The row's own `tools` as a list of function schemas; what is wrong with them goes to `draft`.

    An empty list says that the row has no tools, whatever `data.tool_config_path` says.

    Args:
        tools: not null.
        filled: whether the column may hold keys that a columnar file filled in.
    """
    if filled and draft.options.drop_nulls and has_null_key(tools):
        draft.repaired.add("null_keys_dropped")
        tools = without_null_keys(tools)
    if type(tools) is str:
        tools = _from_text(tools, "tools", draft)
    if type(tools) is not list:
        if tools is not None:
            draft.add("row.tools_invalid", "tools", f"found {describe(tools)}, expected a list of schemas")
        return None
    return [_schema(tool, f"tools[{index}]", draft) for index, tool in enumerate(tools)]


def _schema(tool: Any, path: str, draft: Draft) -> Any:
    if type(tool) is str:
        tool = _from_text(tool, path, draft)
        if tool is None:
            return None
    if found := _fault(tool):
        message = f'found {found}, expected {{"type": "function", "function": {{…}}}}'
        draft.add("row.tools_invalid", path, message)
    return tool


def _fault(schema: Any) -> str | None:
    """What is there in place of a function schema, or None where it is one."""
    if type(schema) is not dict:
        return describe(schema)
    function = schema.get("function")
    if type(function) is dict:
        name = function.get("name")
        return None if type(name) is str and name else "a function without a name"
    if "function" not in schema and "name" in schema:
        return "a flat schema (`name` and `parameters` beside each other)"
    return "an object without `function`"


def _from_text(text: str, path: str, draft: Draft) -> Any:
    """The value of JSON text, or None after a finding."""
    try:
        value = parse(text)
    except ValueError as error:
        found = str(error) if text[:1] in ("[", "{") else f"the text {quote(text)}"
        value = None
    else:
        if draft.options.parse_json and type(value) in (list, dict):
            draft.repaired.add("json_text_parsed")
            return value
        found = _HINT if type(value) in (list, dict) else f"the text {quote(text)}"
    draft.add("row.tools_invalid", path, f"found {found}, expected a function schema")
    return None


def check_calls(message: dict[Any, Any], path: str, draft: Draft, *, filled: bool) -> dict[Any, Any]:
    """A message with `tool_calls` whose arguments are objects; without the key where it calls nothing."""
    calls = message["tool_calls"]
    path = f"{path}.tool_calls"
    if type(calls) is not list or any(type(call) is not dict for call in calls):
        draft.add("prompt.tool_calls", path, f"found {describe(calls)}, expected a list of objects")
        return message
    if not calls:
        draft.repaired.add("empty_calls_dropped")
        return {key: value for key, value in message.items() if key != "tool_calls"}
    checked = [_call(call, f"{path}[{index}]", draft, filled) for index, call in enumerate(calls)]
    if all(one is other for one, other in zip(checked, calls, strict=True)):
        return message
    return {**message, "tool_calls": checked}


def _call(call: dict[Any, Any], path: str, draft: Draft, filled: bool) -> dict[Any, Any]:
    """One call, ``{"function": {"name": …, "arguments": …}}`` or the inner object alone."""
    if call.get("function") is None:
        return _function(call, path, draft, filled)
    function = call["function"]
    if type(function) is not dict:
        message = f"found {describe(function)}, expected an object with `name` and `arguments`"
        draft.add("prompt.tool_calls", f"{path}.function", message)
        return call
    checked = _function(function, f"{path}.function", draft, filled)
    return call if checked is function else {**call, "function": checked}


def _function(function: dict[Any, Any], path: str, draft: Draft, filled: bool) -> dict[Any, Any]:
    name = function.get("name")
    if type(name) is not str or not name:
        found = describe(name) if name is not None else "no name"
        draft.add("prompt.tool_calls", f"{path}.name", f"found {found}, expected the name of a tool")
    arguments = function.get("arguments")
    if type(arguments) is dict or not (filled or "arguments" in function):
        return function
    try:
        # OpenAI's form is JSON text. Templates write objects as JSON, or go through their items.
        parsed = parse(arguments) if arguments and type(arguments) is str else arguments
        found = f"JSON text of {describe(parsed)}" if type(arguments) is str else describe(arguments)
    except ValueError as error:
        parsed, found = arguments, str(error)
    if arguments is None or arguments == "":
        parsed = {}
    if type(parsed) is not dict:
        message = f"found {found}, expected an object or JSON text of one"
        draft.add("prompt.tool_calls", f"{path}.arguments", message)
        return function
    draft.repaired.add("arguments_parsed")
    return {**function, "arguments": parsed}
