"""The one render function: messages to the token ids that the policy is given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rl_assets.errors import InputError, first_line
from rl_assets.store import canonical_json, digest_bytes, digest_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class Rendered:
    """What became of one prompt: its ids, or the reason why there are none.

    Attributes:
        ids: token ids of the rendered prompt, generation prompt included; None when it did not render.
        error: the template's own message; None when it rendered.
    """

    ids: list[int] | None = None
    error: str | None = None


@dataclass(frozen=True)
class RenderStamp:
    """Digests of everything that a rendered prompt depends on, part by part.

    Equal stamps mean equal ids for equal messages, so what was measured can be proven to be what is
    generated from. The parts are kept apart so that a difference can be named.
    """

    parts: Mapping[str, str]

    @property
    def fingerprint(self) -> str:
        """One digest for all parts, 32 hex digits."""
        return digest_json(dict(self.parts))

    def require(self, stamped: Mapping[str, str], what: str) -> None:
        """Refuse data that was rendered under another stamp.

        Raises:
            InputError: a part differs; the message names the parts.
        """
        changed = sorted(
            name for name in {*self.parts, *stamped} if self.parts.get(name) != stamped.get(name)
        )
        if changed:
            raise InputError(
                file=what,
                field="render stamp",
                found=f"prompts rendered with another {' and '.join(changed).replace('_', ' ')}",
                expected="the ones the policy has now",
                remedy="Materialise length_filtered and proto_shards again, then the rollouts.",
            )


@dataclass(frozen=True)
class PromptRenderer:
    """Renders messages with a tokenizer's chat template and encodes the result.

    The ids equal those of `tokenizer.apply_chat_template(messages, tokenize=True,
    add_generation_prompt=True, tools=…, **template_kwargs)`: special tokens come from the template alone,
    so a template that writes the BOS token gets it once.
    """

    tokenizer: "PreTrainedTokenizerBase"
    tools: Sequence[dict[str, Any]] | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        trust_remote_code: bool = False,
    ) -> Self:
        """A renderer with the tokenizer of the policy at `path` (a folder or a hub id).

        Raises:
            InputError: the tokenizer does not load, or has no chat template, or `template_kwargs` sets an
                argument that the renderer sets itself.
        """
        from transformers import AutoTokenizer

        if isinstance(path, Path) and not path.is_dir():
            raise InputError(
                file=path,
                field="policy.path",
                found="no such folder",
                expected="a policy's folder, or a hub id",
                remedy="Check the path; `make setup` makes the demo policy.",
            )
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(path), trust_remote_code=trust_remote_code)
        except Exception as error:  # whatever a damaged or absent checkpoint makes the library raise
            raise InputError(
                file=path,
                field="policy.path",
                found=f"a policy whose tokenizer does not load ({first_line(error)})",
                expected="a folder with tokenizer.json and a chat template, or a hub id",
                remedy="Check the path; `make setup` makes the demo policy.",
            ) from error
        if not tokenizer.chat_template:
            raise InputError(
                file=path,
                field="chat_template",
                found="none",
                expected="a chat template beside the tokenizer",
                remedy="Use an instruction-tuned policy, or add chat_template.jinja to its folder.",
            )
        reserved = {"add_generation_prompt", "tokenize", "tools", "return_dict", "return_tensors"}
        if clash := reserved & set(template_kwargs or {}):
            raise InputError(
                field="data.apply_chat_template_kwargs",
                found=f"{', '.join(sorted(clash))}",
                expected="arguments of the template itself",
                remedy="Take these out: the renderer sets them.",
            )
        return cls(tokenizer, tools, dict(template_kwargs or {}))

    @property
    def stamp(self) -> RenderStamp:
        """Digests of tokenizer, chat template, template arguments and tools."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        vocabulary = backend.to_str() if backend is not None else canonical_json(self.tokenizer.get_vocab())
        return RenderStamp(
            {
                "tokenizer": digest_bytes(vocabulary.encode()),
                "chat_template": digest_json(self.tokenizer.chat_template),
                "template_kwargs": digest_json(dict(self.template_kwargs)),
                "tools": digest_json(None if self.tools is None else list(self.tools)),
            }
        )

    def render(self, prompts: Sequence[Messages]) -> list[Rendered]:
        """Render and encode a batch; a prompt that its template refuses does not harm the others.

        A key of a message that is null is absent for the template.
        """
        prompts = [[_present(message) for message in messages] for messages in prompts]
        try:
            texts: list[str | None] = list(self._template(prompts))
            errors: dict[int, str] = {}
        except Exception:  # a template raises what it likes; find out which prompt it was
            texts, errors = self._one_by_one(prompts)
        rendered = [text for text in texts if text is not None]
        encoded = iter(self.tokenizer(rendered, add_special_tokens=False)["input_ids"] if rendered else [])
        return [
            Rendered(error=errors[index]) if text is None else Rendered(ids=next(encoded))
            for index, text in enumerate(texts)
        ]

    def _template(self, prompts: Sequence[Messages]) -> list[str]:
        return self.tokenizer.apply_chat_template(
            prompts,
            tokenize=False,
            add_generation_prompt=True,
            tools=None if self.tools is None else list(self.tools),
            **self.template_kwargs,
        )

    def _one_by_one(self, prompts: Sequence[Messages]) -> tuple[list[str | None], dict[int, str]]:
        texts: list[str | None] = []
        errors: dict[int, str] = {}
        for index, messages in enumerate(prompts):
            try:
                texts.extend(self._template([messages]))
            except Exception as error:  # as above
                texts.append(None)
                errors[index] = first_line(error)
        return texts, errors


def _present(message: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if value is not None}
