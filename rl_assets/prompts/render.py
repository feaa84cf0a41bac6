"""The one render function: messages to the token ids that the policy is given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from rl_assets.base.digests import digest_bytes, digest_json
from rl_assets.base.jsontext import canonical_json
from rl_assets.contract.rules.code import Finding
from rl_assets.errors import InputError, first_line
from rl_assets.policy.checkpoint import load_tokenizer, require_template
from rl_assets.prompts.encoding import Encoded, TokenEncoder
from rl_assets.prompts.refused import Refused
from rl_assets.prompts.rendered import Rendered, RenderStamp
from rl_assets.prompts.settings import ROW_SETTINGS, check_kwargs, template_variables, unread
from rl_assets.prompts.templates import ChatTemplate, Messages, Tools
from rl_assets.prompts.time_limit import names_template

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rl_assets.prompts.multimodal import MediaRenderer

_MOST_VARIANTS = 256
"""Settings of rows kept at a time; a dataset has a few."""


class FastPathDiffersError(Exception):
    """A prompt of the sample has other ids by the fast path than by `apply_chat_template`."""


@dataclass(frozen=True)
class PromptRenderer:
    """Renders messages with a tokenizer's chat template and encodes the result.

    The ids equal those of `tokenizer.apply_chat_template(messages, tokenize=True,
    add_generation_prompt=True, tools=…, **template_kwargs)`: special tokens come from the template alone,
    so a template that writes the BOS token gets it once. The template is compiled once and the ids come from
    the fastest back end that agrees with the tokenizer; `verify` holds a prompt against that call.

    Attributes:
        tokenizer: the policy's.
        tools: function schemas for every prompt that brings none of its own.
        template_kwargs: variables for the template.
        media: renders the rows that have media; None where the policy reads none.
        fast: False renders and encodes by `apply_chat_template` alone.
    """

    tokenizer: "PreTrainedTokenizerBase"
    tools: Tools = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    media: "MediaRenderer | None" = None
    fast: bool = True
    _variants: dict[str, "PromptRenderer"] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        tools: Tools = None,
        template_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        trust_remote_code: bool = False,
        root: Path = Path(),
        media_root: str | None = None,
    ) -> Self:
        """A renderer with the tokenizer and, where it has one, the processor of the policy at `path`.

        Args:
            path: a folder or a hub id.
            tools: function schemas for every prompt that brings none of its own.
            template_kwargs: variables for the chat template.
            mm_processor_kwargs: arguments of the processor.
            trust_remote_code: lets the policy's repository run code of its own.
            root: the project's top folder, which the raw files of rows are relative to.
            media_root: folder that media paths are relative to; None is the folder of the raw file.

        Raises:
            InputError: the tokenizer or the processor does not load, there is no chat template that Jinja
                reads, or `template_kwargs` sets an argument that the renderer sets itself, names a setting
                that the template does not read, or holds what is no JSON.
        """
        from rl_assets.prompts.multimodal import load_media_renderer

        tools = tools or None
        kwargs = dict(template_kwargs or {})
        check_kwargs(kwargs, None)
        tokenizer = load_tokenizer(path, trust_remote_code=trust_remote_code)
        media = load_media_renderer(
            path,
            tools=tools,
            template_kwargs=kwargs,
            mm_processor_kwargs=dict(mm_processor_kwargs or {}),
            trust_remote_code=trust_remote_code,
            root=root,
            media_root=media_root,
        )
        if media and media.processor.chat_template:
            # A prompt without media has the same template as one with media: the processor's, as in verl.
            tokenizer.chat_template = media.processor.chat_template
        if not tokenizer.chat_template:
            raise InputError(
                file=path,
                field="chat_template",
                found="none",
                expected="a chat template beside the tokenizer",
                remedy="Use an instruction-tuned policy, or add chat_template.jinja to its folder; a policy "
                "of the hub needs a folder for that (`hf download NAME --local-dir FOLDER`).",
            )
        require_template(path, tokenizer, kwargs)
        check_kwargs(kwargs, template_variables(tokenizer, kwargs))
        return cls(tokenizer, tools, kwargs, media)

    def with_settings(self, own: Mapping[str, Any] | None) -> "PromptRenderer":
        """The renderer of rows with these settings, which count more than the dataset's; itself for none.

        Raises:
            Refused: with ``render.settings_invalid``: the chat template does not read one of them.
        """
        if not own:
            return self
        key = canonical_json(own)
        if key not in self._variants:
            if self.variables is not None and (found := unread(own, self.variables)):
                name, hint = found
                reason = f"the policy's chat template does not read `{name}`{hint}"
                raise Refused("render.settings_invalid", ROW_SETTINGS, reason)
            if len(self._variants) >= _MOST_VARIANTS:
                self._variants.clear()
            media = self.media and self.media.with_settings(own)
            self._variants[key] = replace(
                self, template_kwargs={**self.template_kwargs, **own}, media=media, _variants={}
            )
        return self._variants[key]

    @cached_property
    def variables(self) -> frozenset[str] | None:
        """What the chat template reads; None where that is not known."""
        return template_variables(self.tokenizer, self.template_kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        # A compiled template and a Rust tokenizer are not pickled: another process makes its own.
        return type(self), (self.tokenizer, self.tools, self.template_kwargs, self.media, self.fast)

    @cached_property
    def template(self) -> ChatTemplate:
        """Messages to text."""
        return ChatTemplate(self.tokenizer, self.template_kwargs, self._tools(None), fast=self.fast)

    @cached_property
    def encoder(self) -> TokenEncoder:
        """Text to ids."""
        return TokenEncoder(self.tokenizer, fast=self.fast)

    @cached_property
    def stamp(self) -> RenderStamp:
        """Digests of tokenizer, chat template, template arguments, tools, and what media are made with."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        vocabulary = backend.to_str() if backend is not None else canonical_json(self.tokenizer.get_vocab())
        special = canonical_json(self.tokenizer.special_tokens_map)
        return RenderStamp(
            {
                "tokenizer": digest_bytes(f"{vocabulary}{special}".encode()),
                "chat_template": digest_json(self.tokenizer.chat_template),
                "template_kwargs": digest_json(dict(self.template_kwargs)),
                "tools": digest_json(None if self.tools is None else list(self.tools)),
                **(self.media.stamp_parts if self.media else {}),
            }
        )

    def render(self, prompts: Sequence[Messages], tools: Sequence[Tools] | None = None) -> list[Rendered]:
        """Render and encode text prompts; one that its template refuses does not harm the others.

        A key of a message that is null is absent for the template.

        Args:
            prompts: the messages of each.
            tools: per prompt function schemas of its own: None where it takes the renderer's, an empty list
                where it has none.
        """
        texts, refused, lost = self.texts(prompts, tools)
        encoded, empty = self.encode(texts)
        refused = empty | refused
        return [
            refused.get(index) or Rendered(ids=ids.tolist(), lost=lost.get(index, ()))
            for index, ids in enumerate(encoded.split())
        ]

    @names_template
    def texts(
        self, prompts: Sequence[Messages], tools: Sequence[Tools] | None = None
    ) -> tuple[list[str], dict[int, Rendered], dict[int, Sequence[Finding]]]:
        """The text of each prompt as for `render`, empty for one that is refused; and by their position the
        refused, and what others lack."""
        texts: list[str] = []
        refused: dict[int, Rendered] = {}
        lost: dict[int, Sequence[Finding]] = {}
        copied = self.template.copied
        schemas = repeat(self._tools(None)) if tools is None else map(self._tools, tools)
        for index, (messages, tools_) in enumerate(zip(prompts, schemas, strict=False)):
            try:
                if (text := copied(messages, tools_)) is None:
                    text = self.template.interpreted(messages, tools_)
                    if text and (losses := self.template.whole.losses(text, messages, tools_)):
                        lost[index] = losses
                texts.append(text)
            except Exception as error:  # a template raises what it likes
                texts.append("")
                refused[index] = Rendered(error=first_line(error), code="render.template_error")
        return texts, refused, lost

    def encode(self, texts: Sequence[str]) -> tuple[Encoded, dict[int, Rendered]]:
        """The ids of each text of `texts`, and by their position those that have none, as refused."""
        encoded = self.encoder.encode(texts)
        without = np.flatnonzero(encoded.lengths == 0).tolist()
        nothing = Rendered(error="it renders to nothing", code="render.empty_prompt")
        return encoded, dict.fromkeys(without, nothing)

    @names_template
    def verify(self, messages: Messages, tools: Tools, ids: np.ndarray) -> None:
        """Hold the ids of a prompt against those that transformers gives by itself.

        Raises:
            FastPathDiffersError: they are others; the message says whether text or ids differ.
        """
        tools = self._tools(tools)
        text = self.template.render_plainly(messages, tools)
        if np.array_equal(self.encoder.encode_plainly([text]).ids, ids):
            return
        same = text == self.template.render(messages, tools)
        raise FastPathDiffersError(
            f"{self.encoder.name} gives other ids than tokenizers"
            if same
            else "the compiled chat template gives another text than apply_chat_template"
        )

    def _tools(self, own: Tools) -> Tools:
        """The schemas for a prompt. Many templates take an empty list for tools, and announce them."""
        return (self.tools if own is None else own) or None
