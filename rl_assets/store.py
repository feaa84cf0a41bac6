"""Files that appear whole or not at all: digests, staging, publishing, and streamed Parquet tables.

Everything the project writes goes through here. Work is written to a staging folder first and moved
into place in one step, so that a reader sees the old file or the new one, never half of either.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

import pyarrow as pa
import pyarrow.parquet as pq
from upath import UPath

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


def to_json(value: Any) -> str:
    """`value` as compact JSON text that decodes to an equal value, in the order of its keys.

    Raises:
        TypeError: the value holds something that JSON cannot say (bytes, dates, sets).
        ValueError: the value refers to itself.
    """
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def canonical_json(value: Any) -> str:
    """Like `to_json` with the keys sorted: equal values give equal text, so it can be digested."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def storage_root(project: Path) -> UPath:
    """Where assets are kept: `RL_ASSETS_STORAGE` (a folder or any fsspec URL), else `data/storage`.

    Args:
        project: the project's top folder, against which a relative folder is read.
    """
    place = UPath(os.environ.get("RL_ASSETS_STORAGE") or "data/storage")
    return UPath(project / str(place)) if is_local(place) else place


def is_local(path: Path | UPath) -> bool:
    """Whether `path` lies on a local disk, where a rename is atomic."""
    return not isinstance(path, UPath) or path.protocol in ("", "file", "local")


@contextlib.contextmanager
def staging(root: Path | UPath) -> Iterator[Path]:
    """A fresh local folder for unfinished work, removed at the end whatever happens.

    It lies on the disk of `root` where that is local, so that publishing is a rename, not a copy.
    """
    if is_local(root):
        parent = Path(str(root)) / ".staging"
        parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=parent))
    else:
        folder = Path(tempfile.mkdtemp(prefix="rl-assets-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish_file(staged: Path, target: Path | UPath) -> None:
    """Put a finished local file at `target` in one step, replacing what was there.

    On a local disk this is a link (a copy, where the disks differ) beside the target and a rename. An
    object store makes an upload visible only when it is complete, so there the upload itself is the step.
    The staged file stays readable until its staging folder goes.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if not is_local(target):
        with staged.open("rb") as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, _READ_SIZE)
        return
    beside = Path(str(target.parent)) / f".{target.name}.{uuid.uuid4().hex}.tmp"
    try:
        try:
            os.link(staged, beside)
        except OSError:  # another disk, or a file system without links
            shutil.copyfile(staged, beside)
        with beside.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(beside, str(target))
    finally:
        beside.unlink(missing_ok=True)


def write_file(target: Path | UPath, data: bytes) -> None:
    """Write `data` to `target` in one step, replacing what was there."""
    with tempfile.TemporaryDirectory(prefix="rl-assets-") as folder:
        staged = Path(folder) / "data"
        staged.write_bytes(data)
        publish_file(staged, target)


@dataclass(frozen=True)
class Table:
    """A Parquet file and how to read it: whole, or a batch at a time.

    Attributes:
        path: where the file lies; in a staging folder until it is published.
    """

    path: Path | UPath

    @contextlib.contextmanager
    def _open(self) -> Iterator[pq.ParquetFile]:
        with self.path.open("rb") as stream, pq.ParquetFile(stream) as file:
            yield file

    @property
    def num_rows(self) -> int:
        """How many rows the file holds (its footer says so; no row is read)."""
        with self._open() as file:
            return file.metadata.num_rows

    @property
    def schema(self) -> pa.Schema:
        """The file's Arrow schema."""
        with self._open() as file:
            return file.schema_arrow

    @property
    def digest(self) -> str:
        """Digest of the file's bytes: equal rows in equal order give an equal digest."""
        return digest_file(self.path)

    def batches(self, columns: Sequence[str] | None = None, size: int = 1024) -> Iterator[pa.RecordBatch]:
        """Record batches of up to `size` rows; only `columns`, where named, are read."""
        with self._open() as file:
            yield from file.iter_batches(batch_size=size, columns=None if columns is None else list(columns))

    def rows(self, columns: Sequence[str] | None = None, size: int = 1024) -> Iterator[dict[str, Any]]:
        """One plain dict per row, read `size` rows at a time."""
        for batch in self.batches(columns, size):
            yield from batch.to_pylist()

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The whole file (or the named columns) in memory."""
        with self._open() as file:
            return file.read(columns=None if columns is None else list(columns))

    def head(self, rows: int, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """The first `rows` rows as plain dicts."""
        for batch in self.batches(columns, size=rows):
            return batch.to_pylist()
        return []


class TableWriter:
    """Writes a Parquet file under one explicit schema, in row groups of equal size.

    Rows are gathered into groups of `group_rows` whatever the size of the pieces they come in, so the
    same rows give the same bytes. Use it as a context manager; after it, `table` is the finished file.
    """

    def __init__(self, path: Path, schema: pa.Schema, group_rows: int = 8192) -> None:
        self.table = Table(path)
        self.num_rows = 0
        self._schema = schema
        self._group_rows = group_rows
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._writer = pq.ParquetWriter(path, schema, compression="zstd")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._flush(everything=True)
        self._writer.close()

    def write_rows(self, rows: Iterable[dict[str, Any]]) -> None:
        """Append plain dicts; a key that the schema lacks is an error, a missing one is null."""
        rows = list(rows)
        if rows:
            unknown = set().union(*rows) - set(self._schema.names)
            if unknown:
                raise KeyError(f"columns {sorted(unknown)} are not in the schema {self._schema.names}")
            self.write_batch(pa.RecordBatch.from_pylist(rows, schema=self._schema))

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Append a record batch whose columns are those of the schema."""
        self._pending.append(batch.select(self._schema.names).cast(self._schema))
        self._pending_rows += batch.num_rows
        self.num_rows += batch.num_rows
        self._flush(everything=False)

    def _flush(self, *, everything: bool) -> None:
        least = 1 if everything else self._group_rows
        if self._pending_rows < least:
            return
        pending = pa.Table.from_batches(self._pending, schema=self._schema)
        whole = pending.num_rows if everything else pending.num_rows // self._group_rows * self._group_rows
        self._writer.write_table(pending.slice(0, whole), row_group_size=self._group_rows)
        self._pending = pending.slice(whole).to_batches()
        self._pending_rows = pending.num_rows - whole
