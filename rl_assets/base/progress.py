"""Progress lines on long work: how far, how fast, how much longer."""

import time
from collections.abc import Callable

Log = Callable[[str], None]


class Progress:
    """Logs a line every few seconds while work goes on, and one at the end.

    Lines read ``length gate: 12,000 of 100,000 rows, 6,410 rows/s, 0:14 left``.

    Args:
        log: where lines go, such as ``context.log.info`` or ``print``.
        what: what is being done.
        total: how many units there are in all.
        unit: what is counted, in the plural.
        every: seconds between lines.
    """

    def __init__(self, log: Log, what: str, total: int, unit: str, every: float = 5.0) -> None:
        self._log = log
        self._what = what
        self._total = total
        self._unit = unit
        self._every = every
        self._done = 0
        self._start = self._last = time.monotonic()

    def add(self, units: int) -> None:
        """Count `units` more as done."""
        self._done += units
        now = time.monotonic()
        if now - self._last >= self._every and self._done < self._total:
            self._last = now
            rate = self._done / (now - self._start)
            left = (self._total - self._done) / rate if rate else 0.0
            self._log(f"{self._counted()}, {rate:,.0f} {self._unit}/s, {clock(left)} left")

    def close(self) -> None:
        """Log how much was done, how fast, and how long it took."""
        took = max(time.monotonic() - self._start, 1e-9)
        self._log(f"{self._counted()}, {self._done / took:,.0f} {self._unit}/s, took {clock(took)}")

    def _counted(self) -> str:
        return f"{self._what}: {self._done:,} of {self._total:,} {self._unit}"


def clock(seconds: float) -> str:
    """Seconds as ``m:ss`` or ``h:mm:ss``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
