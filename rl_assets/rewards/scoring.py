"""The table of scores: every response with its score, or the reason why it has none."""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from rl_assets.contract.options import RESERVED_PREFIX
from rl_assets.progress import Log, Progress
from rl_assets.rewards.inputs import REWARD_INPUT_SCHEMA
from rl_assets.rewards.outcome import Scored
from rl_assets.rewards.pool import Sample, ScorePool
from rl_assets.store import Table, TableWriter
from rl_assets.workers import CLUSTER, spread

SCORE_SCHEMA = REWARD_INPUT_SCHEMA.append(pa.field("score", pa.float64())).append(
    pa.field("error", pa.string())
)
"""The columns that every table of scores has: the reward inputs, the score (null where there is none) and
why there is none. What a dict result holds besides its score follows, a column for each of its keys."""

_BATCH_ROWS = 1024
_CLUSTER_ROWS = 8192
"""Responses of a task on a cluster: so many that the start of a pool does not count."""


def score_table(inputs: Table, pool: ScorePool, *, folder: Path, log: Log) -> Table:
    """The table of reward inputs with a score, or the reason why there is none, on every row.

    A key of a dict result becomes a column: a typed one where all its values are booleans, whole numbers,
    numbers or text, JSON text otherwise; null where a result lacks it. A key that is a column already gets
    the prefix `user_`.

    Args:
        inputs: the reward inputs (`REWARD_INPUT_SCHEMA`).
        pool: how they are scored.
        folder: where the table is written.
        log: receives progress lines.

    Raises:
        InputError: the reward function cannot be loaded.
    """
    progress = Progress(log, "scores", inputs.num_rows, "responses")
    schema = SCORE_SCHEMA.append(pa.field("$extra", pa.string()))
    kinds: dict[str, set[type]] = {}
    with TableWriter(folder / "scored.parquet", schema) as scored:
        results = _results(pool, map(_sample, inputs.rows(size=_BATCH_ROWS)), log)
        for batch in inputs.batches(size=_BATCH_ROWS):
            rows = batch.to_pylist()
            for row, result in zip(rows, results, strict=False):
                for key, value in result.extra.items():
                    kinds.setdefault(key, set()).add(type(value))
                row["score"] = result.score
                row["error"] = result.error
                row["$extra"] = json.dumps(dict(result.extra))
                progress.add(1)
            scored.write_rows(rows)
    progress.close()
    return _widen(scored.table, kinds, folder)


def _results(pool: ScorePool, samples: Iterable[Sample], log: Log) -> Iterator[Scored]:
    """One result per sample, in order, from a pool here or from one at every worker of the cluster."""
    if not os.environ.get(CLUSTER):
        return pool.score(samples)
    chunks = iter(partial(lambda rows: list(islice(rows, _CLUSTER_ROWS)), iter(samples)), [])
    return chain.from_iterable(spread(partial(_scoring, replace(pool, workers=1)), chunks, ["cpu"], log))


@contextmanager
def _scoring(pool: ScorePool, place: str, log: Log) -> Iterator[Callable[[list[Sample]], list[Scored]]]:
    yield lambda samples: list(pool.score(samples))


def _widen(scored: Table, kinds: dict[str, set[type]], folder: Path) -> Table:
    """The table with a column for each key of the dict results in place of their JSON text."""
    columns = {
        key: (f"{RESERVED_PREFIX}{key}" if key in SCORE_SCHEMA.names else key, *_column(found))
        for key, found in sorted(kinds.items())
    }
    schema = SCORE_SCHEMA
    for name, kind, _ in columns.values():
        schema = schema.append(pa.field(name, kind))
    with TableWriter(folder / "reward_scores.parquet", schema) as writer:
        for batch in scored.batches(size=_BATCH_ROWS):
            rows = batch.to_pylist()
            for row in rows:
                for key, value in json.loads(row.pop("$extra")).items():
                    name, _, convert = columns[key]
                    row[name] = None if value is None else convert(value)
            writer.write_rows(rows)
    return writer.table


def _column(found: set[type]) -> tuple[pa.DataType, Callable[[Any], Any]]:
    """Arrow type of a column whose values have the types `found`, and what makes a value of it."""
    types = found - {type(None)}
    if types == {bool}:
        return pa.bool_(), bool
    if types == {int}:
        return pa.int64(), int
    if types and types <= {bool, int, float}:
        return pa.float64(), float
    if types == {str}:
        return pa.string(), str
    return pa.string(), json.dumps


def _sample(row: dict[str, Any]) -> Sample:
    return row["data_source"], row["solution_str"], row["ground_truth"], row["extra_info"]
