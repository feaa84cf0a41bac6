"""A response as the text that a reward function reads (`solution_str`)."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rl_assets.policy.media_tokens import media_tokens
from rl_assets.policy.turns import closing, opening

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_NAMED = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
# How an opening tag is written, and the closing one of the same name.
_PAIRS = (
    (re.compile(r"<(\w+)>"), "</{}>"),
    (re.compile(r"\[(\w+)\]"), "[/{}]"),
    (re.compile(r"<\|(\w+)\|>"), "<|/{}|>"),
    (re.compile(r"<\|begin_of_(\w+)\|>"), "<|end_of_{}|>"),
)
# Pairs around a turn, a text, a picture or a list of tools: no content of a response.
_CONTROL = frozenset(
    (
        *("s", "text", "turn", "sentence", "user", "human", "assistant", "bot", "model", "system", "sys"),
        *("system_prompt", "inst", "img", "pad", "available_tools", "tool_results", "tool_content"),
    )
)
_TAG = re.compile(r"<(/?)(\w+)>")


def content_tags(tokenizer: "PreTrainedTokenizerBase") -> dict[int, str]:
    """The tags that are special tokens and nevertheless part of a response's content, such as `<answer>` and
    `</answer>`, by id. What comes in pairs is a tag, unless it is around a turn, a text or media.

    `skip_special_tokens=True`, as verl's reward managers decode, removes them.
    """
    special = {added.content: token for token, added in _added(tokenizer) if added.special}
    pairs = [(begin, end) for begin in special for end in _ends(begin) if end in special]
    if not pairs:
        return {}
    control = {*(getattr(tokenizer, name, None) for name in _NAMED), *media_tokens(special)}
    after = closing(tokenizer)
    return {
        special[tag]: tag
        for pair in pairs
        if not any(tag in control or tag in after for tag in pair)
        for tag in pair
    }


def decode_responses(tokenizer: "PreTrainedTokenizerBase", responses: Sequence[Sequence[int]]) -> list[str]:
    """The text of each response: as verl's reward managers decode it (without special tokens), but with the
    tags that a policy has as special tokens (`content_tags`).

    Args:
        tokenizer: the policy's.
        responses: token ids, without padding.
    """
    tags = content_tags(tokenizer)
    if not tags:
        return tokenizer.batch_decode([list(ids) for ids in responses], skip_special_tokens=True)
    dropped = {token for token, added in _added(tokenizer) if added.special} | set(tokenizer.all_special_ids)
    dropped -= tags.keys()
    kept = [[token for token in ids if token not in dropped] for ids in responses]
    return tokenizer.batch_decode(kept, skip_special_tokens=False)


class Written(NamedTuple):
    """An answer as a response of the policy.

    Attributes:
        solution: what the reward function would get.
        changed: why that is not the answer as it was; None where it is.
    """

    solution: str
    changed: str | None


class Writer:
    """Writes an answer as a response of a policy would be: after what the chat template has written, and in
    the policy's tokens.

    Args:
        tokenizer: the policy's, with the chat template.
        kwargs: further variables of the template.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", kwargs: Mapping[str, Any] | None = None) -> None:
        self._tokenizer = tokenizer
        self.tags = tuple(content_tags(tokenizer).values())
        turns = {added.content for _, added in _added(tokenizer) if added.special} - set(self.tags)
        self._prefilled = [
            tag
            for tag in _TAG.finditer(opening(tokenizer, kwargs))
            if tag[0] not in turns and tag[2].lower() not in _CONTROL
        ]

    def write(self, answer: str) -> Written:
        """The answer, without the tags that the template writes itself, encoded and decoded."""
        text = self._continued(answer)
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        (solution,) = decode_responses(self._tokenizer, [ids])
        if solution != text:
            return Written(solution, f"the policy's tokenizer gives back {solution!r:.80} for {text!r:.80}")
        if text != answer:
            prefilled = "".join(tag[0] for tag in self._prefilled)
            return Written(
                solution, f"the chat template writes {prefilled} itself, so the response is {text!r:.80}"
            )
        return Written(solution, None)

    def _continued(self, answer: str) -> str:
        open_tags = list[str]()
        for tag in self._prefilled:
            if answer.startswith(tag[0]):
                answer = answer.removeprefix(tag[0])
                continue
            if not tag[1]:
                open_tags.append(tag[2])
            elif open_tags and open_tags[-1] == tag[2]:
                open_tags.pop()
        return "".join(f"</{name}>\n" for name in reversed(open_tags)) + answer


def _ends(begin: str) -> Iterator[str]:
    for form, end in _PAIRS:
        found = form.fullmatch(begin)
        if found and found[1].lower() not in _CONTROL:
            yield end.format(found[1])


def _added(tokenizer: "PreTrainedTokenizerBase") -> Iterator[tuple[int, Any]]:
    yield from tokenizer.added_tokens_decoder.items()
