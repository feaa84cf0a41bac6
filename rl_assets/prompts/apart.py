"""A chat template rendered in a process of its own, which is ended when it takes too long, and has a limit on
its memory."""

import contextlib
import multiprocessing
import resource
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from rl_assets.errors import first_line
from rl_assets.prompts.time_limit import SECONDS, TooLargeError, TooSlowError

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[dict[str, Any]] | None

_START = 120.0
"""Seconds that the process may take to start: it imports transformers."""


MEMORY = 2 << 30
"""Bytes that the process may take beyond those with which it starts; known on Linux alone."""

MOST_WRITTEN = 1 << 24
"""Characters that a template may write of its own for one prompt."""


class RefusedApartError(Exception):
    """What a template raised in the other process."""


class Apart:
    """Renders in a process that is started when it is first asked, and after each that was ended.

    Threads take turns.

    Args:
        render: makes text of messages and tools; what it needs is sent to the process.
    """

    def __init__(self, render: Callable[[Messages, Tools], str]) -> None:
        self._render = render
        self._process: Any = None
        self._connection: Connection | None = None
        self._turn = threading.Lock()

    def __call__(self, messages: Messages, tools: Tools) -> str:
        """The text of a prompt.

        Raises:
            TooSlowError: it takes longer than `SECONDS`; the process is ended.
            TooLargeError: it takes more than `MEMORY`, or writes more than `MOST_WRITTEN`.
            RefusedApartError: the template refuses the messages.
        """
        with self._turn:
            return self._rendered(messages, tools)

    def _rendered(self, messages: Messages, tools: Tools) -> str:
        connection = self._connection or self._start()
        connection.send((messages, tools))
        if not connection.poll(SECONDS):
            self.close()
            raise TooSlowError(messages)
        try:
            text, problem = connection.recv()
        except EOFError:  # memory, most of the time
            self.close()
            raise RefusedApartError("it ends the process that renders it") from None
        if problem is not None:
            raise RefusedApartError(problem)
        if text is None:
            raise TooLargeError
        return text

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __del__(self) -> None:
        self.close()

    def _start(self) -> Connection:
        # Spawned, not forked: another thread may hold a lock now.
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there, self._render), daemon=True)
        self._process.start()
        there.close()
        self._connection = here
        if not here.poll(_START) or here.recv() != _READY:
            self.close()
            raise RefusedApartError("the process that renders it does not start")
        return here


_READY = "ready"


def _serve(connection: Connection, render: Callable[[Messages, Tools], str]) -> None:
    _limit_memory()
    connection.send(_READY)
    while True:
        try:
            messages, tools = connection.recv()
        except EOFError:
            return
        try:
            text = render(messages, tools)
            connection.send((None if _is_too_large(text, messages, tools) else text, None))
        except MemoryError:
            connection.send((None, None))
        except Exception as error:  # a template raises what it likes
            connection.send((None, first_line(error)))


def _is_too_large(text: str, messages: Messages, tools: Tools) -> bool:
    """Whether the template wrote much more than what it was given; JSON may escape that to six times."""
    return len(text) > MOST_WRITTEN and len(text) > MOST_WRITTEN + 6 * len(repr((messages, tools)))


def _limit_memory() -> None:
    with contextlib.suppress(OSError, ValueError), open("/proc/self/statm") as statm:
        used = int(statm.read().split()[5]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = used + MEMORY if hard == resource.RLIM_INFINITY else min(used + MEMORY, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
