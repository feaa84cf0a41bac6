"""Tasks spread over devices: in this process where there is one device, else in one process per device."""

import contextlib
import multiprocessing
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

import torch

from rl_assets.progress import Log

Task = TypeVar("Task")
Result = TypeVar("Result")
Setup = Callable[[str, Log], contextlib.AbstractContextManager[Callable[[Task], Result]]]


def spread(
    setup: "Setup[Task, Result]", tasks: Sequence[Task], devices: Sequence[str], log: Log
) -> Iterator[Result]:
    """Results of the tasks, in their order, as they become ready.

    Args:
        setup: called once per device with the device and a log; a context manager that gives the function
            which does a task. With several devices it, the tasks and the results are pickled.
        tasks: what is to be done.
        devices: a torch device each; further ones than there are tasks stay idle.
        log: receives the lines of all workers.

    Raises:
        BrokenProcessPool: a worker was killed.
    """
    devices = devices[: len(tasks)]
    if len(devices) <= 1:
        for device in devices:
            with setup(device, log) as work:
                yield from map(work, tasks)
        return
    # Spawned, not forked: CUDA does not survive a fork.
    context = multiprocessing.get_context("spawn")
    free, lines = context.SimpleQueue(), context.SimpleQueue()
    for device in devices:
        free.put(device)
    threads = max(1, torch.get_num_threads() // len(devices))
    listener = threading.Thread(target=_relay, args=(lines, log), daemon=True)
    listener.start()
    pool = ProcessPoolExecutor(
        len(devices), mp_context=context, initializer=_start_worker, initargs=(setup, free, lines, threads)
    )
    try:
        yield from pool.map(_do, tasks)
    finally:
        pool.shutdown(cancel_futures=True)
        lines.put(None)
        listener.join()


class _Worker:
    """What one worker process keeps from task to task.

    It is set up with the first task, not before, so that what goes wrong there is raised to the caller.
    """

    held = contextlib.ExitStack()
    setup: Any = None
    device = ""
    log: Log
    work: Callable[[Any], Any] | None = None


def _start_worker(setup: Any, free: Any, lines: Any, threads: int) -> None:
    # Workers share the cores: threads of one that wait for threads of another cost more than they bring.
    torch.set_num_threads(threads)
    _Worker.setup, _Worker.device = setup, free.get()
    _Worker.log = lambda line: lines.put(f"[{_Worker.device}] {line}")


def _do(task: Any) -> Any:
    if _Worker.work is None:
        _Worker.work = _Worker.held.enter_context(_Worker.setup(_Worker.device, _Worker.log))
    return _Worker.work(task)


def _relay(lines: Any, log: Log) -> None:
    while (line := lines.get()) is not None:
        log(line)
