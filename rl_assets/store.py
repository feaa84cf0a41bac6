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
import logging
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
DAMAGED = ".damaged"
"""Ending of the name under which something that cannot be read is put aside."""
_READ_SIZE = 1 << 20
_WEEK = 7 * 24 * 3600.0
# What reading JSON into a model raises for any content at all; a folder may be where a file should be.
_UNREADABLE = (ValueError, TypeError, AttributeError, KeyError, RecursionError, IsADirectoryError)
_log = logging.getLogger(__name__)


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
            make_folder(parent)
            folder = _own_folder(parent, held)
        else:
            folder = Path(tempfile.mkdtemp(prefix="rl-assets-"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _own_folder(parent: Path, held: contextlib.ExitStack) -> Path:
    """A fresh folder in `parent` that is locked until `held` is closed or the process dies."""
    with contextlib.ExitStack() as alone:
        with contextlib.suppress(OSError):  # a file system without locks
            _lock(parent, alone, wait=True)
        for other in parent.glob(f"{_machine()}*"):
            if is_abandoned(other):
                shutil.rmtree(other, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=_machine(), dir=parent))
        with contextlib.suppress(OSError):
            _lock(folder, held, wait=False)
    return folder


def _machine() -> str:
    """What the names of this machine's staging folders begin with: its locks may not be seen from another."""
    return digest_bytes(platform.node().encode())[:8] + "-"


def is_abandoned(folder: Path) -> bool:
    """Whether the process that made a staging folder is gone.

    On this machine its lock says so. Of another machine's folder, or where the file system has no locks,
    nothing is known: it counts as abandoned once nothing in it was written for a week.
    """
    locked = is_locked(folder) if folder.name.startswith(_machine()) else None
    if locked is not None:
        return not locked
    times = [path.lstat().st_mtime for path in (folder, *folder.rglob("*"))]
    return max(times) < time.time() - _WEEK


def is_locked(path: Path) -> bool | None:
    """Whether a living process of this machine has locked a file or folder; None where locks say nothing."""
    with contextlib.ExitStack() as tried:
        try:
            return not _lock(path, tried, wait=False)
        except OSError:  # gone meanwhile, or a file system without locks
            return None


def _lock(path: Path, held: contextlib.ExitStack, *, wait: bool) -> bool:
    """Whether the file or folder could be locked; it is until `held` is closed.

    Raises:
        OSError: it is not there, or the file system has no locks.
    """
    handle = os.open(path, os.O_RDONLY)
    held.callback(os.close, handle)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def make_folder(path: Path | UPath) -> None:
    """Make a folder of the store, and those above it; a file that is in its place is put aside."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        in_the_way = next((place for place in (path, *path.parents) if place.is_file()), None)
        if in_the_way is None:
            raise
        put_aside(in_the_way, error)
        path.mkdir(parents=True, exist_ok=True)


def put_aside(path: Path | UPath, why: BaseException | str) -> UPath | None:
    """Rename what is damaged to its name and `.damaged`, so that the next run makes it again.

    What was put aside under that name before is replaced. The log names both.

    Returns:
        Where it is now; None where it could not be renamed (a store that may not be written), or was gone.
    """
    path = UPath(path)
    aside = path.parent / f"{path.name}{DAMAGED}"
    reason = first_line(why) if isinstance(why, BaseException) else why
    try:
        if aside.exists():
            aside.fs.rm(aside.path, recursive=True)
        if is_local(path):
            os.rename(str(path), str(aside))
        else:
            path.fs.mv(path.path, aside.path, recursive=True)
    except OSError as error:
        _log.warning("%s is damaged (%s), and cannot be renamed (%s)", path, reason, first_line(error))
        return None
    _log.warning("%s is damaged (%s): it was renamed to %s and is made again", path, reason, aside.name)
    return aside


@contextlib.contextmanager
def damage_put_aside() -> Iterator[None]:
    """Put aside what turns out to be damaged, and say so in the error: the next run makes it again.

    Raises:
        UnreadableError: something was.
    """
    try:
        yield
    except formats.UnreadableError as error:
        aside = put_aside(UPath(error.file), error.found) if error.file else None
        if aside is None:
            raise
        raise formats.UnreadableError(
            file=error.file,
            field=error.field,
            found=error.found,
            expected=error.expected,
            remedy=f"It was renamed to {aside.name}. Run the job again: what is missing is made again.",
        ) from error


def publish_file(staged: Path, target: Path | UPath) -> None:
    """Put a finished local file at `target` in one step, replacing what was there.

    On a local disk this is a link (a copy, where the disks differ) beside the target and a rename. An
    object store makes an upload visible only when it is complete, so there the upload itself is the step.
    The staged file stays readable until its staging folder goes.
    """
    make_folder(target.parent)
    if target.is_dir():
        put_aside(target, "a folder in the place of a file")
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
    try:
        text = path.read_bytes()
        formats.refuse_newer(str(path), formats.version(json.loads(text)), formats.MANIFEST)
        return kind.model_validate_json(text)
    except InputError:
        raise
    except _UNREADABLE as error:
        raise formats.UnreadableError(
            file=str(path),
            found=f"no manifest that this release reads ({first_line(error)})",
            expected=f"a {kind.__name__} of version {formats.MANIFEST}",
            remedy="Materialise the asset again: it is damaged, or an early release wrote it.",
        ) from error


def require_stored(path: UPath, asset: str) -> UPath:
    """`path`, where the asset `asset` is stored.

    Raises:
        InputError: nothing is there.
    """
    if not path.exists():
        raise InputError(
            file=str(path),
            found="nothing",
            expected=f"the asset {asset}",
            remedy="Materialise it first (Materialize all does it in order).",
        )
    return path


def last_manifest(kind: type[Model], path: Path | UPath) -> Model | None:
    """The manifest of the last build; None where there is none. One that cannot be read is put aside.

    Raises:
        InputError: a newer release wrote it.
    """
    try:
        return read_manifest(kind, path)
    except FileNotFoundError:
        return None
    except formats.UnreadableError as error:
        put_aside(path, error.found)
        return None


def write_record(target: Path | UPath, record: BaseModel) -> None:
    """Write what only saves work, as JSON with the version of the layout, in one step."""
    content = {formats.KEY: formats.RECORD, **json.loads(record.model_dump_json())}
    write_file(target, to_json(content).encode())


def read_record(kind: type[Model], path: Path | UPath) -> Model | None:
    """What `write_record` wrote; None where there is nothing, or nothing that this release reads.

    A damaged one is named in the log and written anew by whoever made it.
    """
    try:
        text = path.read_bytes()
        readable = formats.version(json.loads(text)) == formats.RECORD
        return kind.model_validate_json(text) if readable else None
    except FileNotFoundError:
        return None
    except _UNREADABLE as error:
        _log.warning("%s cannot be read (%s): it is made again", path, first_line(error))
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
        """The file, open; what Arrow says of damaged bytes names it.

        Raises:
            UnreadableError: it is damaged, or no table.
            FileNotFoundError: there is none.
        """
        try:
            with self.path.open("rb") as stream, pq.ParquetFile(stream) as file:
                formats.check_table(str(self.path), file.metadata.metadata)
                yield file
        except InputError:
            raise
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None and not self.path.is_dir():
                raise  # of the disk or the network
            raise formats.UnreadableError(
                file=str(self.path),
                found=f"a table that cannot be read ({first_line(error)})",
                expected="the table that was written there",
                remedy=f"Materialise {self.path.stem} again.",
            ) from error

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
