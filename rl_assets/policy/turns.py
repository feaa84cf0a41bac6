"""What a chat template writes around an assistant's answer: how its turn opens, and how it closes."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Contents to look for in the rendered text: no space that a template trims, no letter that it escapes.
_QUESTION, _ANSWER = "QuestionQ7x", "AnswerQ7x"


def opening(tokenizer: "PreTrainedTokenizerBase", kwargs: Mapping[str, Any] | None = None) -> str:
    """The text between a user's content and the response: the generation prompt, with what a template puts
    there besides, such as ``<think>``. Empty where the template does not say.

    Args:
        tokenizer: has the chat template.
        kwargs: further variables of the template.
    """
    return _after(_QUESTION, [_user(_QUESTION)], True, tokenizer, kwargs) or ""


def closing(tokenizer: "PreTrainedTokenizerBase", kwargs: Mapping[str, Any] | None = None) -> str:
    """The text that follows the content of a conversation's last turn, which is an assistant's. Empty where
    the template does not say.

    The turn is the last one, since some templates close an earlier one with another token than that which
    the policy writes itself.
    """
    messages = [_user(_QUESTION), {"role": "assistant", "content": _ANSWER}]
    return _after(_ANSWER, messages, False, tokenizer, kwargs) or ""


def _user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _after(
    mark: str,
    messages: list[dict[str, Any]],
    generation_prompt: bool,
    tokenizer: "PreTrainedTokenizerBase",
    kwargs: Mapping[str, Any] | None,
) -> str | None:
    """What the template writes after the mark. Templates differ in what they accept: contents as text or in
    parts, with a system's turn or without."""
    in_parts = [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in messages]
    system = {"role": "system", "content": "S"}
    for given in (messages, in_parts, [system, *messages]):
        try:
            text = tokenizer.apply_chat_template(
                given, tokenize=False, add_generation_prompt=generation_prompt, **(kwargs or {})
            )
        except Exception:  # a template raises what it likes
            continue
        if isinstance(text, str) and mark in text:
            return text.rpartition(mark)[2]
    return None
