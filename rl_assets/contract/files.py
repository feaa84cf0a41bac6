"""Raw files: what is known of each, what its format is, and how to open it."""

import stat
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal, get_args

from pydantic import BaseModel, ConfigDict
from upath import UPath

from rl_assets.store import digest_json

Split = Literal["train", "val"]
SPLITS: tuple[Split, ...] = get_args(Split)
Format = Literal["parquet", "json", "jsonl"]

_FORMATS: dict[str, Format] = {
    ".parquet": "parquet",
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
_COMPRESSIONS = {".gz": "gzip", ".gzip": "gzip", ".zst": "zstd", ".zstd": "zstd"}


class RawFile(BaseModel):
    """One raw file as it was when it was scanned.

    Attributes:
        path: relative to the root where the file lies inside it, else absolute, or a URL.
        split: `train` or `val`.
        format: `parquet`, `json` or `jsonl`.
        bytes: size on disk.
        digest: BLAKE2b of the bytes, 32 hex digits.
        rows: how many rows the reader will give, unreadable ones included.
    """

    model_config = ConfigDict(frozen=True)

    path: str
    split: Split
    format: Format
    bytes: int
    digest: str
    rows: int


class RawManifest(BaseModel):
    """The raw files of one dataset: those of the training split first, each split in order of paths."""

    model_config = ConfigDict(frozen=True)

    files: list[RawFile]

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(file.rows for file in self.files)

    @property
    def digest(self) -> str:
        """Digest over paths, splits and file digests: it changes when any byte of any file does."""
        return content_digest((file.path, file.split, file.digest) for file in self.files)


def content_digest(files: Iterable[tuple[str, Split, str]]) -> str:
    """Digest of raw files, each as path, split and digest of its bytes, in the order of a manifest."""
    return digest_json([list(file) for file in files])


def is_url(path: str) -> bool:
    """Whether `path` names a file of an fsspec file system and not of the local disk."""
    return "://" in path


def locate(path: str, root: Path) -> Path | UPath:
    """The file that a manifest's `path` means."""
    return UPath(path) if is_url(path) else root / path


def compression_of(path: str) -> str | None:
    """`gzip`, `zstd` or None, by the file's suffix."""
    return _COMPRESSIONS.get(PurePosixPath(path.lower()).suffix)


def format_of(path: str) -> Format | None:
    """The format by the file's suffix, whatever its case, below a compression's suffix."""
    name = PurePosixPath(path.lower())
    if name.suffix in _COMPRESSIONS:
        name = name.with_suffix("")
    return _FORMATS.get(name.suffix)


def open_raw(path: str, root: Path) -> BinaryIO:
    """The file's bytes as they lie on disk (still compressed).

    Raises:
        OSError: there is no such file, or it is a pipe, a device or a socket, which might never end.
    """
    file = locate(path, root)
    if not is_url(path) and not stat.S_ISREG(file.stat().st_mode):
        raise OSError("it is no regular file")
    return file.open("rb")
