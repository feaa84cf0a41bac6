"""Prompts that are nearly the same, and prompts that quote a benchmark."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rl_assets.contract import RawManifest
from rl_assets.contract.reading import read_rows
from rl_assets.store import Table

SHINGLE_WORDS = 5
_PERMUTATIONS = 128
_LOOK_BELOW = 0.8
_BOILERPLATE_SHARE, _BOILERPLATE_PROMPTS = 0.01, 10
_WORD = re.compile(r"\w+")


def prompt_texts(rows: Table) -> dict[str, str]:
    """The text of every prompt by uid: that of its messages in order, media aside."""
    return {
        row["uid"]: "\n".join(_texts(json.loads(row["prompt"]), "content"))
        for row in rows.rows(["uid", "prompt"])
    }


def benchmark_texts(files: RawManifest, root: Path) -> Iterator[str]:
    """Every text anywhere in the rows of the files."""
    for file in files.files:
        for row in read_rows(file.path, file.format, root):
            yield from _texts(row.value)


def near_duplicates(
    order: Sequence[str], texts: Mapping[str, str], threshold: float
) -> dict[str, tuple[str, float]]:
    """Prompts that resemble one that stays, each with that one's uid and how much of the two is the same.

    Prompts are compared by the five-word sequences in them (Jaccard similarity). Candidates are found with
    MinHash and locality-sensitive hashing (`datasketch`), which misses a few near the threshold; what is
    found is compared exactly.

    Args:
        order: uids; a prompt is compared with those before it that stay.
        texts: by uid.
        threshold: the similarity, up to 1, from which on two prompts are nearly the same.
    """
    from datasketch import MinHash, MinHashLSH

    # Hashing misses pairs at its own threshold, so it looks below the one that is asked for.
    index = MinHashLSH(threshold=_LOOK_BELOW * threshold, num_perm=_PERMUTATIONS)
    kept: dict[str, np.ndarray] = {}
    found: dict[str, tuple[str, float]] = {}
    for uid in order:
        words = _words(texts[uid])
        shingles = {" ".join(gram).encode() for gram in _grams(words, min(SHINGLE_WORDS, len(words)))}
        sketch = MinHash(num_perm=_PERMUTATIONS, seed=1)
        sketch.update_batch(sorted(shingles))
        hashed = np.unique(np.fromiter(map(_hash64, shingles), dtype=np.uint64, count=len(shingles)))
        likest = max(
            ((_jaccard(hashed, kept[other]), other) for other in index.query(sketch)), default=(0.0, "")
        )
        if likest[0] >= threshold:
            found[uid] = (likest[1], likest[0])
        else:
            index.insert(uid, sketch)
            kept[uid] = hashed
    return found


def contaminated(
    uids: Collection[str], texts: Mapping[str, str], benchmark: Iterable[str], n: int
) -> dict[str, str]:
    """Prompts that share a sequence of `n` words with the benchmark, each with that sequence.

    Case, punctuation and spacing do not count. A sequence that is in more than 1 % of the prompts, and in
    more than ten, is taken for an instruction and does not count either.

    Args:
        uids: the prompts to look at.
        texts: by uid.
        benchmark: texts that the prompts must not quote; those of fewer than `n` words cannot be found.
        n: words in a sequence.
    """
    grams = {uid: set(_grams(_words(texts[uid]), n)) for uid in uids}
    spread = Counter(gram for found in grams.values() for gram in found)
    most = max(_BOILERPLATE_PROMPTS, _BOILERPLATE_SHARE * len(uids))
    quoted = {
        gram for text in benchmark for gram in _grams(_words(text), n) if 0 < spread.get(gram, 0) <= most
    }
    shared = {uid: min(found & quoted, default=None) for uid, found in grams.items()}
    return {uid: " ".join(gram) for uid, gram in shared.items() if gram is not None}


def _texts(value: Any, key: str | None = None) -> Iterator[str]:
    """The texts in a JSON-like value in order; of a message (`key`), those of its content and its parts."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, key)
    elif isinstance(value, dict):
        wanted = value.values() if key is None else (value.get(key), value.get("text"))
        for item in wanted:
            yield from _texts(item, key)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _grams(words: Sequence[str], n: int) -> Iterator[tuple[str, ...]]:
    return zip(*(words[start:] for start in range(n)), strict=False)


def _hash64(shingle: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(shingle, digest_size=8).digest())


def _jaccard(one: np.ndarray, other: np.ndarray) -> float:
    shared = len(np.intersect1d(one, other, assume_unique=True))
    return shared / max(len(one) + len(other) - shared, 1)
