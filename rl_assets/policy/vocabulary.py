"""Which token ids a policy may write, and which of them end its turn.

Checkpoints say it in up to four places, and these differ: a model that was tuned from a base often keeps the
base's ``<|endoftext|>`` in generation_config.json, while its chat template ends a turn with ``<|im_end|>``.
A response ends at the tokens of all of them. An id without a token is never sampled (embeddings are
often padded beyond the tokenizer), and no token that marks media is, since nothing stands behind it.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_assets.base.digests import digest_json
from rl_assets.errors import InputError
from rl_assets.policy.media_tokens import media_tokens
from rl_assets.policy.turns import closing

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_GENERATION, _CONFIG = "generation_config.json", "config.json"
_TOKENIZER, _TEMPLATE = "the tokenizer", "the chat template"
# Parts of a config.json that describe the language model within a model of several.
_LANGUAGE = ("text_config", "llm_config", "language_config", "thinker_config")
# Keys of a config.json that name a token which stands for media, or begins or ends them.
_MEDIA_KEY = re.compile(r"(image|video|audio|vision|img|boi|eoi|boa|eoa)(_\w+)?_token_(id|index)")


@dataclass(frozen=True)
class Vocabulary:
    """The token ids of a policy, as its files, its tokenizer and its chat template say.

    Attributes:
        eos_token_ids: each of these ends a response; in ascending order.
        pad_token_id: fills rows up; may be one of these.
        size: ids from here on have no token; None where there is no tokenizer to say.
        unsampled: ids below `size` that are never sampled: those without a token, and media's.
        says: by where it is said, the ids that end a turn there.
        names: the text of each of `eos_token_ids`.
        untold: what the chat template ends a turn with, where that is no token.
        padded: whether the model has rows in its embedding for ids from `size` on, as config.json says.
    """

    eos_token_ids: tuple[int, ...]
    pad_token_id: int
    size: int | None
    unsampled: tuple[int, ...]
    says: Mapping[str, tuple[int, ...]]
    names: Mapping[int, str]
    untold: str = ""
    padded: bool = False

    @cached_property
    def key(self) -> dict[str, str]:
        """Part of what names a response: those of another key are others.

        It is empty where all sources agree and every id may be drawn. Such a policy answers as it did before
        there were keys, so what was generated then is taken.
        """
        agreed = set(next(iter(self.says.values()))) == set(self.eos_token_ids)
        if agreed and not self.padded and not self.unsampled:
            return {}
        parts = [self.eos_token_ids, self.pad_token_id, self.size, self.unsampled]
        return {"vocabulary": digest_json(parts)}

    def blocked(self, rows: int) -> tuple[int, ...]:
        """The ids that are never sampled of a model with so many rows in its embedding."""
        beyond = range(rows if self.size is None else self.size, rows)
        return tuple(sorted({token for token in self.unsampled if token < rows}.union(beyond)))

    def ends(self) -> str:
        """The tokens that end a response, in words."""
        return ", ".join(f"{self.names[token]} ({token})" for token in self.eos_token_ids)

    def remarks(self) -> Iterator[str]:
        """What a person should know of how a response ends: where its sources disagree, or say nothing."""
        first = next(iter(self.says.values()))
        if set(first) != set(self.eos_token_ids):
            said = "; ".join(
                f"{source}: {', '.join(self.names[token] for token in ids)}"
                for source, ids in self.says.items()
            )
            yield f"a response ends at each of {self.ends()}, since the policy's files disagree ({said})"
        if self.untold:
            yield (
                f"the chat template ends an assistant's turn with {self.untold!r}, which is no token of the "
                f"policy: a response ends at {self.ends()} only; rollout.stop takes texts that end it too"
            )


def read_vocabulary(
    folder: Path,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> Vocabulary:
    """The vocabulary of the policy in `folder`.

    Args:
        folder: holds config.json and, where there is one, generation_config.json.
        tokenizer: the policy's, with the chat template that prompts are rendered with; None where it has
            none, so that only the files say something.
        template_kwargs: further variables of the template.

    Raises:
        InputError: nothing says how a response ends, or only ids that no token has.
    """
    config, generation = _json(folder / _CONFIG), _json(folder / _GENERATION)
    said = {
        _GENERATION: _ids(generation.get("eos_token_id")),
        _CONFIG: [token for part in _parts(config) for token in _ids(part.get("eos_token_id"))],
    }
    pads = [
        *_ids(generation.get("pad_token_id")),
        *(token for part in _parts(config) for token in _ids(part.get("pad_token_id"))),
    ]
    media = {token for key, value in config.items() if _MEDIA_KEY.fullmatch(key) for token in _ids(value)}
    size, holes, untold = None, set[int](), ""
    if tokenizer is not None:
        ids = set(tokenizer.get_vocab().values())
        size = max(ids) + 1
        holes = set(range(size)) - ids
        media |= _media_ids(tokenizer)
        said[_TOKENIZER] = _ids(tokenizer.eos_token_id)
        known = {token for tokens in said.values() for token in tokens}
        said[_TEMPLATE], untold = _closing_ids(tokenizer, closing(tokenizer, template_kwargs), known)
    says = {
        source: tuple(sorted({t for t in tokens if t not in holes and (size is None or t < size)}))
        for source, tokens in said.items()
    }
    says = {source: tokens for source, tokens in says.items() if tokens}
    ends = tuple(sorted({token for tokens in says.values() for token in tokens}))
    if not ends:
        raise InputError(
            file=folder / _GENERATION,
            field="eos_token_id",
            found=repr(generation.get("eos_token_id", config.get("eos_token_id"))),
            expected="the id (or ids) of the token that ends a response",
            remedy="Add it: without it every response would run to its limit.",
        )
    return Vocabulary(
        eos_token_ids=ends,
        pad_token_id=next(iter(pads), ends[0]),
        size=size,
        unsampled=tuple(sorted((holes | media) - set(ends))),
        says=says,
        names={token: _name(tokenizer, token) for token in ends},
        untold=untold,
        padded=size is not None and any(part.get("vocab_size", 0) > size for part in _parts(config)),
    )


def require_embedded(
    folder: Path, tokenizer: "PreTrainedTokenizerBase", rows: int, rendered: Iterable[int]
) -> None:
    """Refuse a tokenizer that writes ids of which the model's embedding has no row.

    An added token beyond the embedding is allowed as long as no prompt needs it: some checkpoints have one
    for a medium that the model does not read.

    Args:
        folder: of the policy.
        tokenizer: the policy's.
        rows: how many the embedding has.
        rendered: ids of a prompt, as the chat template writes it.

    Raises:
        InputError: a token of the vocabulary itself, or one that the chat template writes, is beyond.
    """
    added, needed = tokenizer.added_tokens_decoder, set(rendered)
    beyond = {
        token: text
        for text, token in tokenizer.get_vocab().items()
        if token >= rows and (token not in added or token in needed)
    }
    if beyond:
        first = min(beyond)
        which = f"the first: {beyond[first]!r}, {first}"
        raise InputError(
            file=folder / "tokenizer.json",
            found=f"{len(beyond):,} tokens beyond the model's embedding ({which})",
            expected=f"ids below {rows:,}, the vocab_size of config.json",
            remedy="Save the tokenizer that belongs to the model; where tokens were added to it, the model "
            "needs `resize_token_embeddings` and training.",
        )


def _closing_ids(tokenizer: "PreTrainedTokenizerBase", text: str, known: set[int]) -> tuple[list[int], str]:
    """The tokens with which the template closes an assistant's turn, or the text where it is no token.

    What counts is the first run of control tokens. Where it holds one that is known to end a turn, the
    template says the same; otherwise it is the first, unless that begins a sequence.
    """
    added, run = tokenizer.added_tokens_decoder, list[int]()
    for token in tokenizer.encode(text, add_special_tokens=False):
        # A character that the tokenizer does not know becomes an added token too, which is not in the text.
        if token in added and added[token].content.strip() and added[token].content in text:
            run.append(token)
        elif tokenizer.decode([token]).strip():
            break
    if agreed := [token for token in run if token in known]:
        return agreed, ""
    if run and run[0] != tokenizer.bos_token_id:
        return run[:1], ""
    return [], "" if run else text.strip()[:40]


def _media_ids(tokenizer: "PreTrainedTokenizerBase") -> set[int]:
    special = {
        added.content: token for token, added in tokenizer.added_tokens_decoder.items() if added.special
    }
    return {special[text] for text in media_tokens(special)}


def _name(tokenizer: "PreTrainedTokenizerBase | None", token: int) -> str:
    return "token" if tokenizer is None else str(tokenizer.convert_ids_to_tokens(token))


def _parts(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The config itself and those of the language models within it."""
    yield config
    for name in _LANGUAGE:
        if isinstance(inner := config.get(name), dict):
            yield from _parts(inner)


def _ids(value: Any) -> list[int]:
    """Token ids as a config has them: one, a list of them, or none; -1 stands for none as well."""
    values: Iterable[Any] = value if isinstance(value, list) else [value]
    return [token for token in values if type(token) is int and token >= 0]


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):  # whoever loads the policy says what is wrong with it
        return {}
    return found if isinstance(found, dict) else {}
