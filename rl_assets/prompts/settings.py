"""Settings of the chat template, such as `enable_thinking`: the dataset's, a row's, and what nobody reads."""

import difflib
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rl_assets.base.jsontext import canonical_json, decode, describe
from rl_assets.errors import InputError
from rl_assets.prompts.refused import Refused

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SETTING = "data.apply_chat_template_kwargs"

ROW_SETTINGS = "chat_template_kwargs"
"""Where a row has settings of its own: a column of this name, or a key of its extra_info."""

SET_BY_RENDERER = frozenset(
    {
        *("conversation", "messages", "tools", "add_generation_prompt", "continue_final_message"),
        *("tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict"),
        *("return_assistant_tokens_mask", "sanitize_control_tokens", "tokenizer_kwargs"),
        *("processor_kwargs", "load_audio_from_video"),
    }
)
"""Arguments of `apply_chat_template` that are no settings of a template: a prompt is always rendered whole,
with a generation prompt at its end, and encoded afterwards."""

_TEMPLATE = "chat_template"


def template_variables(
    tokenizer: "PreTrainedTokenizerBase", kwargs: Mapping[str, Any]
) -> frozenset[str] | None:
    """The variables that the tokenizer's chat templates read, with or without tools.

    Args:
        tokenizer: has the templates.
        kwargs: may name one of them, or be one, under `chat_template`.

    Returns:
        Their names; None where a template cannot be parsed, which is said of each prompt.
    """
    from jinja2 import TemplateError
    from jinja2.meta import find_undeclared_variables
    from transformers.utils.chat_template_utils import _compile_jinja_template

    choices: tuple[Any, ...] = (None, [{}])
    try:
        sandbox = _compile_jinja_template("").environment
        sources = {tokenizer.get_chat_template(kwargs.get(_TEMPLATE), tools) for tools in choices}
        return frozenset().union(*(find_undeclared_variables(sandbox.parse(source)) for source in sources))
    except (TemplateError, ValueError):
        return None


def unread(names: Collection[str], variables: Collection[str]) -> tuple[str, str] | None:
    """The first of `names` that a template with these variables does not read, and a name that was perhaps
    meant, as ", did you mean …?"; None where it reads them all."""
    settings = sorted(set(variables) - SET_BY_RENDERER)
    for name in names:
        if name not in settings:
            near = difflib.get_close_matches(name, settings, n=1)
            return name, f", did you mean {near[0]}?" if near else ""
    return None


def check_kwargs(kwargs: Mapping[str, Any], variables: frozenset[str] | None) -> None:
    """Refuse settings of a dataset that have no effect, or that the renderer makes itself.

    Args:
        kwargs: `data.apply_chat_template_kwargs`.
        variables: what the policy's chat template reads; None where that is not known.

    Raises:
        InputError: a setting is the renderer's, is read by nobody, or is no JSON.
    """
    if clash := sorted(SET_BY_RENDERER & set(kwargs)):
        raise InputError(
            field=SETTING,
            found=", ".join(clash),
            expected="settings of the template itself",
            remedy="Take these out. A prompt is rendered whole, with a generation prompt at its end; an "
            "assistant's turn at the end is not continued.",
        )
    for name, value in kwargs.items():
        try:
            canonical_json(value)
        except (TypeError, ValueError) as error:
            raise InputError(
                field=f"{SETTING}.{name}",
                found=f"a {type(value).__name__}",
                expected="text, a number, true, false, null, or lists and objects of these",
                remedy="Put a date into quotes, so that YAML takes it as text.",
            ) from error
    if variables is not None and (found := unread(kwargs.keys() - {_TEMPLATE}, variables)):
        name, hint = found
        known = ", ".join(sorted(variables - SET_BY_RENDERER)) or "none"
        raise InputError(
            field=f"{SETTING}.{name}",
            found=f"a setting that the policy's chat template does not read{hint}",
            expected=f"one of those that it reads ({known})",
            remedy="Correct the name, or take it out: it has no effect.",
        )


def settings_of(columns: Mapping[str, Any], extra_info: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The settings that a row has of its own: those of its column, and beside them those of its extra_info.
    One that is null is none.

    Args:
        columns: the row's own columns.
        extra_info: its extra_info.

    Raises:
        Refused: with ``render.settings_invalid``: they are no object.
    """
    found: dict[str, Any] = {}
    for path, owner in ((f"extra_info.{ROW_SETTINGS}", extra_info or {}), (ROW_SETTINGS, columns)):
        given = owner.get(ROW_SETTINGS)
        if given is not None and not isinstance(given, dict):
            reason = f"found {describe(given)}, expected an object of settings"
            raise Refused("render.settings_invalid", path, reason)
        found |= {name: value for name, value in (given or {}).items() if value is not None}
    return found or None


def row_settings(rows: pa.RecordBatch) -> dict[int, dict[str, Any] | Refused]:
    """By their position the rows that have settings of their own, or what is wrong with these.

    Args:
        rows: rows of the contract, with `extra_columns` and, where any row has settings in it, `extra_info`.
    """
    names = [name for name in ("extra_columns", "extra_info") if name in rows.schema.names]
    columns = {name: rows.column(name) for name in names if has_settings(rows.column(name)).any()}
    candidates = np.logical_or.reduce([has_settings(column) for column in columns.values()])
    found: dict[int, dict[str, Any] | Refused] = {}
    for index in np.flatnonzero(candidates).tolist():
        own = {name: decode(column[index].as_py()) for name, column in columns.items()}
        try:
            if settings := settings_of(own.get("extra_columns", {}), own.get("extra_info")):
                found[index] = settings
        except Refused as refused:
            found[index] = refused
    return found


def has_settings(column: pa.Array) -> np.ndarray:
    """Per JSON text whether it may have settings of a row. bool, of shape (rows,)."""
    return pc.match_substring(column, f'"{ROW_SETTINGS}":').to_numpy(zero_copy_only=False)
