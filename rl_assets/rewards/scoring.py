"""The table of scores: every response with its score, or the reason why it has none."""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from rl_assets.base.progress import Log, Progress
from rl_assets.base.tables import Table, TableWriter
from rl_assets.base.workers.pool import CLUSTER
from rl_assets.base.workers.spread import spread
from rl_assets.contract.rules.options import RESERVED_PREFIX
from rl_assets.rewards.inputs import REWARD_INPUT_SCHEMA
from rl_assets.rewards.outcome import Scored
from rl_assets.rewards.pool import Sample, ScorePool

SCORE_SCHEMA = REWARD_INPUT_SCHEMA.append(pa.field("score", pa.float64())).append(
    pa.field("error", pa.string())
)
"""The columns that every table of scores has: the reward inputs, the score (null where there is none) and
why there is none. What a dict result holds besides its score follows, a column for each of its keys."""

MOST_KEYS = 64
"""Keys of dict results that become columns: the first that are seen."""

FURTHER = "further_keys"
"""The column with what has no column of its own, as JSON text; null where there is nothing."""

_BATCH_ROWS = 1024
_LONGEST_NAME = 100
_LARGEST_EXACT = 1 << 53
_CLUSTER_ROWS = 8192
"""Responses of a task on a cluster: so many that the start of a pool does not count."""


def score_table(inputs: Table, pool: ScorePool, *, folder: Path, log: Log) -> Table:
    """The table of reward inputs with a score, or the reason why there is none, on every row.

    A key of a dict result becomes a column: a typed one where all its values are booleans, whole numbers,
    numbers or text, JSON text otherwise; null where a result lacks it. A key that is a column already gets
    the prefix `user_`. Where results have more than `MOST_KEYS` keys, or keys that are no names (longer than
    100 characters, or not printable), these are kept in the one column `further_keys`.

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
    further = False
    with TableWriter(folder / "scored.parquet", schema) as scored:
        results = _results(pool, map(_sample, inputs.rows(size=_BATCH_ROWS)), log)
        for batch in inputs.batches(size=_BATCH_ROWS):
            rows = batch.to_pylist()
            for row, result in zip(rows, results, strict=False):
                for key, value in result.extra.items():
                    if key in kinds or (len(kinds) < MOST_KEYS and _is_name(key)):
                        kinds.setdefault(key, set()).add(_kind(value))
                    else:
                        further = True
                row["score"] = result.score
                row["error"] = result.error
                row["$extra"] = json.dumps(dict(result.extra))
                progress.add(1)
            scored.write_rows(rows)
    progress.close()
    if further:
        log(f"scores: results have more keys than {len(kinds)} columns; the others are in `{FURTHER}`")
    return _widen(scored.table, kinds, further, folder)


def _results(pool: ScorePool, samples: Iterable[Sample], log: Log) -> Iterator[Scored]:
    """One result per sample, in order, from a pool here or from one at every worker of the cluster."""
    if not os.environ.get(CLUSTER):
        return pool.score(samples)
    chunks = iter(partial(lambda rows: list(islice(rows, _CLUSTER_ROWS)), iter(samples)), [])
    return chain.from_iterable(spread(partial(_scoring, replace(pool, workers=1)), chunks, ["cpu"], log))


@contextmanager
def _scoring(pool: ScorePool, place: str, log: Log) -> Iterator[Callable[[list[Sample]], list[Scored]]]:
    yield lambda samples: list(pool.score(samples))


def _widen(scored: Table, kinds: dict[str, set[type]], further: bool, folder: Path) -> Table:
    """The table with a column for each key of the dict results in place of their JSON text."""
    names = _names(kinds)
    columns = {key: (names[key], *_column(kinds[key])) for key in sorted(kinds)}
    schema = SCORE_SCHEMA
    for name, kind, _ in columns.values():
        schema = schema.append(pa.field(name, kind))
    if further:
        schema = schema.append(pa.field(FURTHER, pa.string()))
    with TableWriter(folder / "reward_scores.parquet", schema) as writer:
        for batch in scored.batches(size=_BATCH_ROWS):
            rows = batch.to_pylist()
            for row in rows:
                others = {}
                for key, value in json.loads(row.pop("$extra")).items():
                    if key not in columns:
                        others[key] = value
                    elif value is not None:
                        name, _, convert = columns[key]
                        row[name] = convert(value)
                if others:
                    row[FURTHER] = json.dumps(others)
            writer.write_rows(rows)
    return writer.table


def _names(keys: Iterable[str]) -> dict[str, str]:
    """Name of the column of each key: its own, or with a prefix where that is another column's."""
    taken = {*SCORE_SCHEMA.names, FURTHER, *keys}
    names = {}
    for key in sorted(keys):
        name = key
        while name in taken and (name != key or key in (*SCORE_SCHEMA.names, FURTHER)):
            name = f"{RESERVED_PREFIX}{name}"
        taken.add(name)
        names[key] = name
    return names


def _is_name(key: str) -> bool:
    return 0 < len(key) <= _LONGEST_NAME and key.isprintable()


def _kind(value: Any) -> type:
    """The type of a value; that of a whole number which a float does not hold exactly is Decimal."""
    return Decimal if type(value) is int and abs(value) > _LARGEST_EXACT else type(value)


def _column(found: set[type]) -> tuple[pa.DataType, Callable[[Any], Any]]:
    """Arrow type of a column whose values have the kinds `found`, and what makes a value of it."""
    kinds = found - {type(None)}
    if kinds == {bool}:
        return pa.bool_(), bool
    if kinds and kinds <= {int, Decimal}:
        return pa.int64(), int
    if kinds and kinds <= {bool, int, float}:
        return pa.float64(), float
    if kinds == {str}:
        return pa.string(), str
    return pa.string(), json.dumps


def _sample(row: dict[str, Any]) -> Sample:
    return row["data_source"], row["solution_str"], row["ground_truth"], row["extra_info"]
