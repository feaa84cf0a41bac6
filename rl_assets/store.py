"""Files that appear whole or not at all: digests, staging, publishing, and streamed Parquet tables.

Everything the project writes goes through here. Work is written to a staging folder first and moved
into place in one step, so that a reader sees the old file or the new one, never half of either.
"""

import contextlib
import errno
import fcntl
import hashlib
import itertools
import json
import os
import platform
import shutil
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel
from upath import UPath

from rl_assets import formats
from rl_assets.credentials import REMEDY, carries_credentials
from rl_assets.errors import InputError, first_line

Model = TypeVar("Model", bound=BaseModel)

DIGEST_BYTES = 16
GROUP_BYTES = 64 << 20
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


def utf8_json(value: Any) -> str:
    """Like `to_json`; text with unpaired surrogates, which UTF-8 cannot hold, is written in ASCII escapes."""
    text = to_json(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"))
    return text


def canonical_json(value: Any) -> str:
    """Like `to_json` with the keys sorted: equal values give equal text, so it can be digested."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def storage_root(project: Path) -> UPath:
    """Where assets are kept: `RL_ASSETS_STORAGE` (a folder or any fsspec URL), else `data/storage`.

    Args:
        project: the project's top folder, against which a relative folder is read.

    Raises:
        InputError: the URL has credentials in it.
    """
    address = os.environ.get("RL_ASSETS_STORAGE") or "data/storage"
    if carries_credentials(address):
        raise InputError(
            field="RL_ASSETS_STORAGE",
            found="an address with credentials in it, and it is shown",
            remedy=REMEDY,
        )
    place = UPath(address)
    return UPath(project / str(place)) if is_local(place) else place


def is_local(path: Path | UPath) -> bool:
    """Whether `path` lies on a local disk, where a rename is atomic."""
    return not isinstance(path, UPath) or path.protocol in ("", "file", "local")


@contextlib.contextmanager
def staging(root: Path | UPath) -> Iterator[Path]:
    """A fresh local folder for unfinished work, removed at the end whatever happens.

    It lies on the disk of `root` where that is local, so that publishing is a rename, not a copy. What a
    killed process of this machine left there is removed.
    """
    with contextlib.ExitStack() as held:
        if is_local(root):
            parent = Path(str(root)) / ".staging"
            parent.mkdir(parents=True, exist_ok=True)
            folder = _own_folder(parent, held)
        else:
            folder = Path(tempfile.mkdtemp(prefix="rl-assets-"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _own_folder(parent: Path, held: contextlib.ExitStack) -> Path:
    """A fresh folder in `parent` that is locked until `held` is closed or the process dies.

    The machine is in the name, because a lock may not be seen from another one.
    """
    prefix = digest_bytes(platform.node().encode())[:8] + "-"
    with contextlib.ExitStack() as alone:
        lockable = _lock(parent, alone, wait=True)
        for other in parent.glob(f"{prefix}*") if lockable else ():
            with contextlib.ExitStack() as abandoned:
                if _lock(other, abandoned, wait=False):
                    shutil.rmtree(other, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        _lock(folder, held, wait=False)
    return folder


def _lock(folder: Path, held: contextlib.ExitStack, *, wait: bool) -> bool:
    """Whether the folder could be locked; it is until `held` is closed."""
    try:
        handle = os.open(folder, os.O_RDONLY)
        held.callback(os.close, handle)
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:  # held by a living process, or a file system without locks
        return False
    return True


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
    name = f".{target.name}.{uuid.uuid4().hex}.tmp"
    beside = staged.parent / name
    try:
        try:
            os.link(staged, beside)
            _replace(beside, target)
        except OSError:  # another disk, or a file system without links
            beside.unlink(missing_ok=True)
            beside = Path(str(target.parent)) / name
            _clear(beside.parent, f".{target.name}.*.tmp")
            with named_errors(beside):
                shutil.copyfile(staged, beside)
                _replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)


def _clear(folder: Path, pattern: str) -> None:
    """Remove what a process that was killed left half-written, an hour ago or earlier."""
    for path in folder.glob(pattern):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < time.time() - 3600:
                path.unlink()


def _replace(source: Path, target: Path | UPath) -> None:
    with source.open("rb") as written:
        os.fsync(written.fileno())
    os.replace(source, str(target))


@contextlib.contextmanager
def named_errors(path: Path | UPath) -> Iterator[None]:
    """Let an error of the disk say which file it is about: one that comes while writing does not."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise OSError(error.errno or errno.EIO, first_line(error), str(path)) from error
        raise


def write_file(target: Path | UPath, data: bytes) -> None:
    """Write `data` to `target` in one step, replacing what was there."""
    with tempfile.TemporaryDirectory(prefix="rl-assets-") as folder, named_errors(target):
        staged = Path(folder) / "data"
        staged.write_bytes(data)
        publish_file(staged, target)


def write_manifest(target: Path | UPath, manifest: BaseModel) -> None:
    """Write a manifest as JSON, with the version of the layout, in one step."""
    content = {formats.KEY: formats.MANIFEST, **json.loads(manifest.model_dump_json())}
    write_file(target, json.dumps(content, ensure_ascii=False, indent=2).encode())


def read_manifest(kind: type[Model], path: Path | UPath) -> Model:
    """The manifest of a kind that `write_manifest` wrote.

    Raises:
        UnreadableError: it is no such manifest.
        InputError: a newer release wrote it.
        FileNotFoundError: there is none.
    """
    text = path.read_bytes()
    try:
        formats.refuse_newer(str(path), formats.version(json.loads(text)), formats.MANIFEST)
        return kind.model_validate_json(text)
    except InputError:
        raise
    except (ValueError, TypeError, AttributeError) as error:
        raise formats.UnreadableError(
            file=str(path),
            found=f"no manifest that this release reads ({first_line(error)})",
            expected=f"a {kind.__name__} of version {formats.MANIFEST}",
            remedy="Materialise the asset again: it is damaged, or an early release wrote it.",
        ) from error


def last_manifest(kind: type[Model], path: Path | UPath) -> Model | None:
    """The manifest of the last build; None where there is none, or none that this release reads.

    Raises:
        InputError: a newer release wrote it.
    """
    try:
        return read_manifest(kind, path)
    except (FileNotFoundError, formats.UnreadableError):
        return None


def write_record(target: Path | UPath, record: BaseModel) -> None:
    """Write what only saves work, as JSON with the version of the layout, in one step."""
    content = {formats.KEY: formats.RECORD, **json.loads(record.model_dump_json())}
    write_file(target, to_json(content).encode())


def read_record(kind: type[Model], path: Path | UPath) -> Model | None:
    """What `write_record` wrote; None where there is nothing, or nothing that this release reads."""
    try:
        text = path.read_bytes()
        readable = formats.version(json.loads(text)) == formats.RECORD
        return kind.model_validate_json(text) if readable else None
    except (FileNotFoundError, ValueError, TypeError, AttributeError):
        return None


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
            formats.check_table(str(self.path), file.metadata.metadata)
            yield file

    @property
    def num_rows(self) -> int:
        """How many rows the file holds (its footer says so; no row is read)."""
        with self._open() as file:
            return file.metadata.num_rows

    @property
    def num_bytes(self) -> int:
        """Bytes of the values as they are encoded, before they are compressed (from the footer)."""
        with self._open() as file:
            groups = range(file.num_row_groups)
            return sum(file.metadata.row_group(group).total_byte_size for group in groups)

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
        """Record batches of up to `size` rows of one row group; only `columns`, where named, are read."""
        named = None if columns is None else list(columns)
        with self._open() as file:
            for group in range(file.num_row_groups):
                yield from file.iter_batches(batch_size=size, row_groups=[group], columns=named)

    def rows(self, columns: Sequence[str] | None = None, size: int = 1024) -> Iterator[dict[str, Any]]:
        """One plain dict per row, read `size` rows at a time."""
        for batch in self.batches(columns, size):
            yield from batch.to_pylist()

    def counts(self, column: str) -> Counter[str]:
        """How often each value of a column of text occurs."""
        counts: Counter[str] = Counter()
        for batch in self.batches([column]):
            counts.update(batch.column(0).to_pylist())
        return counts

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The whole file (or the named columns) in memory."""
        with self._open() as file:
            return file.read(columns=None if columns is None else list(columns))

    def head(self, rows: int, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """The first `rows` rows as plain dicts."""
        return list(itertools.islice(self.rows(columns, size=rows), rows))


class TableWriter:
    """Writes a Parquet file under one explicit schema, in row groups of equal size.

    Rows are gathered into groups of `group_rows` whatever the size of the pieces they come in, so the
    same rows give the same bytes; only rows of more than `GROUP_BYTES` together make a smaller group, that
    nobody need hold more than that. Use it as a context manager; after it, `table` is the finished file.
    """

    def __init__(self, path: Path, schema: pa.Schema, group_rows: int = 8192) -> None:
        self.table = Table(path)
        self.num_rows = 0
        self._schema = schema
        self._group_rows = group_rows
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._pending_bytes = 0
        version = {formats.TABLE_KEY: str(formats.TABLE).encode()}
        stamped = schema.with_metadata({**(schema.metadata or {}), **version})
        # Ids and texts hardly repeat within a page: looking for what repeats costs a third of the writing.
        repeating = [field.name for field in schema if field.name not in ("prompt", "prompt_ids", "uid")]
        self._writer = pq.ParquetWriter(path, stamped, compression="zstd", use_dictionary=repeating)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._flush(everything=True)
        finally:
            with named_errors(self.table.path), contextlib.suppress(*([OSError] if kind else [])):
                self._writer.close()

    def write_rows(self, rows: Iterable[dict[str, Any]]) -> None:
        """Append plain dicts; a key that the schema lacks is an error, a missing one is null."""
        rows = iter(rows)
        while some := list(itertools.islice(rows, self._group_rows)):
            unknown = set().union(*some) - set(self._schema.names)
            if unknown:
                raise KeyError(f"columns {sorted(unknown)} are not in the schema {self._schema.names}")
            self.write_batch(pa.RecordBatch.from_pylist(some, schema=self._schema))

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Append a record batch whose columns are those of the schema."""
        batch = batch.select(self._schema.names)
        self._pending.append(batch if batch.schema.equals(self._schema) else batch.cast(self._schema))
        self._pending_rows += batch.num_rows
        self._pending_bytes += batch.nbytes
        self.num_rows += batch.num_rows
        self._flush(everything=self._pending_bytes >= GROUP_BYTES)

    def _flush(self, *, everything: bool) -> None:
        least = 1 if everything else self._group_rows
        if self._pending_rows < least:
            return
        pending = pa.Table.from_batches(self._pending, schema=self._schema)
        whole = pending.num_rows if everything else pending.num_rows // self._group_rows * self._group_rows
        with named_errors(self.table.path):
            self._writer.write_table(pending.slice(0, whole), row_group_size=self._group_rows)
        self._pending = pending.slice(whole).to_batches()
        self._pending_rows = pending.num_rows - whole
        self._pending_bytes = sum(batch.nbytes for batch in self._pending)
