"""Tasks spread over processes of this machine."""

import multiprocessing
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from rl_assets.base.progress import Log
from rl_assets.base.workers.pool import Result, Setup, Task, Worker, cores, in_order, limit_threads


def spread_here(
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


# What follows runs in a worker process of this machine.

_worker: Worker


def _start_worker(setup: Any, free: Any, lines: Any, threads: int) -> None:
    global _worker
    limit_threads(threads)
    place = free.get()
    _worker = Worker(setup, place, lambda line: lines.put(f"[{place}] {line}"))


def _do(task: Any) -> Any:
    return _worker.do(task)
