"""The length gate: which accepted rows fit once their prompt is rendered."""

import json
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from rl_assets.base.formats import UnreadableError
from rl_assets.base.jsontext import to_json
from rl_assets.base.progress import Log, Progress
from rl_assets.base.tables import Table, TableWriter
from rl_assets.base.workers.pool import ahead
from rl_assets.contract.rules.code import Finding, Severity
from rl_assets.contract.rules.codes import CODES
from rl_assets.contract.schema import REJECT_SCHEMA, ROW_SCHEMA, reject
from rl_assets.prompts.encoding import Encoded
from rl_assets.prompts.measure import Job, Measured, measure_all, media_counts
from rl_assets.prompts.render import FastPathDiffersError, PromptRenderer
from rl_assets.prompts.rendered import Rendered
from rl_assets.prompts.reuse import Earlier, merge

Truncation = Literal["left", "right", "middle"]

_IDS = pa.list_(pa.int32())

LENGTH_FILTERED_SCHEMA = (
    ROW_SCHEMA.append(pa.field("prompt_ids", _IDS, nullable=False))
    .append(pa.field("prompt_length", pa.int32(), nullable=False))
    .append(pa.field("uncut_length", pa.int32()))
)
"""`prompt_length` counts `prompt_ids`; `uncut_length` is the length before they were cut, else null."""

OVERLONG_SCHEMA = ROW_SCHEMA.append(pa.field("prompt_ids", _IDS)).append(
    pa.field("prompt_length", pa.int32(), nullable=False)
)
"""`prompt_ids` are kept up to twice the limit, so that a limit raised to that renders nothing again, and null
beyond, so that a row of a million tokens does not weigh more than it is worth."""

_STAMP_KEY = b"rl_assets.render_stamp"
_MADE_KEY = b"rl_assets.made"
_BATCH_ROWS = 8192
_BATCH_BYTES = 8 << 20
"""Batches are bounded in bytes too, because some ten of them are worked on at a time."""
_BATCH_ROWS_WITH_MEDIA = 512
_MOST_WAITING = 4
"""Writes that wait before the gate waits for them."""


@dataclass(frozen=True)
class LengthResult:
    """Three tables that together hold every row of the contract exactly once, and how they came about.

    Attributes:
        kept: rows that fit or were cut, with `prompt_ids` and `prompt_length`; the render stamp is in its
            metadata.
        overlong: rows that do not fit, with their `prompt_length`.
        refused: rows whose prompt could not be rendered, each with the reason; not overlong, but broken.
        rendered: rows that were rendered, refused ones among them.
        reused: rows whose ids are those of the last build.
        cut: rows whose ids were cut to the limit.
        warnings: for every code of this stage that is a warning, how many rows have it that fit or are too
            long.
        encoder: the back end that made the ids; None where nothing was rendered.
        slower: why it is not the fast one, where it is not.
    """

    kept: Table
    overlong: Table
    refused: Table
    rendered: int
    reused: int
    cut: int
    warnings: dict[str, int]
    encoder: str | None
    slower: str | None


def filter_by_length(
    contract: Table,
    renderer: PromptRenderer,
    *,
    max_prompt_length: int,
    folder: Path,
    log: Log,
    truncation: Truncation | None = None,
    severities: Mapping[str, Severity] | None = None,
    earlier: tuple[Table, Table] | None = None,
    code: str = "",
) -> LengthResult:
    """Render every accepted row once and sort it by whether it fits.

    Rows that the last build rendered under the same stamp by the same code are not rendered again, whatever
    its limit was; where the chat template asks for the date, only on the same day. Those whose prompt lacks
    something are: whether that is an error may have changed.

    Args:
        contract: the accepted rows (`ROW_SCHEMA`).
        renderer: what makes a prompt of messages.
        max_prompt_length: longest prompt in tokens; one of exactly this length is kept.
        folder: where the three tables are written.
        log: receives progress lines.
        truncation: where to take tokens away from a text prompt that is too long (verl's
            `postprocess_data`): `left` keeps its end, `right` its beginning, `middle` both. None cuts
            nothing. A prompt with media is never cut.
        severities: of codes that `CODES` says are adjustable. A row whose prompt lacks something is refused
            where that is an error; where it is a warning, it goes on and has it among its `warnings`.
        earlier: `kept` and `overlong` of the last build, which are read before anything is returned.
        code: digest of the code that runs.
    """
    gate = _Gate(contract, renderer, max_prompt_length, truncation, severities or {}, folder, log, code)
    try:
        return gate.run(earlier)
    except FastPathDiffersError as difference:
        log(
            f"length gate: {difference}, so all prompts are rendered again by transformers alone, several "
            "times slower; please report the policy's tokenizer and template to rl-assets"
        )
        plain = replace(renderer, fast=False)
        result = replace(gate, renderer=plain).run(earlier)
        return replace(result, slower=str(difference))


def render_stamp(length_filtered: Table) -> dict[str, str]:
    """The parts of the render stamp under which the rows of `length_filtered` were measured."""
    return json.loads((length_filtered.schema.metadata or {}).get(_STAMP_KEY, b"{}"))


@dataclass(frozen=True)
class _Gate:
    contract: Table
    renderer: PromptRenderer
    limit: int
    truncation: Truncation | None
    severities: Mapping[str, Severity]
    folder: Path
    log: Log
    code: str

    def run(self, tables: tuple[Table, Table] | None) -> LengthResult:
        if self.renderer.template.asks_for_date and "date_string" not in self.renderer.template_kwargs:
            self.log(
                "length gate: the chat template writes today's date into prompts, so all are rendered and "
                "rolled out again every day; where it reads `date_string`, set that in "
                "data.apply_chat_template_kwargs to keep them"
            )
        earlier = self._earlier(tables)
        total = self.contract.num_rows
        progress = Progress(self.log, "length gate", total, "rows")
        reused = cut = 0
        warnings: Counter[str] = Counter()
        with (
            self._writer("length_filtered", LENGTH_FILTERED_SCHEMA) as kept,
            self._writer("overlong_rows", OVERLONG_SCHEMA) as overlong,
            self._writer("unrenderable_rows", REJECT_SCHEMA) as refused,
            _Background() as writing,
        ):
            for job, measured in measure_all(ahead(self._jobs(earlier)), self.renderer, total, self.log):
                encoded, lengths = merge(earlier, job.earlier, measured.encoded)
                problems, warned = self._judged(job, measured)
                batch = _with_warnings(job.batch, warned)
                long = lengths > self.limit
                fits = ~long
                fits[list(problems)] = long[list(problems)] = False
                cuts = long & (job.media == 0) if self.truncation else np.zeros_like(long)
                writing.do(
                    lambda *made: kept.write_batch(self._fitting(*made)),
                    *(batch, encoded, lengths, fits | cuts, cuts),
                )
                writing.do(
                    lambda *made: overlong.write_batch(self._overlong(*made)),
                    *(batch, encoded, lengths, long & ~cuts),
                )
                refused.write_rows(
                    reject(batch.slice(index, 1).to_pylist()[0], why) for index, why in problems.items()
                )
                warnings.update(finding.code for found in warned.values() for finding in found)
                reused += int((job.earlier >= 0).sum())
                cut += int(cuts.sum())
                progress.add(job.batch.num_rows)
        progress.close()
        encoder = self.renderer.encoder if reused < total else None
        if encoder is not None and encoder.reason and self.renderer.fast:
            self.log(f"length gate: encoded with tokenizers, slower than with fastokens: {encoder.reason}")
        return LengthResult(
            kept.table,
            overlong.table,
            refused.table,
            rendered=total - reused,
            reused=reused,
            cut=cut,
            warnings=dict(warnings),
            encoder=encoder.name if encoder else None,
            slower=encoder.reason if encoder else None,
        )

    def _judged(
        self, job: Job, measured: Measured
    ) -> tuple[dict[int, Sequence[Finding]], dict[int, Sequence[Finding]]]:
        """Why rows are refused, and what others are warned of, by their position in the whole batch."""
        refused: dict[int, Sequence[Finding]] = {}
        warned: dict[int, Sequence[Finding]] = {}
        if measured.refused or measured.lost:
            places = np.flatnonzero(job.earlier < 0).tolist()
            for index, lost in measured.lost.items():
                errors = [finding for finding in lost if self._is_error(finding.code)]
                (refused if errors else warned)[places[index]] = errors or lost
            refused |= {places[index]: [_finding(why)] for index, why in measured.refused.items()}
        return dict(sorted(refused.items())), warned

    def _is_error(self, code: str) -> bool:
        return self.severities.get(code, CODES[code].severity) == "error"

    def _jobs(self, earlier: Earlier) -> Iterator[Job]:
        for batch in self.contract.batches(size=_BATCH_ROWS):
            media = media_counts(batch)
            size = max(1, batch.num_rows * _BATCH_BYTES // max(batch.nbytes, 1))
            if media.any():
                size = min(size, _BATCH_ROWS_WITH_MEDIA)
            for first in range(0, batch.num_rows, size):
                rows = batch.slice(first, size)
                yield Job.of(rows, earlier.find(rows), media[first : first + size])

    def _fitting(
        self, batch: pa.RecordBatch, encoded: Encoded, lengths: np.ndarray, keep: np.ndarray, cuts: np.ndarray
    ) -> pa.RecordBatch:
        if cuts.any():
            assert self.truncation is not None
            rows = encoded.split()
            for index in np.flatnonzero(cuts).tolist():
                rows[index] = cut_ids(rows[index], self.limit, self.truncation)
            encoded = Encoded.of(rows)
        columns = {
            "prompt_ids": _list_array(encoded),
            "prompt_length": pa.array(encoded.lengths.astype(np.int32)),
            "uncut_length": pa.array(lengths.astype(np.int32), mask=~cuts),
        }
        return _with(batch, columns, keep)

    def _overlong(
        self, batch: pa.RecordBatch, encoded: Encoded, lengths: np.ndarray, long: np.ndarray
    ) -> pa.RecordBatch:
        known = (encoded.lengths == lengths) & (lengths <= self._ids_up_to)
        columns = {
            "prompt_ids": _list_array(encoded, ~known),
            "prompt_length": pa.array(lengths.astype(np.int32)),
        }
        return _with(batch, columns, long)

    @property
    def _ids_up_to(self) -> int:
        return 2 * self.limit

    def _writer(self, name: str, schema: pa.Schema) -> TableWriter:
        metadata = {_STAMP_KEY: to_json(self._stamp).encode(), _MADE_KEY: to_json(self._made).encode()}
        return TableWriter(self.folder / f"{name}.parquet", schema.with_metadata(metadata))

    @property
    def _stamp(self) -> dict[str, str]:
        return dict(self.renderer.stamp.parts)

    @property
    def _made(self) -> dict[str, Any]:
        """What the ids in a table depend on besides the stamp: the code that made them and looked at them,
        how they were cut and, maybe, the day."""
        return {
            "code": self.code,
            "cut": [self.truncation, self.limit] if self.truncation else None,
            "day": date.today().isoformat() if self.renderer.template.asks_for_date else None,
        }

    def _earlier(self, tables: tuple[Table, Table] | None) -> Earlier:
        earlier = Earlier(self.folder / "earlier.ids")
        for table in tables or ():
            try:
                metadata = table.schema.metadata or {}
                stamp, made = (json.loads(metadata.get(key, b"{}")) for key in (_STAMP_KEY, _MADE_KEY))
                same = made.get("code") == self.code and "day" in made and made["day"] == self._made["day"]
                if stamp == self._stamp and same:
                    earlier.add(
                        table,
                        without_ids_beyond=None if self.truncation else self._ids_up_to,
                        cut_alike=made["cut"] == self._made["cut"],
                    )
            except (
                OSError,
                pa.ArrowException,
                UnreadableError,
            ) as error:
                # The last build is a help, not a need.
                self.log(f"length gate: {table.path} is not used again, it cannot be read ({error})")
        return earlier


class _Background:
    """Work done in order by one other thread while this one renders: Arrow holds no lock on Python."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._waiting: deque[Future[None]] = deque()

    def __enter__(self) -> "_Background":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._thread.shutdown(cancel_futures=kind is not None)
        if kind is None:
            for future in self._waiting:
                future.result()

    def do(self, work: Callable[..., None], *arguments: Any) -> None:
        """Queue work; an error of earlier work is raised here or at the end."""
        self._waiting.append(self._thread.submit(work, *arguments))
        if len(self._waiting) > _MOST_WAITING:
            self._waiting.popleft().result()


def cut_ids(ids: np.ndarray, limit: int, truncation: Truncation) -> np.ndarray:
    """At most `limit` ids, as verl's `postprocess_data` cuts them: `left` keeps the last, `right` the first,
    `middle` the first `limit // 2` and the last of the others."""
    if len(ids) <= limit:
        return ids
    if truncation == "left":
        return ids[-limit:]
    if truncation == "right":
        return ids[:limit]
    half = limit // 2
    return np.concatenate([ids[:half], ids[half - limit :]])


def _list_array(encoded: Encoded, null: np.ndarray | None = None) -> pa.ListArray:
    offsets = np.concatenate([[0], np.cumsum(encoded.lengths)]).astype(np.int32)
    mask = None if null is None else pa.array(null)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(encoded.ids), type=_IDS, mask=mask)


def _with(batch: pa.RecordBatch, columns: dict[str, pa.Array], keep: np.ndarray) -> pa.RecordBatch:
    """The rows of `batch` that are kept, with further columns."""
    for name, values in columns.items():
        batch = batch.append_column(name, values)
    return batch if keep.all() else batch.filter(pa.array(keep))


def _finding(why: Rendered) -> Finding:
    assert why.code is not None
    message = why.error or ""
    if why.code == "render.template_error":
        message = f"the chat template refuses it: {message}"
    return Finding(why.code, why.path, message)


def _with_warnings(batch: pa.RecordBatch, more: Mapping[int, Sequence[Finding]]) -> pa.RecordBatch:
    """The batch, its rows at these positions with further `warnings`."""
    if not more:
        return batch
    at = batch.schema.get_field_index("warnings")
    found = batch.column(at).to_pylist()
    for index, findings in more.items():
        found[index] = [*(found[index] or ()), *(finding._asdict() for finding in findings)]
    field = batch.schema.field(at)
    return batch.set_column(at, field, pa.array(found, field.type))
