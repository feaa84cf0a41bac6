"""Rendered text to token ids: by the tokenizer itself, or by a faster back end that gives the same ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_assets.errors import first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROBES = (
    "",
    " ",
    "The  quick\tbrown fox\n\n jumps\r\n over 1234567890 lazy dogs' tails.",
    "def f(x):\n    return {'a': [x ** 2, 0xFF]}  # ok\n",
    "naïve café e\u0301 ﬁ Ⅳ \u00a0\u200b\u200d\ufeff½",
    "你好，世界。こんにちは 안녕하세요 สวัสดี नमस्ते שלום مرحبا",
    "👩‍👩‍👧‍👦🏳️‍🌈🇩🇪 ∑∫√ 𝔘𝔫𝔦",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "<s> [INST] <|user|> </s> <0x0A> ▁ Ġ",
)
"""Texts on which back ends that are almost right differ: spaces, marks, scripts, what looks like a token."""


@dataclass(frozen=True)
class Encoded:
    """Token ids of several texts, one after the other.

    Attributes:
        ids: int32, of shape (sum of lengths,).
        lengths: int64, of shape (texts,).
    """

    ids: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[Sequence[int] | np.ndarray]) -> "Encoded":
        """The ids of each row, joined."""
        arrays = [np.asarray(row, dtype=np.int32) for row in rows]
        lengths = np.fromiter((len(row) for row in arrays), dtype=np.int64, count=len(arrays))
        return cls(np.concatenate(arrays) if arrays else np.empty(0, np.int32), lengths)

    def split(self) -> list[np.ndarray]:
        """The ids of each text."""
        return np.split(self.ids, np.cumsum(self.lengths)[:-1]) if len(self.lengths) else []

    def __add__(self, other: "Encoded") -> "Encoded":
        return Encoded(np.concatenate([self.ids, other.ids]), np.concatenate([self.lengths, other.lengths]))


class TokenEncoder:
    """Encodes batches of rendered prompts, without adding special tokens.

    fastokens is used where it can read the tokenizer and agrees with it on `PROBES` and on every special
    token inside text; `name` says which back end is used, and `reason` why it is not the fast one. A text
    for which fastokens has no answer (a byte that the vocabulary lacks) is given to the tokenizer alone.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", *, fast: bool = True) -> None:
        self._tokenizer = tokenizer
        self._fast: Any
        self.reason: str | None
        self._fast, self.reason = _fastokens(tokenizer) if fast else (None, "it was not asked for")
        self.name = "tokenizers" if self._fast is None else "fastokens"
        if self._fast is not None and (text := self._differing(_probes(tokenizer))) is not None:
            self._fast, self.name = None, "tokenizers"
            self.reason = f"it encodes {text[:40]!r} differently"

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Token ids of each text, equal to ``tokenizer(text, add_special_tokens=False)["input_ids"]``."""
        if self._fast is None or not texts:
            return self.encode_plainly(texts)
        try:
            ids, offsets = self._fast.encode_batch_flat(list(texts))
        except BaseException as error:  # a panic of a Rust library is no Exception
            if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
                raise
            if len(texts) == 1:
                return self.encode_plainly(texts)
            half = len(texts) // 2
            return self.encode(texts[:half]) + self.encode(texts[half:])
        return Encoded(
            np.frombuffer(ids, dtype=np.uint32).astype(np.int32),
            np.diff(np.frombuffer(offsets, dtype=np.uint64).astype(np.int64)),
        )

    def encode_plainly(self, texts: Sequence[str]) -> Encoded:
        """The same by the tokenizer itself, which is what `encode` is measured against."""
        if not texts:
            return Encoded.of([])
        encoded = self._tokenizer(
            list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False
        )
        return Encoded.of(encoded["input_ids"])

    def _differing(self, texts: Sequence[str]) -> str | None:
        """The first text on which the two back ends do not agree."""
        pairs = zip(self.encode(texts).split(), self.encode_plainly(texts).split(), strict=True)
        return next(
            (text for text, (one, other) in zip(texts, pairs, strict=True) if not np.array_equal(one, other)),
            None,
        )


def _probes(tokenizer: "PreTrainedTokenizerBase") -> list[str]:
    special = [str(token) for token in tokenizer.all_special_tokens]
    return [*PROBES, *(f"a {token} b{token}\n{token}c" for token in special)]


def _fastokens(tokenizer: "PreTrainedTokenizerBase") -> tuple[Any, str | None]:
    """The fast back end made of the tokenizer, or None and why there is none."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None, "the policy's tokenizer is written in Python"
    try:
        import fastokens
    except ImportError:
        return None, "it is not installed (pip install fastokens)"
    tokenizer(
        [""], add_special_tokens=False
    )  # takes off a truncation or padding that tokenizer.json declares
    try:
        return fastokens.Tokenizer.from_json_str(backend.to_str()), None
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return None, f"it cannot read this tokenizer ({first_line(error)[:120]})"
