"""What runs in a scoring process: the function is loaded once, and called for one response after another."""

import contextlib
import json
import logging
import os
import signal
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

import yaml

from rl_assets.errors import InputError
from rl_assets.rewards.function import RewardFunction
from rl_assets.rewards.hidden import Hidden
from rl_assets.rewards.outcome import Scored, call

TARGET = f"{__name__}:serve"
"""What `Isolated` is given."""

LARGEST_EXTRA = 1 << 17
"""Characters of JSON that a result may hold besides its score."""

TOO_LARGE = "too_large"
"""The one key that is kept of a result that holds more; its value says how much there was."""


def serve(connection: Connection, argument: bytes) -> None:
    """Load a reward function, say what came of it, and answer samples until there are no more.

    Every message is JSON: first null, or the parts of an InputError; then for each sample its score, error
    and other values, and whether the call left threads behind.

    Args:
        connection: samples come in, each a JSON list of four texts, and answers go out.
        argument: the function, as `described`.
    """
    # math-verify warns when its own time limits are off; here the process is the limit.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    function = RewardFunction(**yaml.safe_load(argument))
    try:
        compute_score = function.load()
    except InputError as error:
        connection.send_bytes(json.dumps(vars(error)).encode())
        return
    kwargs, hidden, tidy = dict(function.kwargs), Hidden(function.kwargs), _Tidy()
    connection.send_bytes(b"null")
    while True:
        try:
            data_source, solution, truth, info = json.loads(connection.recv_bytes())
        except (EOFError, ConnectionError):  # the second where an answer was left unread
            return
        # Values travel as JSON text: each call has its own, whatever the function does to them.
        scored = call(
            compute_score, kwargs, data_source, solution, json.loads(truth), json.loads(info), hidden
        )
        if os.getpid() != tidy.pid:  # the function forked, and this is the child
            os._exit(0)
        connection.send_bytes(answer(scored, tidy.left_threads()))
        tidy.up()


def described(function: RewardFunction) -> bytes:
    """What `serve` needs of a function. Its arguments come from a YAML, and YAML says them exactly."""
    parts = {"path": function.path, "name": function.name, "kwargs": dict(function.kwargs)}
    return yaml.safe_dump(parts).encode()


def answer(scored: Scored, left: bool) -> bytes:
    """The message about a sample; of values that are too large only how large they are."""
    extra = json.dumps(scored.extra)
    if len(extra) > LARGEST_EXTRA:
        extra = json.dumps({TOO_LARGE: f"{len(scored.extra):,} keys, {len(extra):,} characters"})
    return f"[{json.dumps(scored.score)},{json.dumps(scored.error)},{json.dumps(left)},{extra}]".encode()


class _Tidy:
    """What a call may change for those that follow, put back."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._folder = os.open(".", os.O_RDONLY)
        self._environment = dict(os.environ)
        self._threads = threading.active_count()
        self._recursion = sys.getrecursionlimit()

    def left_threads(self) -> bool:
        """Whether more threads run than before the first call: they slow down what follows."""
        return threading.active_count() > self._threads

    def up(self) -> None:
        """Put back the folder, the environment, the recursion limit, and timers that would strike later."""
        with contextlib.suppress(OSError):
            os.fchdir(self._folder)
        if os.environ != self._environment:
            os.environ.clear()
            os.environ.update(self._environment)
        sys.setrecursionlimit(self._recursion)
        for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
            signal.setitimer(timer, 0)


def read(answer: bytes) -> tuple[Scored, bool]:
    """A message of `serve` about a sample: what came of it, and whether threads were left.

    Raises:
        ValueError: it is no such message.
    """
    value: Any = json.loads(answer)
    match value:
        case [int() | float() | None as score, str() | None as error, bool(left), dict(extra)]:
            return Scored(None if score is None else float(score), error, extra), left
    raise ValueError("not an answer to a sample")
