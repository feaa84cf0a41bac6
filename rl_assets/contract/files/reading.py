"""Rows of a raw file, one at a time and exactly as written; what cannot be read is a row with a finding."""

import io
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from rl_assets.base.jsontext import MAX_ROW_VALUES, decode, describe, dump_anything, quote, repeated_key
from rl_assets.contract.files.arrow_rows import batch_rows, holds_objects, repeated_name
from rl_assets.contract.files.json_stream import JsonStream, MalformedJson, pandas_orient
from rl_assets.contract.files.manifest import Format, compression_of, open_raw
from rl_assets.contract.rules.code import Finding
from rl_assets.errors import InputError, first_line

MAX_ROW_BYTES = 128 << 20
_MAX_EXPANSION = 256
_FREE_EXPANSION = 64 << 20
_BATCH_VALUES = 1 << 20
_BATCH_BYTES = 32 << 20
_MOST_BATCH_BYTES = 256 << 20
_MAX_ROWS_PER_BYTE = 64
_FREE_ROWS = 1 << 20
_MAX_BATCH_ROWS = 1024
_MARKS = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
_BOM = b"\xef\xbb\xbf"


@dataclass(slots=True)
class RawRow:
    """One row as it stands in its file.

    Attributes:
        position: counted from 0; blank lines of a jsonl file do not count.
        value: the row's columns, or None where there is no such thing.
        findings: why there is none; empty for a readable row.
        raw: the row's own bytes, where it was read from JSON text.
        filled: columns of objects in a columnar file, where an absent key and a null look alike.
    """

    position: int
    value: dict[str, Any] | None
    findings: tuple[Finding, ...] = ()
    raw: bytes | None = None
    filled: frozenset[str] = frozenset()

    def text(self) -> str:
        """The row as text, for the table of rejected rows."""
        if self.raw is None:
            return dump_anything(self.value)
        try:
            return self.raw.strip().decode()
        except UnicodeDecodeError:
            return dump_anything(self.raw)


def read_rows(path: str, kind: Format, root: Path) -> Iterator[RawRow]:
    """The rows of one file in order. Memory does not grow with the file, except for a json file that
    is one object around its records."""
    if kind == "parquet":
        with _seekable(path, root) as stream:
            yield from _parquet_rows(stream)
    elif (encoding := _other_encoding(path, root)) is not None:
        message = f"found a file in {encoding}, expected UTF-8"
        yield RawRow(0, None, (Finding("text.not_utf8", None, message),))
    elif _holds_lines(path, kind, root):
        yield from _line_rows(path, root)
    else:
        yield from _json_rows(path, root)


def count_rows(path: str, kind: Format, root: Path) -> int:
    """How many rows `read_rows` will give.

    Raises:
        OSError, pyarrow.ArrowException: the file cannot be opened, or a parquet file has no valid footer.
        InputError: a parquet file has two columns of one name.
    """
    if kind == "parquet":
        with _seekable(path, root) as stream, pq.ParquetFile(stream) as file:
            if (name := repeated_name(file.schema_arrow)) is not None:
                raise InputError(
                    file=path,
                    found=f"two columns named {quote(name)}",
                    expected="every name once",
                    remedy="Readers keep one of them and lose the other: rename or drop one.",
                )
            return _plausible(file.metadata.num_rows, stream.seek(0, io.SEEK_END))
    if _other_encoding(path, root) is not None:
        return 1
    if _holds_lines(path, kind, root):
        return sum(1 for _ in _lines(path, root))
    return sum(1 for _ in _json_rows(path, root))


def _plausible(rows: int, size: int) -> int:
    """`rows`, where a file of `size` bytes can hold so many: a footer may claim any number."""
    if rows > max(_FREE_ROWS, _MAX_ROWS_PER_BYTE * size):
        raise OSError(f"its footer claims {rows:,} rows in {size:,} bytes")
    return rows


@contextmanager
def _uncompressed(path: str, root: Path) -> Iterator[BinaryIO]:
    with open_raw(path, root) as stream:
        compression = compression_of(path, stream)
        if compression is None:
            yield stream
        else:
            with pa.CompressedInputStream(stream, compression) as plain:
                yield io.BufferedReader(_Expanding(plain, stream), 1 << 20)


class _Expanding(io.RawIOBase):
    """What a compressed stream holds, as far as a file that people write could hold it."""

    def __init__(self, plain: BinaryIO, compressed: BinaryIO) -> None:
        self._plain = plain
        self._compressed = compressed
        self._given = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._plain.read(len(buffer))
        buffer[: len(piece)] = piece
        self._given += len(piece)
        if self._given > _FREE_EXPANSION + _MAX_EXPANSION * self._compressed.tell():
            raise OSError(f"its content is more than {_MAX_EXPANSION} times as large as the file")
        return len(piece)


def _other_encoding(path: str, root: Path) -> str | None:
    """The encoding of a file that is text, and not UTF-8 from its first character on; else None."""
    with _uncompressed(path, root) as stream:
        try:
            head = stream.read(4)
        except (OSError, pa.ArrowException):  # damage is said where rows are read
            return None
    for mark, encoding in _MARKS.items():
        if head.startswith(mark):
            return f"{encoding} (byte order mark {mark.hex(' ').upper()})"
    if len(head) == 4 and b"\0\0" in (head[0::2], head[1::2]) and any(head):
        return "UTF-16"
    return None


@contextmanager
def _seekable(path: str, root: Path) -> Iterator[BinaryIO]:
    with open_raw(path, root) as stream:
        if compression_of(path, stream) is None:
            yield stream
            return
    with tempfile.TemporaryFile() as whole:
        with _uncompressed(path, root) as stream:
            shutil.copyfileobj(stream, whole, 1 << 20)
        whole.seek(0)
        yield cast(BinaryIO, whole)


# Lines


def _lines(path: str, root: Path) -> Iterator[tuple[int, bytes | None, Finding | None]]:
    """Number (from 1) and bytes of every line that is not blank; or no bytes and why."""
    number = 0
    with _uncompressed(path, root) as stream:
        while True:
            number += 1
            try:
                line = stream.readline(MAX_ROW_BYTES)
                if len(line) == MAX_ROW_BYTES and not line.endswith(b"\n"):
                    _skip_line(stream)
                    message = f"found a line ({number}) of more than {MAX_ROW_BYTES >> 20} MiB"
                    yield number, None, Finding("file.row_too_large", None, message)
                    continue
            except (OSError, pa.ArrowException) as error:
                message = f"found damage after line {number - 1}: {error}"
                yield number, None, Finding("file.corrupt", None, message)
                return
            if not line:
                return
            if len(line) > MAX_ROW_VALUES and _structure(line) > MAX_ROW_VALUES:
                message = f"found a line ({number}) of more than {MAX_ROW_VALUES:,} values"
                yield number, None, Finding("file.row_too_large", None, message)
                continue
            if number == 1 and line.startswith(_BOM):
                line = line[len(_BOM) :]
            if not line.isspace() and line:
                yield number, line, None


def _structure(line: bytes) -> int:
    """At least as many as the values that a line of JSON holds."""
    return line.count(b",") + line.count(b"[") + line.count(b"{")


def _skip_line(stream: BinaryIO) -> None:
    while (piece := stream.readline(1 << 20)) and not piece.endswith(b"\n"):
        pass


def _line_rows(path: str, root: Path) -> Iterator[RawRow]:
    for position, (number, line, finding) in enumerate(_lines(path, root)):
        if line is None:
            yield RawRow(position, None, (cast(Finding, finding),))
            continue
        try:
            value = decode(line)
        except (msgspec.DecodeError, RecursionError):
            yield _explained(position, number, line)
            continue
        yield _json_row(position, value, line)


def _json_row(position: int, value: Any, raw: bytes) -> RawRow:
    if type(value) is not dict:
        finding = Finding("row.not_an_object", None, f"found {describe(value)}, expected an object")
        return RawRow(position, None, (finding,), raw)
    if position == 0 and (orient := pandas_orient(value)) is not None:
        message = f"found a whole table as `df.to_json({orient})` writes it, expected an object per row"
        message += ': write it with `orient="records", lines=True`'
        return RawRow(position, None, (Finding("row.not_an_object", None, message),), raw)
    if (key := repeated_key(raw, value)) is not None:
        finding = Finding("row.duplicate_key", None, f"found the key {quote(key)} twice in one object")
        return RawRow(position, None, (finding,), raw)
    return RawRow(position, value, (), raw)


def _explained(position: int, number: int, line: bytes) -> RawRow:
    """A line that the fast decoder refused: its row where the values are merely odd, else why not."""
    try:
        # Without its line break, since the text that breaks off would seem to do so on the next line.
        return _json_row(position, json.loads(line.decode().rstrip(" \t\r\n")), line)
    except UnicodeDecodeError as error:
        message = f"found byte 0x{line[error.start]:02x} at column {error.start + 1} of line {number}"
        finding = Finding("text.not_utf8", None, message)
    except json.JSONDecodeError as error:
        problem = error.msg.removesuffix(" at")
        message = f"found line {number} that is not JSON: {problem} at column {error.pos + 1}"
        finding = Finding("file.malformed_line", None, message)
    except RecursionError:
        finding = Finding("value.too_deep", None, "found a value nested beyond what can be read")
    except ValueError as error:
        finding = Finding("value.not_json", None, f"found a number that cannot be read ({error})")
    return RawRow(position, None, (finding,), line)


# A json file as one text


def _holds_lines(path: str, kind: Format, root: Path) -> bool:
    """Whether a file holds an object per line, whatever its name ends in.

    A .jsonl file does, unless it is an array of objects. A .json file does where its first line is an object.
    Of an object or an array, the first line must be whole, and another must follow.
    """
    with _uncompressed(path, root) as stream:
        try:
            head = _first_bytes(stream)
            if kind == "jsonl":
                inner = head[1:].lstrip() or _first_bytes(stream)
                if not (head.startswith(b"[") and inner.startswith(b"{")):
                    return True
            elif not head.startswith(b"{"):
                return False
        except (OSError, pa.ArrowException):  # damage is said where rows are read
            return kind == "jsonl"
    lines = _lines(path, root)
    first = next(lines, None)
    if first is None or first[1] is None:
        return False
    try:
        decode(first[1])
    except (msgspec.DecodeError, RecursionError):
        return False
    return next(lines, None) is not None


def _first_bytes(stream: BinaryIO) -> bytes:
    """A few bytes from the first that is neither space nor byte order mark."""
    while piece := stream.read(64):
        if text := piece.removeprefix(_BOM).lstrip():
            return text
    return b""


def _json_rows(path: str, root: Path) -> Iterator[RawRow]:
    position = 0
    try:
        with _uncompressed(path, root) as stream:
            for value, text in JsonStream(stream, MAX_ROW_BYTES, MAX_ROW_VALUES // 2).records():
                yield _json_row(position, value, text.encode("utf-8", "surrogatepass"))
                position += 1
    except MalformedJson as error:
        yield RawRow(position, None, (Finding(error.code, None, str(error)),))
    except (OSError, pa.ArrowException) as error:
        yield RawRow(position, None, (Finding("file.corrupt", None, f"found damage: {error}"),))


# Parquet


def _parquet_rows(stream: BinaryIO) -> Iterator[RawRow]:
    with pq.ParquetFile(stream, buffer_size=1 << 20) as file:
        filled = frozenset(field.name for field in file.schema_arrow if holds_objects(field.type))
        position = 0
        for group in range(file.num_row_groups):
            end = position + file.metadata.row_group(group).num_rows
            if (mean := _values_per_row(file, group)) > MAX_ROW_VALUES:
                message = f"found rows of {mean:,} values, expected at most {MAX_ROW_VALUES:,}"
                for refused in range(position, end):
                    yield RawRow(refused, None, (Finding("file.row_too_large", None, message),))
                position = end
                continue
            try:
                for batch in file.iter_batches(_batch_size(stream, file, group), row_groups=[group]):
                    for value, finding in batch_rows(batch):
                        yield RawRow(position, value, () if finding is None else (finding,), None, filled)
                        position += 1
            except (OSError, pa.ArrowException) as error:
                message = f"found damage in row group {group}: {first_line(error)}"
                for lost in range(position, end):
                    yield RawRow(lost, None, (Finding("file.corrupt", None, message),))
            else:
                message = f"found row group {group} to end before its last row"
                for lost in range(position, end):
                    yield RawRow(lost, None, (Finding("file.corrupt", None, message),))
            position = end


def _values_per_row(file: pq.ParquetFile, group: int) -> int:
    """Values of a row, nulls too, in the mean of a row group: a few bytes may say millions."""
    metadata = file.metadata.row_group(group)
    values = sum(metadata.column(index).num_values for index in range(metadata.num_columns))
    return values // max(metadata.num_rows, 1)


def _batch_size(stream: BinaryIO, file: pq.ParquetFile, group: int) -> int:
    """Rows per batch, so that a batch of large media stays within tens of megabytes, within hundreds where
    every value of a column is the longest one of its dictionary, and within a million values."""
    metadata = file.metadata.row_group(group)
    rows = max(metadata.num_rows, 1)
    columns = [metadata.column(index) for index in range(metadata.num_columns)]
    most = sum(_dictionary_bytes(stream, column) * column.num_values // rows for column in columns)
    by_mean = _BATCH_BYTES // max(metadata.total_byte_size // rows, 1)
    by_values = _BATCH_VALUES // max(_values_per_row(file, group), 1)
    return max(1, min(_MAX_BATCH_ROWS, by_mean, by_values, _MOST_BATCH_BYTES // max(most, 1)))


def _dictionary_bytes(stream: BinaryIO, column: pq.ColumnChunkMetaData) -> int:
    """Size of a column's dictionary by its page's header, or 0 where it has none.

    In Thrift's compact protocol the header starts with two numbers, the page's type and its size, each
    after a byte that tells the field and as a varint of twice its value.
    """
    if not column.dictionary_page_offset:
        return 0
    stream.seek(column.dictionary_page_offset)
    head = stream.read(16)
    size = 0
    for place, byte in enumerate(head[3:]):
        size |= (byte & 127) << 7 * place
        if byte < 128:
            break
    return size >> 1
