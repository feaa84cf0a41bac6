"""Digests of bytes, files and JSON values: BLAKE2b, 32 hex digits."""

import hashlib
from pathlib import Path
from typing import Any, BinaryIO

from upath import UPath

from rl_assets.base.jsontext import canonical_json

DIGEST_BYTES = 16
_READ_SIZE = 1 << 20


def digest_bytes(data: bytes | memoryview) -> str:
    """BLAKE2b of `data` as 32 hex digits."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def digest_stream(stream: BinaryIO) -> str:
    """BLAKE2b of all that is left in `stream`, read in pieces, as 32 hex digits."""
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
    while piece := stream.read(_READ_SIZE):
        state.update(piece)
    return state.hexdigest()


def digest_file(path: Path | UPath) -> str:
    """BLAKE2b of a file's bytes as 32 hex digits."""
    with path.open("rb") as stream:
        return digest_stream(stream)


def digest_json(value: Any) -> str:
    """Digest of a JSON-like value; the order of keys does not count."""
    return digest_bytes(canonical_json(value).encode())
