"""Every response scored, in worker processes that can be ended one sample at a time."""

import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from multiprocessing import get_context
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pyarrow as pa

from rl_assets.contract.options import RESERVED_PREFIX
from rl_assets.errors import InputError
from rl_assets.progress import Log, Progress
from rl_assets.rewards.function import RewardFunction, Scored, call
from rl_assets.rewards.inputs import REWARD_INPUT_SCHEMA
from rl_assets.store import Table, TableWriter
from rl_assets.workers import CLUSTER, cores, spread

SCORE_SCHEMA = REWARD_INPUT_SCHEMA.append(pa.field("score", pa.float64())).append(
    pa.field("error", pa.string())
)
"""The columns that every table of scores has: the reward inputs, the score (null where there is none) and
why there is none. What a dict result holds besides its score follows, a column for each of its keys."""

_LONGEST_ERROR = 500
_LOAD_SECONDS = 120.0
_WATCH_SECONDS = 0.05
_WAITING_PER_WORKER = 64
_BATCH_ROWS = 1024
_CLUSTER_ROWS = 8192
"""Responses of a task on a cluster: so many that the start of a pool does not count."""

Sample = tuple[str, str, Any, Any]
"""data_source, solution_str, ground_truth, extra_info."""


@dataclass(frozen=True)
class ScorePool:
    """How responses are scored: by which function, in how many processes, for how long each.

    Attributes:
        function: the reward function; it is loaded in the worker processes only.
        timeout: seconds that one response may take; then its process is ended, and another starts.
        workers: worker processes; None takes one per core, at most 8.
    """

    function: RewardFunction
    timeout: float = 10.0
    workers: int | None = None

    def require_loadable(self) -> None:
        """Load the function in a process of its own, and score nothing.

        Raises:
            InputError: the function cannot be loaded.
        """
        list(replace(self, workers=1).score([]))

    def score(self, samples: Iterable[Sample]) -> Iterator[Scored]:
        """One result per sample, in order. A sample that hangs, or that ends its process, costs itself only.

        Raises:
            InputError: the function cannot be loaded.
        """
        from pebble import ProcessPool

        workers = self.workers or min(cores(), 8)
        with ProcessPool(
            max_workers=workers,
            context=get_context("spawn"),
            initializer=_start_worker,
            initargs=(self.function,),
        ) as pool:
            waiting: deque[Future[Scored]] = deque()
            ended = Event()
            Thread(target=self._watch, args=(waiting, ended), daemon=True).start()
            try:
                self._require_loaded(pool.schedule(_refusal))
                for sample in samples:
                    waiting.append(pool.schedule(_score, args=sample))
                    if len(waiting) > workers * _WAITING_PER_WORKER:
                        yield self._result(waiting[0])
                        waiting.popleft()
                while waiting:
                    yield self._result(waiting[0])
                    waiting.popleft()
            finally:
                ended.set()
                pool.stop()

    def _require_loaded(self, loading: "Future[dict[str, Any] | None]") -> None:
        from pebble import ProcessExpired

        try:
            refusal = loading.result(_LOAD_SECONDS)
        except (TimeoutError, ProcessExpired, BrokenExecutor) as error:
            raise InputError(
                file=self.function.path,
                field="reward.custom_reward_function.path",
                found=f"code that ends its process or takes longer than {_LOAD_SECONDS:g} s "
                f"({type(error).__name__})",
                expected="a module that can be imported",
                remedy="Let the file define the function, and start nothing when it is imported.",
            ) from None
        if refusal is not None:
            raise InputError(**refusal)

    def _watch(self, waiting: "deque[Future[Scored]]", ended: Event) -> None:
        """Cancel every sample that takes too long; pebble's own limits go by a clock that can be set."""
        begun: dict[Future[Scored], float] = {}
        while not ended.wait(_WATCH_SECONDS):
            running = [future for future in tuple(waiting) if future.running()]
            begun = {future: begun.get(future, time.monotonic()) for future in running}
            for future, since in begun.items():
                if time.monotonic() - since > self.timeout:
                    future.cancel()

    def _result(self, future: "Future[Scored]") -> Scored:
        from pebble import ProcessExpired

        try:
            return future.result()
        except CancelledError:
            return Scored(error=f"timeout: no score within {self.timeout:g} s")
        except ProcessExpired as error:
            return Scored(error=f"died: the scoring process ended with exit code {error.exitcode}")


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
                row["error"] = result.error and result.error[:_LONGEST_ERROR]
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


# What follows runs in a worker process.

_function: Callable[..., Any]
_kwargs: dict[str, Any]
_load_error: InputError | None = None


def _start_worker(function: RewardFunction) -> None:
    global _function, _kwargs, _load_error
    # math-verify warns when its own time limits are off; here the process is the limit.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    _kwargs = dict(function.kwargs)
    try:
        _function = function.load()
    except InputError as error:
        _load_error = error


def _refusal() -> dict[str, Any] | None:
    return None if _load_error is None else vars(_load_error)


def _score(data_source: str, solution: str, ground_truth: str, extra_info: str) -> Scored:
    # Values travel as JSON text: each call has its own, whatever the function does to them.
    return call(_function, _kwargs, data_source, solution, json.loads(ground_truth), json.loads(extra_info))
