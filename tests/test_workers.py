"""Work spread over processes: in order, with nothing lost, and with errors that reach the caller."""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

import pytest

from rl_assets.base.progress import Log
from rl_assets.base.workers.pool import AHEAD, ahead
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
