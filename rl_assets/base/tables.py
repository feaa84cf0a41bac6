"""Tables as Parquet files, read in batches and written in row groups of bounded size."""

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
from upath import UPath

from rl_assets.base import formats
from rl_assets.base.digests import digest_file
from rl_assets.base.files import named_errors
from rl_assets.errors import InputError, first_line

GROUP_BYTES = 64 << 20


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
