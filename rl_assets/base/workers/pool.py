"""What the workers of one machine and those of a cluster share: order, threads, one setup each."""

import contextlib
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from rl_assets.base.progress import Log

Item = TypeVar("Item")
Task = TypeVar("Task")
Result = TypeVar("Result")
Setup = Callable[[str, Log], contextlib.AbstractContextManager[Callable[[Task], Result]]]

CLUSTER = "RL_ASSETS_RAY_ADDRESS"
"""Environment variable with the address of a Ray cluster, as `ray.init` takes it (`auto`, `HOST:PORT`)."""

AUTO = "auto"
"""The place of work that is decided by what the cluster has: its GPUs, or else its CPUs."""

AHEAD = 2
"""Tasks that wait at each worker while it is at work."""

_END: Any = object()


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_of_own() -> int:
    """Threads that may work at a time in this process: its share of the cores where it is one worker of
    several (see `limit_threads`), or what OMP_NUM_THREADS says."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return int(limit) if limit.isdecimal() and int(limit) else cores()


def ahead(items: "Iterator[Item]") -> "Iterator[Item]":
    """The same items, the next two of which are made by a thread while one is worked on."""
    with ThreadPoolExecutor(1) as thread:
        coming = deque(thread.submit(next, items, _END) for _ in range(AHEAD))
        while (item := coming.popleft().result()) is not _END:
            coming.append(thread.submit(next, items, _END))
            yield item


def in_order(
    submit: "Callable[[Task], Future[Result]]", tasks: Iterable[Task], workers: int
) -> Iterator[Result]:
    """Results of submitted tasks in their order; a few more than there are workers are under way."""
    waiting: deque[Future[Result]] = deque()
    for task in tasks:
        waiting.append(submit(task))
        if len(waiting) > AHEAD * workers:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def limit_threads(threads: int) -> None:
    """Keep this process to its share of the cores.

    Threads of one worker that wait for threads of another cost more than they bring.
    """
    for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ[name] = str(threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "false" if threads == 1 else "true"
    if torch := sys.modules.get("torch"):  # it has read its variable already
        torch.set_num_threads(threads)


class Worker:
    """What one worker process keeps from task to task.

    It is set up with the first task, not before, so that what goes wrong there is raised to the caller.
    """

    def __init__(self, setup: Any, place: str, log: Log) -> None:
        self._setup, self._place, self._log = setup, place, log
        self._held = contextlib.ExitStack()
        self._work: Callable[[Any], Any] | None = None

    def do(self, task: Any) -> Any:
        """Do a task."""
        if self._work is None:
            self._work = self._held.enter_context(self._setup(self._place, self._log))
        return self._work(task)
