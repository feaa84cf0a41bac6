"""A limit on the time that a chat template takes for one prompt, which holds for loops without end and for
single operations without end.

A loop of Jinja's runs as Python code, into which another thread can raise an exception. A single
operation, such as a power of large numbers, lets no other thread run: a template that may do one is rendered
in a process of its own (`apart`), which can be ended. The faster engine counts its instructions itself.
"""

import ctypes
import functools
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rl_assets.errors import InputError

if TYPE_CHECKING:
    from jinja2 import Environment

Returned = TypeVar("Returned")

SECONDS = 10.0
"""Longest time for one prompt; a prompt of a million characters takes a hundredth of it."""
FUEL = 10_000_000
"""Instructions that the faster engine may do for one prompt: half a second."""

_LOOK = 0.25


class TooSlowError(BaseException):
    """A chat template does not come to an end with a prompt.

    No `Exception`, so that nothing on the way takes it for what a template says of a prompt: the next prompt
    would take as long.
    """

    def __init__(self, messages: Sequence[Mapping[str, Any]] = ()) -> None:
        roles = ", ".join(str(message.get("role")) for message in messages[:8])
        more = f" and {len(messages) - 8} more" if len(messages) > 8 else ""
        super().__init__(
            f"a chat template that does not come to an end within {SECONDS:g} seconds with one prompt"
            + (f" (roles: {roles}{more})" if roles else "")
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, self.args


class TooLargeError(TooSlowError):
    """A chat template writes a text, or makes one on the way, that is out of all proportion to the prompt."""

    def __init__(self) -> None:
        super().__init__()
        self.args = ("a chat template that needs more memory for one prompt than it may have",)


def _again(text: str) -> TooSlowError:
    error = TooSlowError()
    error.args = (text,)
    return error


def names_template(method: Callable[..., Returned]) -> Callable[..., Returned]:
    """A method of an object with a `tokenizer`, whose `TooSlowError` becomes the error that users see."""

    @functools.wraps(method)
    def told(self: Any, *arguments: Any, **named: Any) -> Returned:
        try:
            return method(self, *arguments, **named)
        except TooSlowError as slow:
            raise InputError(
                file=self.tokenizer.name_or_path or None,
                field="chat_template",
                found=str(slow),
                remedy="Correct the template beside the policy's tokenizer, or take another policy.",
            ) from None

    return told


class time_limit:
    """``with time_limit(messages):`` ends what is done in this thread when it takes too long.

    What counts is the thread's own time on a processor, so that a machine that is busy with other things, or
    was asleep, ends nothing. Within another limit it does nothing.

    Raises:
        TooSlowError: when the time is over.
    """

    __slots__ = ("fired", "messages", "outer", "thread")

    def __init__(self, messages: Sequence[Mapping[str, Any]]) -> None:
        self.messages = messages
        self.fired = False

    def __enter__(self) -> None:
        self.thread = threading.get_ident()
        self.outer = self.thread in _running
        if not self.outer:
            if not _watched:
                _start()
            with _lock:
                _running[self.thread] = self

    def __exit__(self, *_: object) -> None:
        if self.outer:
            return
        left = False
        while not left:
            try:
                with _lock:
                    _running.pop(self.thread, None)
                left = True
            except TooSlowError:  # raised here, just before the end
                pass
        if self.fired:
            _raise_in(self.thread, None)  # it may be under way still
            raise TooSlowError(self.messages) from None


_running: dict[int, time_limit] = {}
_lock = threading.Lock()
"""Held by who reads or changes `_running` or `_watched`."""
_watched: list[threading.Thread] = []
"""The thread that looks at what is running."""


def _forked() -> None:
    """A process that was forked has this thread alone: no watcher, and none that it would watch."""
    _watched.clear()
    _running.clear()
    _lock.release()


# Held over a fork: of a lock that another thread holds just then, the new process would never be rid.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_forked)


def _start() -> None:
    with _lock:
        if not _watched:
            _watched.append(threading.Thread(target=_look, name="time-limit", daemon=True))
            _watched[0].start()


def _look() -> None:
    began: dict[int, tuple[time_limit, float]] = {}
    while True:
        time.sleep(_LOOK)
        with _lock:
            for thread in began.keys() - _running.keys():
                del began[thread]
            for thread, running in list(_running.items()):
                known, since = began.get(thread, (None, 0.0))
                if known is not running:
                    began[thread] = running, _spent(thread)
                elif _spent(thread) - since > SECONDS:
                    running.fired = True
                    _raise_in(thread, TooSlowError)


def _spent(thread: int) -> float:
    """Seconds that a thread was on a processor; where that is not known, those that passed."""
    clock = getattr(time, "pthread_getcpuclockid", None)
    return time.clock_gettime(clock(thread)) if clock else time.monotonic()


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Have an exception raised in a thread where it runs Python code next; None takes back one under way."""
    raised = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)


_WITHOUT_BOUND = frozenset({"round", "center", "ljust", "rjust", "zfill", "expandtabs"})


def may_hang(source: str, sandbox: "Environment") -> bool:
    """Whether a template has an operation that may take any time, or any memory, by itself: one that
    multiplies numbers or texts, or pads a text to a width.

    All others take as long as what they are given is large, and nothing else makes large numbers.

    Args:
        source: the chat template.
        sandbox: the environment in which it is compiled.

    Raises:
        jinja2.TemplateSyntaxError: it is no template.
    """
    from jinja2 import nodes

    tree = sandbox.parse(source)
    named = {node.name for node in tree.find_all(nodes.Filter)}
    named |= {node.attr for node in tree.find_all(nodes.Getattr)}
    return any(True for _ in tree.find_all((nodes.Mul, nodes.Pow))) or not _WITHOUT_BOUND.isdisjoint(named)
