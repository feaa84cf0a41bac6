"""Work spread over processes: in order, with nothing lost, and with errors that reach the caller."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from rl_assets.base.progress import Log
from rl_assets.base.workers.pool import AHEAD, ahead
from rl_assets.base.workers.ray import spread_on_ray
from rl_assets.base.workers.spread import spread
from rl_assets.errors import InputError


@contextmanager
def halver(device: str, log: Log) -> Iterator[Callable[[int], tuple[str, int]]]:
    """A setup whose work kills its process at 13, and refuses 7."""
    log("set up")

    def work(number: int) -> tuple[str, int]:
        if number == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        if number == 7:
            raise InputError(file="numbers", row=7, found="7", expected="an even number", remedy="Drop it.")
        return device, number // 2

    yield work


@pytest.mark.parametrize("devices", [["a"], ["a", "b"]])
def test_results_come_in_the_order_of_their_tasks(devices: list[str]) -> None:
    said: list[str] = []
    results = list(spread(halver, [8, 6, 4, 2], devices, said.append))
    assert [half for _, half in results] == [4, 3, 2, 1]
    assert {device for device, _ in results} <= set(devices)
    prefixes = ["", "[a] ", "[b] "]
    assert set(said) <= {f"{prefix}set up" for prefix in prefixes}
    assert said


def test_what_is_wrong_in_a_worker_is_raised_here() -> None:
    with pytest.raises(InputError, match="numbers, row 7: found 7, expected an even number"):
        list(spread(halver, [8, 7], ["a", "b"], lambda _: None))


def test_a_killed_worker_is_an_error_and_not_a_gap() -> None:
    with pytest.raises(BrokenProcessPool):
        list(spread(halver, [8, 13, 4], ["a", "b"], lambda _: None))


def test_without_tasks_no_device_is_set_up() -> None:
    said: list[str] = []
    assert list(spread(halver, [], ["a", "b"], said.append)) == []
    assert said == []


class OneWorker:
    """Ray as far as `spread_on_ray` uses it: a cluster of one core, which is done with a task at once."""

    exceptions = SimpleNamespace(RayTaskError=KeyError)

    def __init__(self, thread: ThreadPoolExecutor) -> None:
        self.thread = thread

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 1.0}

    def remote(self, kind: type) -> Any:
        def start(*arguments: Any) -> Any:
            do = kind(*arguments).do
            run = lambda task: SimpleNamespace(future=lambda: self.thread.submit(do, task))  # noqa: E731
            return SimpleNamespace(do=SimpleNamespace(remote=run))

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=start))

    def put(self, value: Any) -> Any:
        return value

    def kill(self, actor: Any) -> None:
        pass


class Lines(SimpleQueue):
    """`ray.util.queue.Queue`, with nothing to say."""

    def __init__(self, **_: Any) -> None:
        super().__init__()

    def get_nowait_batch(self, count: int) -> list[str]:
        return []

    def shutdown(self) -> None:
        pass


def test_many_quick_tasks_on_a_cluster_of_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result may be taken before its worker is known to be free."""
    interval = sys.getswitchinterval()
    with ThreadPoolExecutor(1) as thread:
        monkeypatch.setattr("rl_assets.base.workers.ray._connected", lambda address: OneWorker(thread))
        monkeypatch.setitem(sys.modules, "ray.util.queue", SimpleNamespace(Queue=Lines))
        monkeypatch.setattr("rl_assets.base.workers.ray.limit_threads", lambda threads: None)
        sys.setswitchinterval(1e-6)
        try:
            results = list(spread_on_ray("here", doubler, range(20_000), "cpu", lambda line: None))
        finally:
            sys.setswitchinterval(interval)
    assert results == [2 * number for number in range(20_000)]


@contextmanager
def doubler(place: str, log: Log) -> Iterator[Callable[[int], int]]:
    yield lambda number: 2 * number


def test_what_is_made_ahead_comes_in_order_and_ends_with_what_went_wrong() -> None:
    made: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(8):
            made.append(number)
            yield number
        raise ValueError("no more numbers")

    coming = ahead(numbers())
    assert next(coming) == 0
    assert len(made) <= 2 + AHEAD  # one at work here, the others waiting or being made
    assert [next(coming) for _ in range(7)] == list(range(1, 8))
    with pytest.raises(ValueError, match="no more numbers"):
        next(coming)
