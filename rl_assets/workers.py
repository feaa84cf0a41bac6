"""Tasks spread over processes: of this machine, or of a Ray cluster where one is named.

What a worker holds between tasks (a loaded policy, a renderer) is made once by a setup, in the worker. Tasks
are taken as they are needed and results come in the order of their tasks, so a stream of batches is never
held whole, and what is written from the results does not depend on how many workers there were.
"""

import contextlib
import itertools
import multiprocessing
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any, TypeVar

from rl_assets.progress import Log

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


def spread(
    setup: "Setup[Task, Result]", tasks: Iterable[Task], places: Sequence[str], log: Log
) -> Iterator[Result]:
    """Results of the tasks, in their order, as they become ready.

    Args:
        setup: called once per worker with its place and a log; a context manager that gives the function
            which does a task. Where there are several workers it, the tasks and the results are pickled.
        tasks: what is to be done.
        places: where to work, such as torch devices: one worker each. One place is this process itself. On
            a Ray cluster there is a worker for every GPU where the first place is a CUDA device (or ``auto``
            and there are GPUs), and for every CPU otherwise.
        log: receives the lines of all workers.

    Raises:
        BrokenProcessPool: a worker of this machine was killed. (On Ray its task is done again elsewhere.)
    """
    tasks = iter(tasks)
    if (first := next(tasks, None)) is None:
        return
    tasks = itertools.chain([first], tasks)
    if address := os.environ.get(CLUSTER):
        from rl_assets.ray_workers import spread_on_ray

        yield from spread_on_ray(address, setup, tasks, places[0], log)
    elif len(places) == 1:
        with setup(places[0], log) as work:
            yield from map(work, tasks)
    else:
        yield from _spread_here(setup, tasks, places, log)


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


def _spread_here(
    setup: "Setup[Task, Result]", tasks: Iterable[Task], places: Sequence[str], log: Log
) -> Iterator[Result]:
    # Spawned, not forked: CUDA does not survive a fork.
    context = multiprocessing.get_context("spawn")
    free, lines = context.SimpleQueue(), context.SimpleQueue()
    for place in places:
        free.put(place)
    threads = max(1, cores() // len(places))
    listener = threading.Thread(target=_relay, args=(lines, log), daemon=True)
    listener.start()
    pool = ProcessPoolExecutor(
        len(places), mp_context=context, initializer=_start_worker, initargs=(setup, free, lines, threads)
    )
    try:
        yield from in_order(lambda task: pool.submit(_do, task), tasks, len(places))
    finally:
        pool.shutdown(cancel_futures=True)
        lines.put(None)
        listener.join()


def _relay(lines: Any, log: Log) -> None:
    while (line := lines.get()) is not None:
        log(line)


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


# What follows runs in a worker process of this machine.

_worker: Worker


def _start_worker(setup: Any, free: Any, lines: Any, threads: int) -> None:
    global _worker
    limit_threads(threads)
    place = free.get()
    _worker = Worker(setup, place, lambda line: lines.put(f"[{place}] {line}"))


def _do(task: Any) -> Any:
    return _worker.do(task)
