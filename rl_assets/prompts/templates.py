"""Messages to text: the policy's chat template, compiled once and called without what every call repeats."""

import contextlib
import inspect
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from rl_assets.base.jsontext import to_json
from rl_assets.prompts.apart import Apart
from rl_assets.prompts.second_engine import PROBES, Render, second_engine
from rl_assets.prompts.skeleton import Skeletons
from rl_assets.prompts.time_limit import may_hang, time_limit
from rl_assets.prompts.verbatim import OF_EVERY_DICT, is_verbatim
from rl_assets.prompts.whole import WholeCheck

if TYPE_CHECKING:
    from jinja2 import Environment, Template
    from transformers import PreTrainedTokenizerBase

Messages = list[dict[str, Any]]
Tools = Sequence[dict[str, Any]] | None

_OF_A_LOOP = frozenset({"first", "last", "index", "index0", "length", "previtem", "nextitem"})

TODAY = "strftime_now"
"""The function by which a chat template asks for the date."""


class ChatTemplate:
    """Renders messages with a tokenizer's chat template, a generation prompt at the end.

    The text equals that of `tokenizer.apply_chat_template(messages, tokenize=False,
    add_generation_prompt=True, tools=…, **kwargs)`. Messages of a role and a content are rendered by the
    quickest way that is known to say the same: by joining what a template that only copies has around the
    contents, by a faster engine, by the compiled template. Others, and those that it refuses, go to that
    method itself, which prepares messages in ways of its own (older names of the reasoning, keys that are
    null) and has the last word on an error.

    Args:
        tokenizer: has the chat template, or several by name.
        kwargs: variables for the template, of which everything is plain JSON.
        tools: function schemas of most prompts, which are rendered more quickly than with others.
        fast: False gives every prompt to `apply_chat_template`.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        kwargs: Mapping[str, Any],
        tools: Tools = None,
        *,
        fast: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._kwargs = dict(kwargs)
        self._tools = tools
        self._fast = fast and _is_plain(tokenizer, kwargs)
        self._compiled: dict[str, tuple[Template, dict[str, Any]]] = {}

    @cached_property
    def asks_for_date(self) -> bool:
        """Whether the template names the function that gives it the date: ids may change by the day."""
        return TODAY in to_json([self._tokenizer.chat_template, self._kwargs])

    def render(self, messages: Messages, tools: Tools = None) -> str:
        """The text of one prompt.

        Raises:
            Exception: whatever the template raises of itself, or its code on messages it was not made for.
        """
        text = self.copied(messages, tools)
        return self.interpreted(messages, tools) if text is None else text

    def copied(self, messages: Messages, tools: Tools = None) -> str | None:
        """As `render`, of a prompt whose text is known to be whole; None for others, which are to be
        `interpreted`."""
        return self.skeletons(messages) if tools is self._tools and self.skeletons else None

    def interpreted(self, messages: Messages, tools: Tools = None) -> str:
        """As `render`, by an engine for templates."""
        messages = without_empty_calls(messages)
        if self._fast and self.apart is None:
            if tools is None and (second := self.second) and (text := second(messages)) is not None:
                return text
            if messages and all(map(_has_role_and_content, messages)):
                try:
                    return self._render_in_sandbox(messages, tools)
                except Exception:  # a template raises what it likes; said again, and better, below
                    pass
        return self.render_plainly(messages, tools)

    def render_plainly(self, messages: Messages, tools: Tools = None) -> str:
        """The same by transformers alone, which is what `render` is measured against."""
        messages = without_empty_calls(messages)
        if self.apart is not None:
            return self.apart(messages, tools)
        with time_limit(messages):
            return _by_transformers(self._tokenizer, self._kwargs, messages, tools)

    @cached_property
    def apart(self) -> Apart | None:
        """Renders in another process, where an operation of the template may take any time by itself."""
        from transformers.utils.chat_template_utils import _compile_jinja_template

        if type(self._tokenizer).__module__.startswith("transformers_modules"):
            return None  # another process cannot import it
        given, sandbox = self._kwargs.get("chat_template"), _compile_jinja_template("").environment
        for some_tools in (None, [{"type": "function"}]):
            with contextlib.suppress(Exception):  # what is wrong with the template is said of each prompt
                if may_hang(self._tokenizer.get_chat_template(given, some_tools), sandbox):
                    return Apart(partial(_by_transformers, self._tokenizer, self._kwargs))
        return None

    @cached_property
    def skeletons(self) -> Skeletons | None:
        """Renders by joining, where the template is proven to copy contents and does not ask for the date."""
        if not self._fast or self.apart is not None:
            return None
        try:
            template, _ = self._variables(self._tools)
            source = self._tokenizer.get_chat_template(tools=self._tools)
            copies = not self.asks_for_date and is_verbatim(source, template.environment)
        except Exception:  # what is wrong with the template is said of each prompt
            return None
        if not copies:
            return None
        return Skeletons(
            lambda messages: self._render_in_sandbox(messages, self._tools),
            lambda text, messages: not self.whole.losses(text, messages, self._tools),
        )

    @cached_property
    def whole(self) -> WholeCheck:
        """What the texts of this template lack."""
        return WholeCheck(self.interpreted)

    @cached_property
    def second(self) -> Render | None:
        """The faster engine, where it agrees with the sandbox on every probe."""
        try:
            template, variables = self._variables(None)
        except Exception:  # what is wrong with the template is said of each prompt
            return None
        source = self._tokenizer.get_chat_template(tools=None)
        render = second_engine(source, template.environment, {**variables, "tools": None})
        if render is not None:
            for messages in PROBES:
                try:
                    expected = self._render_in_sandbox(messages, None)
                except Exception:  # the template's own refusal: the other engine must refuse too
                    expected = None
                if render(messages) != expected:
                    return None
        return render

    def _render_in_sandbox(self, messages: Sequence[Mapping[str, Any]], tools: Tools) -> str:
        template, variables = self._variables(tools)
        context = template.new_context({**variables, "messages": messages, "tools": tools}, shared=True)
        with time_limit(messages):
            return "".join(template.root_render_func(context))

    def _variables(self, tools: Tools) -> tuple["Template", dict[str, Any]]:
        """The compiled template, and all that it sees besides messages and tools."""
        source = self._tokenizer.get_chat_template(tools=tools)
        if source not in self._compiled:
            from transformers.utils.chat_template_utils import _compile_jinja_template

            # A template of its own in transformers' sandbox, whose globals are looked up in one dict.
            template = _quicker(_compile_jinja_template(source).environment).from_string(source)
            variables = {
                **template.globals,
                **self._tokenizer.special_tokens_map,
                "documents": None,
                "add_generation_prompt": True,
                **self._kwargs,
            }
            template.globals = {}
            self._compiled[source] = template, variables
        return self._compiled[source]


def _by_transformers(
    tokenizer: "PreTrainedTokenizerBase", kwargs: Mapping[str, Any], messages: Messages, tools: Tools
) -> str:
    return tokenizer.apply_chat_template(
        messages,
        tokenize=False,
        add_generation_prompt=True,
        tools=None if tools is None else list(tools),
        **kwargs,
    )


def _quicker(sandbox: "Environment") -> "Environment":
    """The same sandbox, which takes the two accesses that templates make all the time without its long way:
    what a loop says of itself, and a key of a message that no dict has as an attribute."""
    from jinja2.runtime import LoopContext

    environment = sandbox.overlay()
    general = environment.getattr

    def getattr_(value: Any, name: str) -> Any:
        if type(value) is dict:
            if name in value and name not in OF_EVERY_DICT:
                return value[name]
        elif type(value) is LoopContext and name in _OF_A_LOOP:
            return getattr(value, name)
        return general(value, name)

    environment.getattr = getattr_  # type: ignore[method-assign, assignment]
    return environment


def without_empty_calls(messages: Messages) -> Messages:
    """The messages without lists of tool calls that are empty: templates ask whether there is a list."""
    if all(message.get("tool_calls", True) for message in messages):
        return messages
    return [
        {key: value for key, value in message.items() if key != "tool_calls" or value} for message in messages
    ]


def _has_role_and_content(message: Mapping[str, Any]) -> bool:
    return len(message) == 2 and message.get("role") is not None and message.get("content") is not None


def _is_plain(tokenizer: "PreTrainedTokenizerBase", kwargs: Mapping[str, Any]) -> bool:
    """Whether transformers itself does no more than to call the template with `kwargs` as its variables."""
    from transformers import PreTrainedTokenizerBase

    method = PreTrainedTokenizerBase.apply_chat_template
    arguments = set(inspect.signature(method).parameters)
    return type(tokenizer).apply_chat_template is method and not arguments & set(kwargs)
