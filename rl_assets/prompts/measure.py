"""Batches of contract rows to token ids, in this process or, where there is enough to do, in several."""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rl_assets.base.jsontext import canonical_json, decode
from rl_assets.base.memory import uncollected
from rl_assets.base.modalities import MEDIA_COLUMNS
from rl_assets.base.progress import Log
from rl_assets.base.workers.pool import CLUSTER, ahead, cores
from rl_assets.base.workers.spread import spread
from rl_assets.contract.rules.code import Finding
from rl_assets.contract.schema import decode_row
from rl_assets.media.placeholders import is_bare
from rl_assets.media.source import media_parts
from rl_assets.prompts.encoding import Encoded
from rl_assets.prompts.refused import Refused
from rl_assets.prompts.render import PromptRenderer
from rl_assets.prompts.rendered import Rendered
from rl_assets.prompts.settings import has_settings, row_settings
from rl_assets.prompts.tools import row_tools

_TEXT_COLUMNS = ["prompt", "extra_columns"]
_MEDIA_PART = '"type":"(image|video|audio)"'
_FIRST_SAMPLE, _ONE_IN = 64, 1000
_POOL_START = 5.0
"""Seconds that worker processes need before their first row, about: each imports transformers."""
_TIMED = 1.0
"""Seconds of work by which the rest is estimated."""


class Measured(NamedTuple):
    """What became of the rows of a batch.

    Attributes:
        encoded: the ids of each row, none for a refused one.
        refused: the rows that have no prompt, by their position, each with its reason.
        lost: what prompts lack of their rows, by the row's position.
    """

    encoded: Encoded
    refused: dict[int, Rendered]
    lost: dict[int, Sequence[Finding]]


@dataclass(frozen=True)
class Job:
    """A batch of rows, and those of them that are to be rendered.

    Attributes:
        batch: the rows, whole.
        earlier: per row its position among the rows that were rendered before, or -1.
        media: per row how many media it has.
        todo: the rows to render, with no more columns than that takes.
    """

    batch: pa.RecordBatch
    earlier: np.ndarray
    media: np.ndarray
    todo: pa.RecordBatch

    @classmethod
    def of(cls, batch: pa.RecordBatch, earlier: np.ndarray, media: np.ndarray) -> Self:
        """The job of a batch."""
        missing = earlier < 0
        needed = [*_TEXT_COLUMNS, *(["extra_info"] if has_settings(batch.column("extra_info")).any() else [])]
        rows = batch.select(batch.schema.names if media.any() else needed)
        return cls(batch, earlier, media, rows if missing.all() else rows.filter(pa.array(missing)))


def media_counts(batch: pa.RecordBatch) -> np.ndarray:
    """How many media each row has, of all kinds, in its columns and in the parts of its messages."""
    total = np.zeros(batch.num_rows, dtype=np.int64)
    prompts = batch.column("prompt")
    # Arguments of a tool call may read like a part.
    for index in pc.indices_nonzero(pc.match_substring_regex(prompts, _MEDIA_PART)).to_pylist():
        parts = (part for _, part in media_parts(decode(prompts[index].as_py())))
        total[index] = sum(not is_bare(part) for part in parts)
    for name in MEDIA_COLUMNS:
        if name in batch.schema.names and batch.column(name).null_count < batch.num_rows:
            counts = pc.fill_null(pc.list_value_length(batch.column(name)), 0)
            total += counts.to_numpy(zero_copy_only=False)
    return total


class Texts(NamedTuple):
    """Rows whose text prompts are rendered and not yet encoded.

    Attributes:
        rows: the rows.
        plain: the positions of those without media, of which the next three are.
        prompts: their messages.
        tools: their own function schemas; None where no row has any.
        settings: their own settings of the chat template, of those that have any, by the row's position.
        texts: their text, empty for one that is refused.
        with_media: the positions of those that have media, which are still to be rendered.
        refused: the rows that have no prompt, by their position.
        lost: what texts lack of their rows, by the row's position.
    """

    rows: pa.RecordBatch
    plain: list[int]
    prompts: list[Any]
    tools: list[Any] | None
    settings: dict[int, dict[str, Any]]
    texts: list[str]
    with_media: list[int]
    refused: dict[int, Rendered]
    lost: dict[int, Sequence[Finding]]


def render_texts(renderer: PromptRenderer, rows: pa.RecordBatch) -> Texts:
    """Render the text prompts of `rows`: `prompt` and `extra_columns`; where a row has media, all columns."""
    with uncollected():
        return _render_texts(renderer, rows)


def _render_texts(renderer: PromptRenderer, rows: pa.RecordBatch) -> Texts:
    encoded = rows.column("prompt").cast(pa.binary()).to_pylist()
    tools = row_tools(rows.column("extra_columns"))
    whole = MEDIA_COLUMNS[0] in rows.schema.names  # else no row has media
    counts = media_counts(rows) if whole else np.zeros(rows.num_rows)
    with_media = np.flatnonzero(counts).tolist()
    settings, refused = _settings(renderer, rows)
    with_media = [index for index in with_media if index not in refused]
    aside = {*with_media, *refused}
    plain = [index for index in range(rows.num_rows) if index not in aside]
    prompts = [decode(encoded[index]) for index in plain]
    own = None if tools is None else [tools[index] for index in plain]
    texts, lost = [""] * len(plain), dict[int, Sequence[Finding]]()
    for alike, places in _by_settings(renderer, plain, settings):
        made, why, lacks = alike.texts([prompts[at] for at in places], own and [own[at] for at in places])
        for at, text in zip(places, made, strict=True):
            texts[at] = text
        refused |= {plain[places[index]]: problem for index, problem in why.items()}
        lost |= {plain[places[index]]: findings for index, findings in lacks.items()}
    return Texts(rows, plain, prompts, own, settings, texts, with_media, refused, lost)


def _by_settings(
    renderer: PromptRenderer, plain: list[int], settings: dict[int, dict[str, Any]]
) -> Iterator[tuple[PromptRenderer, Sequence[int]]]:
    """The renderers of rows by their settings, each with the places in `plain` of its rows."""
    if not settings:
        yield renderer, range(len(plain))
        return
    places: dict[str, list[int]] = {}
    for place, index in enumerate(plain):
        places.setdefault(canonical_json(settings.get(index)), []).append(place)
    for alike in places.values():
        yield renderer.with_settings(settings.get(plain[alike[0]])), alike


def _settings(
    renderer: PromptRenderer, rows: pa.RecordBatch
) -> tuple[dict[int, dict[str, Any]], dict[int, Rendered]]:
    """By position the rows' own settings of the chat template, and the rows that are refused for theirs."""
    settings, refused = {}, {}
    for index, found in row_settings(rows).items():
        try:
            if isinstance(found, Refused):
                raise found
            renderer.with_settings(found)
            settings[index] = found
        except Refused as why:
            refused[index] = Rendered(code=why.code, path=why.path, error=why.reason)
    return settings, refused


def encode_texts(renderer: PromptRenderer, made: Texts, least: int = 1) -> Measured:
    """Encode what was rendered, and render and encode the rows with media.

    Args:
        renderer: what rendered them.
        made: the rows.
        least: of a thousand text rows one, and no fewer than this of the batch, is held against transformers'
            own way.

    Raises:
        FastPathDiffersError: a row of the sample has other ids there.
    """
    encoded, empty = renderer.encode(made.texts)
    refused = {made.plain[index]: why for index, why in empty.items()} | made.refused
    if renderer.fast:
        _verify(renderer, made, encoded, max(least, len(made.prompts) // _ONE_IN))
    if len(made.plain) == made.rows.num_rows:
        return Measured(encoded, refused, made.lost)
    ids: list[Any] = [()] * made.rows.num_rows
    for index, found in zip(made.plain, encoded.split(), strict=True):
        ids[index] = found
    rendered, lost = _render_media(renderer, made.rows, made.with_media), dict(made.lost)
    for index, prompt in zip(made.with_media, rendered, strict=True):
        if prompt.ids is None:
            refused[index] = prompt
        else:
            ids[index] = prompt.ids
        if prompt.lost:
            lost[index] = prompt.lost
    return Measured(Encoded.of(ids), refused, lost)


def _verify(renderer: PromptRenderer, made: Texts, encoded: Encoded, sample: int) -> None:
    ends = np.cumsum(encoded.lengths)
    last = len(made.prompts) - 1
    for index in np.unique(np.linspace(0, last, sample).astype(int)) if made.prompts else ():
        if made.plain[index] not in made.refused:
            ids = encoded.ids[ends[index] - encoded.lengths[index] : ends[index]]
            alike = renderer.with_settings(made.settings.get(made.plain[index]))
            alike.verify(made.prompts[index], None if made.tools is None else made.tools[index], ids)


def measure(renderer: PromptRenderer, rows: pa.RecordBatch, least: int = 1) -> Measured:
    """Render and encode rows: `render_texts`, then `encode_texts`."""
    return encode_texts(renderer, render_texts(renderer, rows), least)


def _render_media(renderer: PromptRenderer, rows: pa.RecordBatch, indices: list[int]) -> list[Rendered]:
    if not indices:
        return []
    records = rows.take(pa.array(indices)).to_pylist()
    if renderer.media is not None:
        return renderer.media.render(
            [{**decode_row(record), "source_file": record["source_file"]} for record in records]
        )
    refused = []
    for record in records:
        column = next((column for column in MEDIA_COLUMNS if record[column]), "prompt")
        message = "the row has media, and the policy has no processor for them"
        refused.append(Rendered(error=message, code="render.media_unsupported", path=column))
    return refused


def measure_all(
    jobs: Iterable[Job], renderer: PromptRenderer, total: int, log: Log
) -> Iterator[tuple[Job, Measured]]:
    """Each job with what became of its rows, in the order of the jobs.

    Work begins in this process, where a batch is rendered while the one before is encoded. When the rows
    that are left would take so long that one process per core is faster, start-up included, they are
    spawned: batches go there and come back in order, a few of them at a time.

    Args:
        jobs: batches, and what is known of them.
        renderer: what makes a prompt of messages.
        total: rows of all jobs together.
        log: told when processes are started.
    """
    jobs = iter(jobs)
    if (first := next(jobs, None)) is None:
        return
    # Not timed: it makes what all others use, and has the larger sample.
    yield first, measure(renderer, first.todo, _FIRST_SAMPLE)
    left = total - first.batch.num_rows
    spent, timed, workers = 0.0, 0, 0

    def rendered() -> Iterator[tuple[Job, Texts]]:
        while not workers and (job := next(jobs, None)) is not None:
            yield job, render_texts(renderer, job.todo)

    start = time.perf_counter()
    for job, texts in ahead(rendered()):
        measured = encode_texts(renderer, texts)
        spent += time.perf_counter() - start
        timed += job.batch.num_rows
        left -= job.batch.num_rows
        yield job, measured
        if not workers and _can_move(renderer):
            workers = _worth_starting(spent, spent / timed * left)
        start = time.perf_counter()
    if workers and left > 0:
        log(f"length gate: {workers} processes render the other {left:,} rows")
        yield from measure_in_processes(jobs, renderer, workers, log)


def _worth_starting(spent: float, left: float) -> int:
    """How many processes to start after `spent` seconds with about `left` to go; 0 where one is as fast."""
    if os.environ.get(CLUSTER):
        return cores()
    saved = left * (1 - 1 / cores())
    return cores() if spent > _TIMED and saved > 2 * _POOL_START else 0


def _can_move(renderer: PromptRenderer) -> bool:
    """Whether another process can have the renderer: code of the policy's own is not importable there."""
    return not any(
        type(part).__module__.startswith("transformers_modules")
        for part in (renderer.tokenizer, getattr(renderer.media, "processor", None))
    )


def measure_in_processes(
    jobs: Iterable[Job], renderer: PromptRenderer, workers: int, log: Log
) -> Iterator[tuple[Job, Measured]]:
    """As `measure_all`, in `workers` processes (or on the Ray cluster) from the first job on."""
    under_way: deque[Job] = deque()

    def rows() -> Iterator[pa.RecordBatch]:
        for job in jobs:
            under_way.append(job)
            yield job.todo

    for measured in spread(partial(_measuring, renderer), rows(), ["cpu"] * workers, log):
        yield under_way.popleft(), measured


@contextmanager
def _measuring(
    renderer: PromptRenderer, place: str, log: Log
) -> Iterator[Callable[[pa.RecordBatch], Measured]]:
    yield partial(measure, renderer)
