"""Responses scored in worker processes, each of which costs only the response that it is at."""

import contextlib
import json
import selectors
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from rl_assets.base.workers.pool import cores
from rl_assets.errors import InputError
from rl_assets.rewards.function import RewardFunction
from rl_assets.rewards.hidden import Hidden
from rl_assets.rewards.isolated import Isolated
from rl_assets.rewards.outcome import Scored
from rl_assets.rewards.worker import TARGET, described, read

_LOAD_SECONDS = 120.0
_DYING_SECONDS = 1.0
_MOST_WORKERS = 8
_WAITING_PER_WORKER = 64
_LARGEST_ANSWER = 16 << 20

Sample = tuple[str, str, str, str]
"""data_source, solution_str, and ground_truth and extra_info as JSON text."""


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
        """One result per sample, in order. A sample that hangs, or that ends its process, costs itself only,
        and what its process started ends with it.

        Raises:
            InputError: the function cannot be loaded.
        """
        crew = _Crew(self, self.workers or min(cores(), _MOST_WORKERS))
        try:
            yield from crew.score(samples)
        finally:
            crew.end()


@dataclass
class _Task:
    """A sample under way.

    Attributes:
        number: its place in the order of the results.
        message: the sample, as it is sent.
        again: whether it failed once in a process that was not as it was when it started.
    """

    number: int
    message: bytes
    again: bool = False


class _Worker:
    """A worker process.

    Attributes:
        loaded: whether it has loaded the function.
        left_threads: whether an earlier sample left threads in it.
        task: what it is at, or will be at when it has loaded.
        begun: when it began with that, or with loading.
    """

    def __init__(self, function: RewardFunction, task: _Task | None) -> None:
        self.process = Isolated(TARGET, described(function), Hidden(function.kwargs).message)
        self.loaded = self.left_threads = False
        self.task = task
        self.begun = time.monotonic()

    def give(self, task: _Task) -> None:
        """Send a sample; where the process is gone, reading its answer says so."""
        self.task = task
        with contextlib.suppress(OSError):
            self.process.connection.send_bytes(task.message)
        self.begun = time.monotonic()


class _Crew:
    """The workers of a pool, the samples that they are at, and the results that wait for their turn."""

    def __init__(self, pool: ScorePool, size: int) -> None:
        self._pool = pool
        self._selector = selectors.DefaultSelector()
        self._workers: list[_Worker] = []
        self._ended: list[Isolated] = []
        self._done: dict[int, Scored] = {}
        self._most_waiting = size * _WAITING_PER_WORKER
        for _ in range(size):
            self._start()

    def score(self, samples: Iterable[Sample]) -> Iterator[Scored]:
        while not any(worker.loaded for worker in self._workers):
            self._wait()
        coming = enumerate(samples)
        more, given, turn = True, 0, 0
        while True:
            while more and given - turn < self._most_waiting and (worker := self._free()):
                if more := (sample := next(coming, None)) is not None:
                    worker.give(_Task(sample[0], json.dumps(sample[1]).encode()))
                    given += 1
            if turn in self._done:
                yield self._done.pop(turn)
                turn += 1
            elif given > turn or more:
                self._wait()
            else:
                return

    def end(self) -> None:
        """End all workers, and wait until what they started is gone."""
        for worker in self._workers:
            worker.process.end()
        for process in [*(worker.process for worker in self._workers), *self._ended]:
            process.wait()
        self._selector.close()

    def _start(self, task: _Task | None = None) -> None:
        worker = _Worker(self._pool.function, task)
        self._selector.register(worker.process.connection, selectors.EVENT_READ, worker)
        self._workers.append(worker)

    def _free(self) -> _Worker | None:
        return next((one for one in self._workers if one.loaded and one.task is None), None)

    def _wait(self) -> None:
        """Until a worker has something to say, or one is late."""
        due = min(self._due(worker) for worker in self._workers)
        heard = self._selector.select(max(0.0, due - time.monotonic()))
        for key, _ in heard:
            self._hear(key.data)
        if not heard:
            for worker in [one for one in self._workers if self._due(one) <= time.monotonic()]:
                if worker.process.connection.poll(0):
                    self._hear(worker)
                else:
                    self._late(worker)

    def _due(self, worker: _Worker) -> float:
        if not worker.loaded:
            return worker.begun + _LOAD_SECONDS
        return worker.begun + self._pool.timeout if worker.task else float("inf")

    def _hear(self, worker: _Worker) -> None:
        try:
            message = worker.process.connection.recv_bytes(_LARGEST_ANSWER)
            heard: Any = read(message) if worker.loaded else json.loads(message)
        except (EOFError, OSError, ValueError):  # it is gone, or something else was written to the connection
            self._gone(worker)
            return
        if not worker.loaded:
            self._loaded(worker, heard)
        elif worker.task is not None:
            scored, left_threads = heard
            self._done[worker.task.number] = scored
            worker.task = None
            worker.left_threads |= left_threads

    def _loaded(self, worker: _Worker, refusal: dict[str, Any] | None) -> None:
        if refusal is not None:
            raise InputError(**refusal)
        worker.loaded = True
        if worker.task:
            worker.give(worker.task)

    def _late(self, worker: _Worker) -> None:
        if not worker.loaded:
            raise self._unloadable(f"takes longer than {_LOAD_SECONDS:g} s to load")
        self._replace(worker, f"timeout: no score within {self._pool.timeout:g} s")

    def _gone(self, worker: _Worker) -> None:
        code = worker.process.wait(_DYING_SECONDS)
        how = "closed its connection" if code is None else f"ended with exit code {code}"
        if not worker.loaded:
            raise self._unloadable(f"ends its process (it {how})")
        self._replace(worker, f"died: the scoring process {how}")

    def _replace(self, worker: _Worker, error: str) -> None:
        """Another worker in place of one that failed at its sample."""
        self._workers.remove(worker)
        self._selector.unregister(worker.process.connection)
        worker.process.end()
        self._ended = [process for process in self._ended if process.running()] + [worker.process]
        task, retried = worker.task, None
        if task is not None:
            if worker.left_threads and not task.again:
                retried = replace(task, again=True)
            else:
                self._done[task.number] = Scored(error=error)
        self._start(retried)

    def _unloadable(self, found: str) -> InputError:
        return InputError(
            file=self._pool.function.path,
            field="reward.custom_reward_function.path",
            found=f"code that {found}",
            expected="a module that can be imported",
            remedy="Let the file define the function, and start nothing when it is imported.",
        )
