"""Settings of the chat template, such as `enable_thinking`: which there are, and which nobody would read."""

import difflib
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from rl_assets.errors import InputError
from rl_assets.store import canonical_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SETTING = "data.apply_chat_template_kwargs"

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
