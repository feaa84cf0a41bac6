"""Tasks spread over a Ray cluster (`pip install -e '.[ray]'`)."""

import contextlib
import queue
import socket
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Any

from rl_assets.base.progress import Log
from rl_assets.base.workers.pool import AHEAD, AUTO, CLUSTER, Worker, in_order, limit_threads
from rl_assets.errors import InputError, first_line

_RESTARTS = 3
"""How often a worker that was lost is started again, before the loss is the caller's error."""

_POLL = 0.5


def spread_on_ray(address: str, setup: Any, tasks: Iterable[Any], place: str, log: Log) -> Iterator[Any]:
    """As `rl_assets.base.workers.pool.spread`, with one Ray actor per GPU or CPU of the cluster.

    An actor that is lost with its node or process is started again elsewhere, and its task is done again.

    Args:
        address: of the cluster, as `ray.init` takes it.
        setup: gives the function that does a task.
        tasks: what is to be done.
        place: a CUDA device asks for a GPU per actor, which it then sees as its only one; ``auto`` does so
            where the cluster has any.
        log: receives the lines of all workers.

    Raises:
        InputError: Ray is not installed, no cluster answers, or it has no GPU where one is asked for.
        ray.exceptions.ActorDiedError: a worker was lost more than `_RESTARTS` times.
    """
    ray = _connected(address)
    has = ray.cluster_resources()
    gpu = place.startswith("cuda") or (place == AUTO and has.get("GPU", 0) >= 1)
    count = int(has.get("GPU" if gpu else "CPU", 0))
    if not count:
        raise InputError(
            field=CLUSTER,
            found=f"a cluster without a {'GPU' if gpu else 'CPU'} ({address})",
            expected="one worker at least",
            remedy="Add a node, or set policy.device to cpu.",
        )
    from ray.util.queue import Queue

    lines = Queue(actor_options={"num_cpus": 0})
    remote = ray.remote(_Actor).options(
        # A task is done again as long as its actor is: that an actor is on its way back is no failed try.
        num_cpus=1,
        num_gpus=1 if gpu else 0,
        max_restarts=_RESTARTS,
        max_task_retries=-1,
    )
    log(f"ray: {count} workers at {address}")
    # Held until the end: Ray may let go of a large argument that nobody holds, and an actor that is started
    # again needs it again.
    held = ray.put(setup)
    actors = [remote.remote(held, "cuda:0" if gpu else "cpu", f"ray {n}", lines) for n in range(count)]
    # A queue: a result may be taken before its callback has given the actor back.
    free: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for actor in actors * (AHEAD + 1):
        free.put(actor)

    def submit(task: Any) -> "Future[Any]":
        actor = free.get()
        future = actor.do.remote(task).future()
        future.add_done_callback(lambda _: free.put(actor))
        return future

    with _relayed(lines, log):
        try:
            yield from in_order(submit, tasks, count)
        except ray.exceptions.RayTaskError as error:
            # The worker's own exception, so that an InputError reads as it would on one machine.
            raise error.cause from None
        finally:
            for actor in actors:
                ray.kill(actor)


def _connected(address: str) -> Any:
    try:
        import ray
    except ImportError as error:
        raise InputError(
            field=CLUSTER,
            found=f"{address!r}, and Ray is not installed",
            expected="the package ray",
            remedy="pip install -e '.[ray]', or unset the variable.",
        ) from error
    if not ray.is_initialized():
        try:
            _knock(address)
            ray.init(address, log_to_driver=False, configure_logging=False, namespace="rl_assets")
        except (OSError, RuntimeError, ValueError) as error:
            raise InputError(
                field=CLUSTER,
                found=f"no Ray cluster at {address!r} ({first_line(error)})",
                expected="the address of a running cluster",
                remedy="Start one (`ray start --head`), or unset the variable.",
            ) from error
    return ray


def _knock(address: str) -> None:
    """Raise OSError where nobody listens at HOST:PORT: Ray itself would go on trying for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()


@contextlib.contextmanager
def _relayed(lines: Any, log: Log) -> Iterator[None]:
    """Hand the workers' lines to `log` for as long as the block runs."""
    over = threading.Event()

    def relay() -> None:
        while not over.wait(_POLL):
            for line in lines.get_nowait_batch(lines.qsize()):
                log(line)

    listener = threading.Thread(target=relay, daemon=True)
    listener.start()
    try:
        yield
    finally:
        over.set()
        listener.join()
        for line in lines.get_nowait_batch(lines.qsize()):
            log(line)
        lines.shutdown()


class _Actor:
    """A worker as an actor. Ray gives it one core, so it computes on one thread."""

    def __init__(self, setup: Any, place: str, name: str, lines: Any) -> None:
        limit_threads(1)
        self._worker = Worker(setup, place, lambda line: lines.put(f"[{name}] {line}"))

    def do(self, task: Any) -> Any:
        return self._worker.do(task)
