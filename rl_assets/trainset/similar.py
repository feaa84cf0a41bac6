"""Prompts that are nearly the same, and prompts that quote a benchmark."""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rl_assets.base.tables import Table
from rl_assets.contract.files.manifest import RawManifest
from rl_assets.contract.files.reading import read_rows
from rl_assets.contract.rules.options import ContractOptions
from rl_assets.media.files import MediaReader

Texts = Callable[[], Iterable[tuple[str, str]]]
"""Gives uid and text of every prompt, from the first on, each time it is called."""

SHINGLE_WORDS = 5
_PERMUTATIONS = 128
_LOOK_BELOW = 0.8
_BOILERPLATE_SHARE, _BOILERPLATE_PROMPTS = 0.01, 10
_WORD = re.compile(r"\w+")
_EMPTY = np.empty(0, dtype=np.uint64)


def prompt_texts(rows: Table) -> Iterator[tuple[str, str]]:
    """Uid and text of every prompt: that of its messages in order, media aside."""
    for row in rows.rows(["uid", "prompt"]):
        yield row["uid"], "\n".join(_texts(json.loads(row["prompt"]), "content"))


@dataclass(frozen=True)
class Benchmark:
    """What no train prompt may quote.

    Attributes:
        files: the benchmark's files.
        root: what their paths are relative to.
        options: say where its media are, and which are read.
    """

    files: RawManifest
    root: Path
    options: ContractOptions = field(default_factory=ContractOptions)

    def texts(self) -> Iterator[str]:
        """Every text anywhere in the rows."""
        for _, value in self._rows():
            yield from _texts(value)

    def media(self) -> set[str]:
        """Digests of every medium anywhere in the rows: bytes, data URIs, and paths of files."""
        return {
            digest
            for file, value in self._rows()
            for digest in _media(value, MediaReader.for_file(file, self.options, self.root))
        }

    def _rows(self) -> Iterator[tuple[str, Any]]:
        for file in self.files.files:
            for row in read_rows(file.path, file.format, self.root):
                yield file.path, row.value


def near_duplicates(
    texts: Iterable[tuple[str, str]], threshold: float, looks: Mapping[str, bytes] | None = None
) -> dict[str, tuple[str, float]]:
    """Prompts that resemble one that stays, each with that one's uid and how much of the two is the same.

    Prompts are compared by the five-word sequences in them (Jaccard similarity). Candidates are found with
    MinHash and locality-sensitive hashing (`datasketch`), which misses a few near the threshold; what is
    found is compared exactly. What is kept of a prompt takes about 6 kB of memory and 8 bytes a word.

    Args:
        texts: uid and text; a prompt is compared with those before it that stay.
        threshold: the similarity, up to 1, from which on two prompts are nearly the same.
        looks: by uid, what a policy is shown beside the text; prompts are compared with those of the same.
    """
    from datasketch import MinHash, MinHashLSH

    # Hashing misses pairs at its own threshold, so it looks below the one that is asked for.
    indices: defaultdict[bytes, Any] = defaultdict(
        partial(MinHashLSH, threshold=_LOOK_BELOW * threshold, num_perm=_PERMUTATIONS)
    )
    kept: dict[str, np.ndarray] = {}
    found: dict[str, tuple[str, float]] = {}
    for uid, text in texts:
        index = indices[looks[uid] if looks else b""]
        words = _words(text)
        shingles = {" ".join(gram).encode() for gram in _grams(words, min(SHINGLE_WORDS, len(words)))}
        sketch = MinHash(num_perm=_PERMUTATIONS, seed=1)
        sketch.update_batch(sorted(shingles))
        hashed = np.unique(np.fromiter(map(_hash64, shingles), dtype=np.uint64, count=len(shingles)))
        most_similar = max(
            ((_jaccard(hashed, kept[other]), other) for other in index.query(sketch)), default=(0.0, "")
        )
        if most_similar[0] >= threshold:
            found[uid] = (most_similar[1], most_similar[0])
        else:
            index.insert(uid, sketch)
            kept[uid] = hashed
    return found


def contaminated(texts: Texts, benchmark: Iterable[str], n: int) -> dict[str, str]:
    """Prompts that share a sequence of `n` words with the benchmark, each with that sequence.

    Case, punctuation and spacing do not count. A sequence that is in more than 1 % of the prompts, and in
    more than ten, is taken for an instruction and does not count either.

    Sequences are told apart by 64 bits of a digest. Memory holds eight bytes for each of the benchmark's, and
    for each of a prompt's that is the benchmark's too.

    Args:
        texts: the prompts to look at, uid and text; read twice.
        benchmark: texts that the prompts must not quote; those of fewer than `n` words cannot be found.
        n: words in a sequence.
    """
    there = np.unique(np.concatenate([_EMPTY, *(_hashed(_sequences(text, n)) for text in benchmark)]))
    shared: dict[str, np.ndarray] = {}
    prompts = 0
    for uid, text in texts():
        prompts += 1
        found = _among(_hashed(set(_sequences(text, n))), there)
        if len(found):
            shared[uid] = found
    every, spread = np.unique(np.concatenate([_EMPTY, *shared.values()]), return_counts=True)
    quoted = every[spread <= max(_BOILERPLATE_PROMPTS, _BOILERPLATE_SHARE * prompts)]
    hits = {uid: set(found) for uid, all_ in shared.items() if len(found := _among(all_, quoted))}
    return {
        uid: min(sequence for sequence in _sequences(text, n) if _hash64(sequence.encode()) in hits[uid])
        for uid, text in texts()
        if uid in hits
    }


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


def _media(value: Any, reader: MediaReader) -> Iterator[str]:
    """Digests of the media in a JSON-like value."""
    if isinstance(value, list | dict):
        for item in value if isinstance(value, list) else value.values():
            yield from _media(item, reader)
    # As a clip, which is not decoded: whether it can be is not the question.
    elif isinstance(value, bytes | str) and (digest := reader.look(value, "audio").digest):
        yield digest


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _grams(words: Sequence[str], n: int) -> Iterator[tuple[str, ...]]:
    return zip(*(words[start:] for start in range(n)), strict=False)


def _sequences(text: str, n: int) -> Iterator[str]:
    return map(" ".join, _grams(_words(text), n))


def _hashed(sequences: Iterable[str]) -> np.ndarray:
    """64 bits of a digest of each sequence, as uint64."""
    return np.fromiter((_hash64(sequence.encode()) for sequence in sequences), dtype=np.uint64)


def _among(hashes: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Those of `hashes` that are in `known`, which is sorted."""
    places = np.searchsorted(known, hashes)
    return hashes[np.append(known, known[-1:])[places] == hashes] if len(known) else known


def _hash64(shingle: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(shingle, digest_size=8).digest())


def _jaccard(one: np.ndarray, other: np.ndarray) -> float:
    shared = len(np.intersect1d(one, other, assume_unique=True))
    return shared / max(len(one) + len(other) - shared, 1)
