"""A system clock that is set while builds run, as the processes of a storm see it.

libfaketime stands between a program and the C library. Times of files stay the kernel's, and so do clocks
that cannot be set.
"""

import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import libfaketime

LIBRARY = Path(libfaketime.__file__).parent / "vendor/libfaketime/src/libfaketime.so.1"
OFFSETS = ("+0", "-3600", "+3600", "-1y", "+1y")
_SETTING = "FAKETIME_TIMESTAMP_FILE"


def restart_under_a_clock_that_can_be_set() -> None:
    """Start this program once more, with libfaketime."""
    if _SETTING in os.environ:
        return
    handle, setting = tempfile.mkstemp(prefix="rl-assets-clock-")
    os.write(handle, b"+0\n")
    environment = {
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME_NO_CACHE": "1",
        "DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
        _SETTING: setting,
    }
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **environment})


@contextmanager
def jumps(seed: int) -> Iterator[list[float]]:
    """Set the clock to another hour or year every few seconds; by how many seconds it was set each time.

    Nothing is listed where libfaketime has no effect: its wheel is built for Linux on x86-64.
    """
    setting, done = Path(os.environ[_SETTING]), Event()
    seen: list[float] = []

    def work() -> None:
        chance = random.Random(seed)
        while not done.wait(chance.uniform(0.5, 4)):
            before = _set(setting, chance.choice(OFFSETS))
            if abs(before) > 1:
                seen.append(before)

    setter = Thread(target=work)
    setter.start()
    try:
        yield seen
    finally:
        done.set()
        setter.join()
        setting.unlink()  # as if it said +0


def _set(setting: Path, offset: str) -> float:
    """Set the clock; the seconds by which it jumped."""
    before = time.time() - time.monotonic()
    written = setting.with_suffix(".new")
    written.write_text(f"{offset}\n")
    written.replace(setting)
    return time.time() - time.monotonic() - before
