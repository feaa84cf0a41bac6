"""The contract itself: raw files in, one table of accepted rows and one of rejected rows out."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from upath import UPath

from rl_assets.base.digests import digest_stream
from rl_assets.base.modalities import MEDIA_COLUMNS
from rl_assets.base.progress import Log, Progress
from rl_assets.base.tables import Table, TableWriter
from rl_assets.contract.files.manifest import SPLITS, RawFile, RawManifest, locate, open_raw
from rl_assets.contract.files.reading import RawRow, read_rows
from rl_assets.contract.rules.code import Finding
from rl_assets.contract.rules.codes import CODES
from rl_assets.contract.rules.draft import Draft
from rl_assets.contract.rules.options import ContractOptions
from rl_assets.contract.rules.repeats import Repeats
from rl_assets.contract.rules.rows import Record, check_row
from rl_assets.contract.schema import REJECT_SCHEMA, ROW_SCHEMA, reject
from rl_assets.contract.uids import UidRegistry
from rl_assets.errors import InputError, first_line
from rl_assets.media.files import MediaReader

REPAIRS = (
    "null_keys_dropped",
    "scalars_wrapped",
    "json_text_parsed",
    "arguments_parsed",
    "empty_calls_dropped",
    "index_assigned",
    "columns_prefixed",
    "parts_renamed",
    "media_renamed",
)
_BATCH_ROWS = 1024
_BATCH_BYTES = 64 << 20


class Counts(NamedTuple):
    """Rows of one split; `rows_in` is always `accepted` + `rejected`."""

    rows_in: int
    accepted: int
    rejected: int


class Warned(NamedTuple):
    """Where a warning arose."""

    file: str
    row: int
    finding: Finding


@dataclass(frozen=True)
class ContractResult:
    """What the contract made of a dataset.

    Attributes:
        accepted: table of `ROW_SCHEMA`.
        rejected: table of `REJECT_SCHEMA`.
        counts: by split, `train` and `val`.
        by_code: for every code that is an error, how many rows have it (a row may have several).
        warnings: for every code that is a warning, how many accepted rows have it.
        examples: the first warnings of each code.
        repaired: for every kind of repair, how many accepted rows it was applied to.
        media_files: the media files that rows name, missing ones too: rows were judged by their bytes.
    """

    accepted: Table
    rejected: Table
    counts: dict[str, Counts]
    by_code: dict[str, int]
    warnings: dict[str, int]
    examples: dict[str, list[Warned]]
    repaired: dict[str, int]
    media_files: frozenset[Path]

    @property
    def rows_in(self) -> int:
        """Rows of both splits: accepted and rejected ones."""
        return sum(counts.rows_in for counts in self.counts.values())

    @property
    def accepted_rows(self) -> int:
        """Accepted rows of both splits."""
        return sum(counts.accepted for counts in self.counts.values())

    @property
    def rejected_rows(self) -> int:
        """Rejected rows of both splits."""
        return sum(counts.rejected for counts in self.counts.values())


def apply_contract(
    manifest: RawManifest,
    options: ContractOptions,
    *,
    root: Path,
    folder: Path,
    log: Log = lambda line: None,
    examples: int | None = 5,
) -> ContractResult:
    """Judge every row of the raw files and write `field_contract.parquet` and `rejected_rows.parquet`.

    Rows are streamed in the order of the manifest. Memory holds one batch, and about 500 bytes per row for
    uids and repeats.

    Args:
        root: what the manifest's paths are relative to.
        folder: where the two files are written.
        log: is given a line of progress every few seconds.
        examples: warnings kept per code; None keeps them all.

    Raises:
        InputError: a raw file is not the one that was scanned.
    """
    with (
        TableWriter(folder / "field_contract.parquet", ROW_SCHEMA) as accepted,
        TableWriter(folder / "rejected_rows.parquet", REJECT_SCHEMA) as rejected,
    ):
        gate = _Gate(manifest, options, accepted, rejected, examples)
        progress = Progress(log, "field contract", manifest.rows, "rows")
        media_files: set[Path] = set()
        for number, file in enumerate(manifest.files):
            reader = MediaReader.for_file(file.path, options, root)
            taken = 0
            for raw in _unchanged_rows(file, root):
                gate.take(raw, number, reader)
                taken += 1
                if taken % _BATCH_ROWS == 0:
                    progress.add(_BATCH_ROWS)
            progress.add(taken % _BATCH_ROWS)
            gate.finish_file(file)
            media_files |= reader.opened
        progress.close()
    return ContractResult(
        accepted=accepted.table,
        rejected=rejected.table,
        counts=gate.counts(),
        by_code={code: gate.by_code[code] for code in CODES if options.severity[code] == "error"},
        warnings={code: gate.warnings[code] for code in CODES if options.severity[code] == "warning"},
        examples=gate.examples,
        repaired={kind: gate.repaired[kind] for kind in REPAIRS},
        media_files=frozenset(media_files),
    )


def _unchanged_rows(file: RawFile, root: Path) -> Iterator[RawRow]:
    """The rows of a file that has the bytes that were scanned, before it is read and after."""
    path, taken = locate(file.path, root), 0
    try:
        before = _state(path)
        if before[0] != file.bytes:
            raise _changed(file, f"{before[0]:,} bytes")
        with open_raw(file.path, root) as stream:
            digest = digest_stream(stream)
        if digest != file.digest:
            raise _changed(file, "other content in as many bytes")
        for raw in read_rows(file.path, file.format, root):
            yield raw
            taken += 1
        if _state(path) != before or taken != file.rows:
            raise _changed(file, "a file that was written to while it was read")
    except FileNotFoundError:
        raise _changed(file, "no such file any more") from None
    except (OSError, pa.ArrowException) as error:
        raise _changed(file, f"a file that cannot be read any more ({first_line(error)})") from error


def _state(path: Path | UPath) -> tuple[int, float]:
    status = path.stat()
    return status.st_size, status.st_mtime


def _changed(file: RawFile, found: str) -> InputError:
    return InputError(
        file=file.path,
        found=found,
        expected=f"the {file.bytes:,} bytes and {file.rows:,} rows that were scanned",
        remedy='Scan the raw files again: materialise raw_files and what follows ("Re-execute all" does; a '
        "retry from failure keeps the old scan).",
    )


class _Gate:
    """The state of one pass over a dataset: batches under way, uids and repeats, counts."""

    def __init__(
        self,
        manifest: RawManifest,
        options: ContractOptions,
        accepted: TableWriter,
        rejected: TableWriter,
        examples: int | None,
    ) -> None:
        self._files = manifest.files
        self._options = options
        self._accepted = accepted
        self._rejected = rejected
        self._keep = examples
        self._records: list[Record] = []
        self._placed: list[tuple[str, int, list[Finding]]] = []
        self._refusals: list[dict[str, Any]] = []
        self._pending_bytes = 0
        self._uids = UidRegistry()
        self._repeats = Repeats(self._place, both_splits=self._has_both())
        self._offset = dict[str, int].fromkeys(SPLITS, 0)
        self._counts: dict[str, list[int]] = {split: [0, 0] for split in SPLITS}
        self.by_code: Counter[str] = Counter()
        self.warnings: Counter[str] = Counter()
        self.repaired: Counter[str] = Counter()
        self.examples: dict[str, list[Warned]] = {}

    def _has_both(self) -> bool:
        return len({file.split for file in self._files}) == 2

    def counts(self) -> dict[str, Counts]:
        return {split: Counts(sum(pair), *pair) for split, pair in self._counts.items()}

    def take(self, raw: RawRow, number: int, reader: MediaReader) -> None:
        """Judge one row of file `number` and put it into one of the two tables."""
        file = self._files[number]
        if raw.findings or raw.value is None:
            self._reject(raw, file, list(raw.findings), None)
            return
        draft = Draft(self._options, raw.filled)
        index = self._offset[file.split] + raw.position
        record = check_row(raw.value, index, reader, draft)
        own = raw.value.get("uid")
        errors = draft.errors if record is None else self._uid_errors(own)
        if record is None or errors:
            self._reject(raw, file, errors, own if type(own) is str else None)
            return
        keys = self._repeats.keys(record, file.split)
        if repeated := self._repeats.found(keys):
            draft.found.extend(repeated)
            if errors := draft.errors:
                self._reject(raw, file, errors, own)
                return
        self._repeats.remember(keys, number << 40 | raw.position)
        self._accept(record, raw, number, draft, own)

    def _uid_errors(self, own: str | None) -> list[Finding]:
        """What is wrong with a row's own uid, seen beside those of the rows before it."""
        first = None if own is None else self._uids.owner(own)
        if first is None:
            return []
        return [Finding("uid.duplicate", "uid", f"found the uid of {self._place(first)}")]

    def finish_file(self, file: RawFile) -> None:
        """Write what is under way; the next file's rows number on from here."""
        self._offset[file.split] += file.rows
        self._flush(file)

    def _place(self, position: int) -> str:
        file, row = position >> 40, position & ((1 << 40) - 1)
        return f"{self._files[file].path}, row {row}"

    def _accept(self, record: Record, raw: RawRow, number: int, draft: Draft, own: str | None) -> None:
        file = self._files[number]
        uid = self._uids.register(record.content, number << 40 | raw.position, own)
        if draft.found:
            self._warn(draft.found, file.path, raw.position)
        if draft.repaired:
            self.repaired.update(draft.repaired)
        self._counts[file.split][0] += 1
        self._records.append(record)
        self._placed.append((uid, raw.position, draft.found))
        self._make_room(file, record.num_bytes)

    def _warn(self, findings: list[Finding], file: str, row: int) -> None:
        for code in {finding.code for finding in findings}:
            self.warnings[code] += 1
        for finding in findings:
            kept = self.examples.setdefault(finding.code, [])
            if self._keep is None or len(kept) < self._keep:
                kept.append(Warned(file, row, finding))

    def _reject(self, raw: RawRow, file: RawFile, errors: list[Finding], uid: str | None) -> None:
        place = {"source_file": file.path, "source_row": raw.position, "split": file.split, "uid": uid}
        text = raw.text()
        self._refusals.append(reject(place, errors, row=text))
        self.by_code.update({error.code for error in errors})
        self._counts[file.split][1] += 1
        self._make_room(file, len(text))

    def _make_room(self, file: RawFile, more_bytes: int) -> None:
        self._pending_bytes += more_bytes
        if len(self._records) + len(self._refusals) >= _BATCH_ROWS or self._pending_bytes >= _BATCH_BYTES:
            self._flush(file)

    def _flush(self, file: RawFile) -> None:
        if self._records:
            self._accepted.write_batch(_batch(file, self._placed, self._records))
        self._rejected.write_rows(self._refusals)
        self._records.clear()
        self._placed.clear()
        self._refusals.clear()
        self._pending_bytes = 0


def _batch(
    file: RawFile, placed: list[tuple[str, int, list[Finding]]], records: list[Record]
) -> pa.RecordBatch:
    """Accepted rows of one file (uid, row, warnings; and the record) as a batch of `ROW_SCHEMA`."""
    uids, rows, warnings = zip(*placed, strict=True)
    columns: dict[str, Any] = {
        "uid": uids,
        "split": pa.repeat(file.split, len(records)),
        "source_file": pa.repeat(file.path, len(records)),
        "source_row": rows,
        "warnings": [[finding._asdict() for finding in found] if found else None for found in warnings],
    }
    for name in ("data_source", "ability", "prompt", "reward_model", "extra_info", "extra_columns"):
        columns[name] = [getattr(record, name) for record in records]
    for name in MEDIA_COLUMNS:
        lists = [record.media.columns[name] for record in records]
        columns[name] = [None if media is None else [medium._asdict() for medium in media] for media in lists]
    arrays = [
        column if isinstance(column, pa.Array) else pa.array(column, ROW_SCHEMA.field(name).type)
        for name, column in ((name, columns[name]) for name in ROW_SCHEMA.names)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ROW_SCHEMA)
