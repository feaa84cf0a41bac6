"""Raw files: what is known of each, what its format is, and how to open it."""

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal, get_args

from pydantic import BaseModel, ConfigDict
from upath import UPath

from rl_assets.base.digests import digest_json
from rl_assets.base.files import is_url

Split = Literal["train", "val"]
SPLITS: tuple[Split, ...] = get_args(Split)
Format = Literal["parquet", "json", "jsonl"]

_FORMATS: dict[str, Format] = {
    ".parquet": "parquet",
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
_VALIDATION = re.compile(r"(?:^|[^a-z])(?:test|val|valid|validation|eval|dev)(?:[^a-z]|$)")
PARQUET = b"PAR1"
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_CODECS = {".snappy", ".brotli", ".br", ".lz4", ".lzo", ".uncompressed"}
_COMPRESSIONS = {".gz": "gzip", ".gzip": "gzip", ".zst": "zstd", ".zstd": "zstd"}


_IRREGULAR = "it is no regular file, but a folder, a pipe, a device or a socket"


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
    """The raw files of one dataset: those of the training split first, each split in order of paths.

    Attributes:
        files: the files.
        passed_over: what else is in the folders that were named, in words.
        named_for_validation: the training files of folders and globs that are for validation by their names.
    """

    model_config = ConfigDict(frozen=True)

    files: list[RawFile]
    passed_over: list[str] = []
    named_for_validation: list[str] = []

    @property
    def notes(self) -> list[str]:
        """What a person should look at: files that are not read, and those that may be of the other split."""
        notes = []
        if self.passed_over:
            notes.append(f"not read, since they are no raw files: {', '.join(self.passed_over)}")
        if self.named_for_validation:
            notes.append(
                "read for training, though by their names they are for validation or test: "
                f"{', '.join(self.named_for_validation)}; data.val_files is the place for such files, and a "
                "glob such as data/x/train* for the others"
            )
        return notes

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


def named_for_validation(path: str) -> bool:
    """Whether a file is for validation or test by its name, such as `test-00000-of-00001.parquet`."""
    return _VALIDATION.search(path.rpartition("/")[2].lower()) is not None


def locate(path: str, root: Path) -> Path | UPath:
    """The file that a manifest's `path` means."""
    return UPath(path) if is_url(path) else root / path


def compression_of(path: str, stream: BinaryIO) -> str | None:
    """`gzip`, `zstd` or None, by the first bytes of the file, whatever its suffix: `a.parquet.gzip` may be a
    parquet file whose pages are compressed.

    Raises:
        OSError: the suffix names a compression, and the bytes are neither that nor a raw file's.
    """
    head = stream.read(4)
    stream.seek(0)
    for magic, compression in _MAGIC.items():
        if head.startswith(magic):
            return compression
    named = _COMPRESSIONS.get(PurePosixPath(path.lower()).suffix)
    if named and head != PARQUET and head.lstrip()[:1] not in (b"", b"{", b"["):
        raise OSError(f"its name says {named}, and its bytes do not")
    return None


def format_of(path: str) -> Format | None:
    """The format by the file's suffix, whatever its case, below the suffix of a compression or codec."""
    name = PurePosixPath(path.lower())
    kind = _FORMATS.get(name.suffix)
    if kind is not None:
        return kind
    kind = _FORMATS.get(name.with_suffix("").suffix) if name.suffix else None
    return kind if name.suffix in _COMPRESSIONS or (kind == "parquet" and name.suffix in _CODECS) else None


def begins_as_parquet(path: Path) -> bool:
    """Whether a local file is a regular one that begins as parquet files do. Others are not opened."""
    try:
        with open_regular(path) as stream:
            return stream.read(len(PARQUET)) == PARQUET
    except OSError:
        return False


def open_raw(path: str, root: Path) -> BinaryIO:
    """The file's bytes as they lie on disk (still compressed).

    Raises:
        OSError: there is no such file, or it is a pipe, a device or a socket, which might never end.
    """
    file = locate(path, root)
    return open_regular(file) if isinstance(file, Path) and not is_url(path) else file.open("rb")


def open_regular(path: Path) -> BinaryIO:
    """A local file's bytes; a pipe or a device is not waited for, even if it takes the file's place just now.

    Raises:
        OSError: there is no such file, or it is no regular one.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(_IRREGULAR)
    stream = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise OSError(_IRREGULAR)
    return stream
