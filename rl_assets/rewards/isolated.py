"""A process for code that nobody vouches for: whatever it starts ends with it.

Two processes are made. The worker runs the code; the keeper, its parent, waits. When the worker ends, or is
to end, or the process that asked for it is gone (even killed), the keeper kills the worker and every
descendant of it. On Linux the keeper is a "child subreaper", so that a descendant whose parent ended, or that
began a session of its own, is still found. Elsewhere the worker's process group is killed, and a descendant
that left the group is not found.

What the worker prints goes through the keeper to its standard error: every line is cleaned, and after
`MOST_PRINTED` bytes nothing more is shown. Only the standard library is imported here, so that a process
starts quickly.
"""

import contextlib
import ctypes
import importlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection

MOST_PRINTED = 1 << 16
"""Bytes of what one worker prints that are shown."""

_LINUX = sys.platform == "linux"
_SUBREAPER, _PARENT_DEATH_SIGNAL = 36, 1  # PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG
_KILLING_SECONDS = 5.0
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); "
    "from rl_assets.rewards.isolated import main; main(*map(int, (sys.argv.pop(), sys.argv.pop())))"
)

Clean = Callable[[str], str]


class Isolated:
    """A worker process, seen from the process that started it.

    Attributes:
        connection: to the worker. It is at its end when the worker is.
    """

    def __init__(self, target: str, argument: bytes, clean: Clean) -> None:
        """Start it.

        Args:
            target: `module:function`, which is called with the worker's `Connection` and `argument`.
            argument: for the function, which alone knows what it means.
            clean: what is shown instead of a printed line.
        """
        self.connection, theirs = Pipe()
        told, self._lifeline = os.pipe()
        try:
            fds = (theirs.fileno(), told)
            self._keeper = subprocess.Popen(
                # -P: the folder in which the program runs is no place to import from.
                [sys.executable, "-P", "-c", _START, *map(str, reversed(fds)), json.dumps(sys.path)],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a signal to the whole group must not end the keeper first
            )
        finally:
            theirs.close()
            os.close(told)
        with contextlib.suppress(OSError):  # where it ended at once, whoever reads from it sees that
            self.connection.send((target, argument, clean))

    def end(self) -> None:
        """End the worker and all that it started, without waiting for it."""
        self.connection.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def wait(self, seconds: float = _KILLING_SECONDS + 1) -> int | None:
        """How the worker ended: its exit code, negative for a signal; None where it is not gone yet."""
        try:
            return self._keeper.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def running(self) -> bool:
        """Whether anything of it is left."""
        return self._keeper.poll() is None


# What follows runs in the keeper and the worker.


def main(channel: int, lifeline: int) -> None:
    """The program of both processes. `channel` is the worker's connection; `lifeline` ends with the process
    that asked for it."""
    for fd in (channel, lifeline):
        os.set_inheritable(fd, False)
    sys.argv = [""]
    connection = Connection(channel)
    try:
        target, argument, clean = connection.recv()
    except (EOFError, OSError):
        return
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    ignored = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    _prctl(_SUBREAPER, 1)
    printed, output = os.pipe()
    worker = os.fork()
    if worker == 0:
        signal.set_wakeup_fd(-1)
        for number in (*ignored, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        for fd in (lifeline, woken, wake, printed):
            os.close(fd)
        _work(connection, output, target, argument)
    connection.close()
    os.close(output)
    status = _keep(worker, lifeline, woken, _Printed(printed, clean))
    if status is None:
        os._exit(0)
    if os.WIFSIGNALED(status):  # end in the same way, which tells it to whoever waits for this process
        cause = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if cause != signal.SIGKILL:
            signal.signal(cause, signal.SIG_DFL)
        os.kill(os.getpid(), cause)
    os._exit(os.waitstatus_to_exitcode(status))


def _work(connection: Connection, output: int, target: str, argument: bytes) -> None:
    os.setsid()
    _prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    # Where memory runs out, this process goes first.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")
    for fd in (1, 2):
        os.dup2(output, fd)
    os.close(output)
    code = 1
    try:
        module, _, name = target.partition(":")
        getattr(importlib.import_module(module), name)(connection, argument)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _keep(worker: int, lifeline: int, woken: int, printed: "_Printed") -> int | None:
    """Wait for the worker's end or the lifeline's; end all descendants. The worker's status, or None where it
    was ended by us."""
    status = None
    while status is None:
        ready, _, _ = select.select([lifeline, woken, *printed.fds], [], [])
        if printed.fd in ready:
            printed.read()
        if woken in ready:
            os.read(woken, 4096)
        if lifeline in ready:
            break
        status = _reap().get(worker)
    _end_descendants(worker)
    printed.read_rest()
    return status


def _reap() -> dict[int, int]:
    """The children that have ended, with their status."""
    ended: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = status
    return ended


def _end_descendants(worker: int) -> None:
    until = time.monotonic() + _KILLING_SECONDS
    while time.monotonic() < until:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker, signal.SIGKILL)
        for pid in _descendants():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        _reap()
        if not _has_children():
            return
        time.sleep(0.002)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _descendants() -> set[int]:
    """Every process below this one; none where there is no /proc."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    waiting = [os.getpid()]
    while waiting:
        new = [pid for pid in children.get(waiting.pop(), ()) if pid not in found]
        found.update(new)
        waiting += new
    return found


def _parents() -> Iterator[tuple[int, int]]:
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir("/proc"):
            if name.isdigit():
                # pid (name) state parent …, and a name may hold anything
                with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:
                    yield int(name), int(stat.read().rpartition(b")")[2].split()[1])


class _Printed:
    """What the worker prints: shown line by line, cleaned, up to a limit."""

    def __init__(self, fd: int, clean: Clean) -> None:
        self.fd = fd
        self._clean = clean
        self._line = b""
        self._left = MOST_PRINTED
        self._open = True

    @property
    def fds(self) -> list[int]:
        """What to wait for."""
        return [self.fd] if self._open else []

    def read(self) -> None:
        """Take what is there."""
        data = os.read(self.fd, 1 << 16)
        self._open = bool(data)
        if self._left > 0:
            *lines, self._line = (self._line + data).split(b"\n")
            if len(self._line) > self._left:
                lines, self._line = [*lines, self._line], b""
            for line in lines:
                self._show(line)

    def read_rest(self) -> None:
        """Take what was printed before the end, which may have come without a line break."""
        os.set_blocking(self.fd, False)
        with contextlib.suppress(BlockingIOError):
            for _ in range(MOST_PRINTED >> 16):
                if self._open:
                    self.read()
        if self._line:
            self._show(self._line)

    def _show(self, line: bytes) -> None:
        if self._left <= 0:
            return
        text = self._clean(line.decode(errors="replace")).encode(errors="replace") + b"\n"
        if len(text) >= self._left:
            text = text[: self._left] + b"\n(more was printed, and is not shown)\n"
        self._left -= len(text)
        with contextlib.suppress(OSError):
            os.write(2, text)


def _prctl(option: int, value: int) -> None:
    if _LINUX:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
