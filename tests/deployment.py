"""A project that is served by processes of its own: web server, daemon, code server."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dagster as dg

from tests.server import free_port, started


class Deployment:
    """A project, its DAGSTER_HOME, and the processes that serve it; they end with the `with` block.

    The history is made before any of them starts: two processes that make one in SQLite at the same moment
    can leave it with two versions, and nothing opens it then. `dg dev` makes it first, too.
    """

    def __init__(self, project: Path, environment: Mapping[str, str], workspace: list[str]) -> None:
        self.project, self.workspace = project, workspace
        self.environment = {
            **os.environ,
            "DAGSTER_HOME": str(project / "home"),
            "PYTHONPATH": str(project),
            "FRESHNESS_DAEMON_INTERVAL_SECONDS": "2",
            **environment,
        }
        self.address = f"http://127.0.0.1:{free_port()}"
        self._processes = ExitStack()

    def __enter__(self) -> "Deployment":
        with dg.DagsterInstance.from_config(self.environment["DAGSTER_HOME"]):
            return self

    def __exit__(self, *_: object) -> None:
        self._processes.close()

    def start(self, *command: str) -> Any:
        """Run a command of the environment in the project's folder, its output in `<command>.log`."""
        log = self.project / f"{command[0]}.log"
        process = started(command, folder=self.project, environment=self.environment, log=log)
        return self._processes.enter_context(process)

    def start_webserver(self) -> Any:
        return self.start("dagster-webserver", *self.workspace, "-p", self.address.rpartition(":")[2])

    def start_daemon(self) -> Any:
        return self.start("dagster-daemon", "run", *self.workspace)

    def log(self, command: str) -> Path:
        return self.project / f"{command}.log"
