"""Runs whose process is gone: what tells Dagster's run monitoring that nobody works on them any more.

A run is a process of this machine, started by the code server or as `dg launch`. When it dies together with
what started it (SIGKILL to all, a power cut), nobody is left to say so: Dagster shows it as started for ever,
and it keeps its place in the queue and in the pool, so that no other run begins. `dagster.yaml` names this
launcher, and the daemon's run monitoring asks it.
"""

import os
import time
from pathlib import Path

import dagster as dg
from dagster._core.events import EngineEventData
from dagster._core.launcher.base import CheckRunHealthResult, WorkerStatus
from dagster._serdes import ConfigurableClassData

_PROCESSES = Path("/proc")
_TOLERANCE = 5.0
"""Seconds by which a process and its first event may disagree on how long ago it began."""


class LocalRunLauncher(dg.DefaultRunLauncher):
    """Dagster's default launcher, which can also say whether the process of a run is still there."""

    def __init__(self, inst_data: ConfigurableClassData | None = None) -> None:
        super().__init__(inst_data)
        self._clock = _clock()

    @property
    def supports_check_run_worker_health(self) -> bool:
        """True where there is /proc, which is on Linux."""
        return (_PROCESSES / "self/stat").exists()

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """FAILED where the run's process is gone, or where its number is another process's now; else RUNNING.

        A run that has not said yet which process it is counts as running. What tells one process from another
        is its age; steps of the system's clock since this process began are taken out of it, so that no run
        fails because the clock was set.
        """
        for event in self._instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT):
            data = event.dagster_event.event_specific_data if event.dagster_event else None
            if isinstance(data, EngineEventData) and "pid" in data.metadata and event.step_key is None:
                number = int(str(data.metadata["pid"].value))
                said_so = time.time() - event.timestamp - (_clock() - self._clock)
                age = _age(number)
                if age is None or age < said_so - _TOLERANCE:
                    return CheckRunHealthResult(WorkerStatus.FAILED, f"its process ({number}) is gone")
                break
        return CheckRunHealthResult(WorkerStatus.RUNNING)


def _clock() -> float:
    """The system's clock against one that cannot be set: it changes when, and only when, the clock is set."""
    return time.time() - time.monotonic()


def _age(process: int) -> float | None:
    """Seconds since a process of this machine began, by a clock that cannot be set; None where it is gone."""
    try:
        _, _, fields = (_PROCESSES / str(process) / "stat").read_text().rpartition(")")
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, begun = fields.split()[0], int(fields.split()[19]) / os.sysconf("SC_CLK_TCK")
    return None if state in "ZX" else time.clock_gettime(time.CLOCK_BOOTTIME) - begun
