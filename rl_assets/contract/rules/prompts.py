"""Rules on the prompt: messages, roles, content."""

from collections.abc import Mapping
from typing import Any

from rl_assets.base.jsontext import describe, parse, quote
from rl_assets.contract.rules.draft import Draft, Spot, has_null_key, without_null_keys
from rl_assets.contract.rules.tools import check_calls
from rl_assets.media.forms import PART_MODALITY, in_verls_form

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
_ANSWERABLE = frozenset({"user", "tool"})
_NAMED_COLUMNS = 8
_ROLES_TEXT = "system, developer, user, assistant or tool"


def check_prompt(row: Mapping[str, Any], draft: Draft) -> list[Any]:
    """The row's messages, repaired; what is wrong with them goes to `draft`.

    Texts that may hold placeholders and all media parts are noted in `draft` for the media rules.
    """
    prompt = row.get(draft.options.prompt_key)
    if prompt is None:
        draft.add("prompt.missing", "prompt", _instead_of_a_prompt(row, draft.options.prompt_key))
        return []
    if draft.options.prompt_format == "text":
        if type(prompt) is not str:
            draft.add("prompt.not_text", "prompt", f"found {describe(prompt)}, expected text")
            return []
        prompt = [{"role": "user", "content": prompt}] if prompt else []
    elif type(prompt) is not list:
        prompt = _from_text(prompt, draft)
        if prompt is None:
            return []
    if not prompt:
        draft.add("prompt.empty", "prompt", "found no message, expected at least one")
        return []

    messages = prompt
    for index, message in enumerate(prompt):
        if type(message) is dict and len(message) == 2:
            role, content = message.get("role"), message.get("content")
            if type(content) is str and type(role) is str and role in ROLES and not _is_blank(role, content):
                if _may_hold_marks(content, draft):
                    draft.texts.append(Spot(f"prompt[{index}].content", role, content))
                continue
        repaired = _check_message(message, f"prompt[{index}]", draft)
        if repaired is not message:
            if messages is prompt:
                messages = list(prompt)
            messages[index] = repaired
    _check_order(messages, draft)
    return messages


def _instead_of_a_prompt(row: Mapping[str, Any], key: str) -> str:
    """What a row without a prompt has: it shows a column of another name, and a file that holds no rows."""
    columns = [name for name, value in row.items() if value is not None]
    named = ", ".join(quote(name) for name in columns[:_NAMED_COLUMNS])
    more = f" and {len(columns) - _NAMED_COLUMNS} more" if len(columns) > _NAMED_COLUMNS else ""
    return f"found nothing in the column `{key}`; the row has {named or 'no column that is filled'}{more}"


def _from_text(prompt: Any, draft: Draft) -> list[Any] | None:
    """The messages of a prompt that is JSON text of a list, or None after a finding."""
    found = describe(prompt)
    if type(prompt) is str and prompt.lstrip()[:1] == "[":
        try:
            value = parse(prompt)
        except ValueError as error:
            found = str(error)
        else:
            if draft.options.parse_json:
                draft.repaired.add("json_text_parsed")
                return value
            found = "a list of messages as JSON text, which `contract.parse_json: true` reads"
    draft.add("prompt.not_a_list", "prompt", f"found {found}, expected a list of messages")
    return None


def _may_hold_marks(text: str, draft: Draft) -> bool:
    """Whether the media rules must look at a text: quickly no for most."""
    return "<" in text or "[" in text or bool(draft.options.special_tokens)


def _is_blank(role: str, content: str) -> bool:
    return role == "user" and (not content or content.isspace())


def _check_message(message: Any, path: str, draft: Draft) -> Any:
    if type(message) is not dict:
        draft.add("prompt.message_not_an_object", path, f"found {describe(message)}, expected an object")
        return message
    message = _repair_message(message, path, draft)
    role = message.get("role")
    if type(role) is not str or role not in ROLES:
        found = quote(role) if type(role) is str else "no role" if role is None else describe(role)
        hint = " (the message has the ShareGPT keys from/value)" if "from" in message else ""
        draft.add("prompt.unknown_role", f"{path}.role", f"found {found}{hint}, expected {_ROLES_TEXT}")
        if "from" in message:
            return message
        role = ""
    if message.get("tool_calls") is not None:
        message = check_calls(message, path, draft, filled=draft.options.prompt_key in draft.filled)
    calls = message.get("tool_calls")
    _check_content(message.get("content"), role, path, draft, may_be_null=role == "assistant" and bool(calls))
    return _with_verls_parts(message, draft)


def _with_verls_parts(message: dict[Any, Any], draft: Draft) -> dict[Any, Any]:
    """The message with its media parts in verl's form, ``{"type": "image", "image": …}``, where they were in
    another, such as OpenAI's, ``{"type": "image_url", "image_url": {"url": …}}``."""
    content = message.get("content")
    parts = content if type(content) is list else []
    renamed = [_in_verls_form(part) for part in parts]
    if all(one is other for one, other in zip(renamed, parts, strict=True)):
        return message
    draft.repaired.add("parts_renamed")
    return {**message, "content": renamed}


def _in_verls_form(part: Any) -> Any:
    kind = part.get("type") if type(part) is dict else None
    modality = PART_MODALITY.get(kind) if type(kind) is str else None
    if modality is None:
        return part
    plain = in_verls_form(part, modality)
    if plain is part and kind == modality:
        return part
    return {"type": modality, **{key: value for key, value in plain.items() if key != "type"}}


def _repair_message(message: dict[Any, Any], path: str, draft: Draft) -> dict[Any, Any]:
    """The message without keys whose value is null (`content` may be null, rules on it follow).

    In a columnar file every null key may be a filled-in one, however deep. In json a deep null was written
    on purpose (an argument of a tool call), so only the keys of the message and of its parts are looked at.
    """
    filled = draft.options.prompt_key in draft.filled
    content = message.get("content")
    parts = content if type(content) is list else []
    rest = {key: value for key, value in message.items() if key != "content"}
    if filled:
        hurt = has_null_key(rest) or has_null_key(parts)
    else:
        hurt = None in rest.values() or any(type(part) is dict and None in part.values() for part in parts)
    if not hurt:
        return message
    if not draft.options.drop_nulls:
        draft.add("prompt.null_key", path, "found a key whose value is null")
        return message
    draft.repaired.add("null_keys_dropped")
    if filled:
        bare = without_null_keys(message)
        return {key: bare.get(key) for key in message if key in bare or key == "content"}
    repaired = {key: value for key, value in message.items() if key == "content" or value is not None}
    if parts:
        repaired["content"] = [
            {key: value for key, value in part.items() if value is not None} if type(part) is dict else part
            for part in parts
        ]
    return repaired


def _check_content(content: Any, role: str, path: str, draft: Draft, *, may_be_null: bool) -> None:
    path = f"{path}.content"
    if content is None:
        if not may_be_null:
            draft.add("prompt.content_missing", path, "found no content, expected text or a list of parts")
    elif type(content) is str:
        if _is_blank(role, content):
            draft.add("prompt.content_blank", path, f"found {describe(content)}, expected a question")
        elif _may_hold_marks(content, draft):
            draft.texts.append(Spot(path, role, content))
    elif type(content) is list:
        _check_parts(content, role, path, draft)
    else:
        draft.add("prompt.content_type", path, f"found {describe(content)}, expected text or a list of parts")


def _check_parts(parts: list[Any], role: str, path: str, draft: Draft) -> None:
    says_something = role != "user"
    for index, part in enumerate(parts):
        here = f"{path}[{index}]"
        if type(part) is not dict:
            draft.add("prompt.part_not_an_object", here, f"found {describe(part)}, expected an object")
            says_something = True
            continue
        kind = part.get("type")
        if kind == "text":
            text = part.get("text")
            if type(text) is not str:
                draft.add("prompt.part_text", f"{here}.text", f"found {describe(text)}, expected text")
                says_something = True
            elif text and not text.isspace():
                says_something = True
                if _may_hold_marks(text, draft):
                    draft.texts.append(Spot(f"{here}.text", role, text))
        elif type(kind) is str and kind in PART_MODALITY:
            says_something = True
            draft.parts.append(Spot(here, role, part))
        else:
            found = quote(kind) if type(kind) is str else "no type" if kind is None else describe(kind)
            draft.add(
                "prompt.part_type", f"{here}.type", f"found {found}, expected text, image, video or audio"
            )
            says_something = True
    if not says_something:
        draft.add("prompt.content_blank", path, "found no text and no media, expected a question")


def _check_order(messages: list[Any], draft: Draft) -> None:
    last = messages[-1].get("role") if type(messages[-1]) is dict else None
    if type(last) is str and last in ROLES and last not in _ANSWERABLE:
        path = f"prompt[{len(messages) - 1}].role"
        draft.add("prompt.last_role", path, f"found {quote(last)} at the end, expected user or tool")
    if len(messages) == 1:
        return
    forms = set()
    called = False
    for index, message in enumerate(messages):
        if type(message) is not dict:
            continue
        role = message.get("role")
        if index and role == "system":
            draft.add(
                "prompt.system_not_first", f"prompt[{index}].role", "found a system message further down"
            )
        elif role == "assistant":
            called = called or bool(message.get("tool_calls"))
        elif role == "tool" and not called:
            draft.add("prompt.tool_without_call", f"prompt[{index}]", "found no tool call before it")
        forms.add(type(message.get("content")))
    if str in forms and list in forms:
        draft.add("prompt.mixed_content", "prompt", "found both text and lists of parts as content")
