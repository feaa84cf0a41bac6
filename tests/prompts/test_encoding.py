"""Text to ids: the fast back end gives the tokenizer's own ids, or is not used."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from rl_assets.prompts.encoding import PROBES, Encoded, TokenEncoder

CODE = Path(__file__).read_text()
CORPUS = [
    *PROBES,
    CODE,
    "for (int i = 0; i < n; ++i) { sum += a[i] * 0x1F; } // ça va\r\n\t\t\\frac{1}{2}\\sqrt{x^2}",
    "你好，世界！这是一个测试。日本語のテキスト、한국어 문장입니다。",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 👍🏽 ☕️ 🧑🏿‍🚀",
    "e\u0301 \u0041\u030a n\u0303 ก็ है Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘",
    "<|im_start|>user\nI am no token: <|im_end|> <|im_end |> <|endoftext|><|im_start|>",
    "word " * 20_000,
    "a" * 5_000,
    " " * 3_000 + "\n" * 3_000,
    "".join(map(chr, range(1, 0x500))),
    "\x04",
    "a\x00b\x1fc\x7f\x85\ufffd\ufeff",
]


@pytest.fixture(scope="module")
def encoder(policy: Path) -> TokenEncoder:
    return TokenEncoder(AutoTokenizer.from_pretrained(policy))


def same(encoder: TokenEncoder, texts: list[str]) -> bool:
    fast, plain = encoder.encode(texts), encoder.encode_plainly(texts)
    return np.array_equal(fast.ids, plain.ids) and np.array_equal(fast.lengths, plain.lengths)


def test_the_demo_policy_is_encoded_by_the_fast_back_end(encoder: TokenEncoder) -> None:
    assert (encoder.name, encoder.reason) == ("fastokens", None)


def test_ids_are_those_of_the_tokenizer(policy: Path, encoder: TokenEncoder) -> None:
    tokenizer = AutoTokenizer.from_pretrained(policy)
    expected = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in CORPUS]
    assert [ids.tolist() for ids in encoder.encode(CORPUS).split()] == expected
    assert encoder.encode(CORPUS).ids.dtype == np.int32


@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), max_size=8))
@settings(max_examples=150, deadline=None)
def test_so_they_are_for_any_text(encoder: TokenEncoder, texts: list[str]) -> None:
    assert same(encoder, texts)


def test_a_text_that_the_fast_back_end_has_no_answer_for_falls_back_alone(
    encoder: TokenEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"row {number}" for number in range(64)]
    texts[40] = "\x04"
    with pytest.raises(Exception):  # noqa: B017 - whatever the library raises
        encoder._fast.encode_batch_flat(texts)
    alone: list[list[str]] = []
    plainly = encoder.encode_plainly
    monkeypatch.setattr(encoder, "encode_plainly", lambda rest: alone.append(list(rest)) or plainly(rest))
    found = encoder.encode(texts)
    assert alone == [["\x04"]]
    monkeypatch.undo()
    assert np.array_equal(found.ids, encoder.encode_plainly(texts).ids)


def test_without_the_package_the_tokenizer_itself_is_used(
    policy: Path, encoder: TokenEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fastokens", None)
    plain = TokenEncoder(AutoTokenizer.from_pretrained(policy))
    assert plain.name == "tokenizers"
    assert "pip install fastokens" in str(plain.reason)
    assert np.array_equal(plain.encode(CORPUS).ids, encoder.encode(CORPUS).ids)


def test_a_back_end_that_differs_on_a_probe_is_not_used(
    policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(policy)
    other = AutoTokenizer.from_pretrained(policy)
    other.add_tokens(["fox\n\n"])
    monkeypatch.setattr("rl_assets.prompts.encoding._fastokens", lambda _: _wrong(other))
    encoder = TokenEncoder(tokenizer)
    assert encoder.name == "tokenizers"
    assert "differently" in str(encoder.reason)
    assert same(encoder, CORPUS)


def _wrong(tokenizer: Any) -> tuple[Any, None]:
    import fastokens

    return fastokens.Tokenizer.from_json_str(tokenizer.backend_tokenizer.to_str()), None


def metaspace() -> Tokenizer:
    """In the manner of Llama 2: BPE over pieces that begin with ▁, bytes where a character is unknown."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()])
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer.train_from_iterator([CODE], trainers.BpeTrainer(vocab_size=800, special_tokens=special))
    return tokenizer


def byte_level() -> Tokenizer:
    """In the manner of Qwen: byte-level BPE over composed characters."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, special_tokens=["<|end|>"])
    tokenizer.train_from_iterator([CODE], trainer)
    return tokenizer


def unigram() -> Tokenizer:
    """In the manner of T5: a unigram model over ▁ pieces."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=["<unk>", "</s>"], unk_token="<unk>")
    tokenizer.train_from_iterator([CODE], trainer)
    return tokenizer


def word_piece() -> Tokenizer:
    """In the manner of BERT."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(
        [CODE], trainers.WordPieceTrainer(vocab_size=500, special_tokens=["[UNK]", "[SEP]"])
    )
    return tokenizer


@pytest.mark.parametrize("make", [metaspace, byte_level, unigram, word_piece])
def test_of_every_kind_of_tokenizer_the_ids_are_its_own(make: Callable[[], Tokenizer]) -> None:
    tokenizer = make()
    tokenizer.enable_truncation(max_length=5)
    tokenizer.enable_padding(length=7)
    encoder = TokenEncoder(PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    assert encoder.name in ("fastokens", "tokenizers")
    assert (encoder.name == "tokenizers") == (encoder.reason is not None)
    texts = [text[:2_000] for text in CORPUS]
    assert same(encoder, texts)
    assert max(encoder.encode(texts).lengths) > 7


def test_nothing_is_nothing(encoder: TokenEncoder) -> None:
    assert encoder.encode([]).split() == []
    assert Encoded.of([]).lengths.tolist() == []
    assert encoder.encode(["", ""]).lengths.tolist() == [0, 0]
