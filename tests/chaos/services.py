"""Web server and daemon that are killed at random moments, with the run that is in progress.

    python -m tests.chaos.services [--kills 20] [--seed 0]

Runs of a small dataset's whole graph are queued through the web server and started by the daemon. After a
random time one of the two, or both, gets SIGKILL with everything that it started (code servers and runs), and
is started again. Then one more run is launched, and its assets must be those of an undisturbed one.
"""

import os
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.build import TRAIN, VAL, write_jsonl
from tests.chaos.kills import assets, differences, options, report, require_whole
from tests.deployment import Deployment
from tests.graphql import ask, wait_until
from tests.project import make_project
from tests.server import wait_for_server

HOME = """
telemetry: {enabled: false}
run_coordinator:
  module: dagster.core.run_coordinator
  class: QueuedRunCoordinator
"""
LAUNCH = """mutation($run: ExecutionParams!) { launchRun(executionParams: $run) {
  __typename ... on LaunchRunSuccess { run { runId } } } }"""
STATUS = "query($run: ID!) { runOrError(runId: $run) { ... on Run { status } } }"
SELECTOR = {
    "jobName": "toy_rebuild",
    "repositoryName": "__repository__",
    "repositoryLocationName": "toy_project",
}


class Served:
    """The project with its web server and its daemon, each of which can be killed and started again."""

    def __init__(self, root: Path) -> None:
        project = make_project(
            root,
            checks={"reject_rate": {"max": 0.5}},
            shards={"count": 2},
            rollout={"n": 2},
            schedule={"enabled": False},
        )
        write_jsonl(project / "data/toy/train.jsonl", TRAIN + VAL)
        (project / "home/dagster.yaml").write_text(HOME)
        self.root = project
        self.deployment = Deployment(project, {"OMP_NUM_THREADS": "1"}, [])
        self.processes: dict[str, Any] = {}

    def start(self) -> None:
        """Start what is not running, and wait until the web server answers."""
        if "daemon" not in self.processes:
            self.processes["daemon"] = self.deployment.start_daemon()
        if "webserver" not in self.processes:
            server = self.processes["webserver"] = self.deployment.start_webserver()
            wait_for_server(server, self.deployment.address, self.deployment.log("dagster-webserver"))

    def kill(self, *names: str) -> None:
        """SIGKILL to processes and all that they started."""
        for name in names:
            process = self.processes.pop(name)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def launch(self) -> str:
        """Queue a run; its id."""

        def press() -> str | None:
            answer = ask(self.deployment.address, LAUNCH, run={"selector": SELECTOR})["launchRun"]
            return answer["run"]["runId"] if answer["__typename"] == "LaunchRunSuccess" else None

        return wait_until("a launched run", press, 120)

    def finish(self, run: str) -> None:
        """Wait until the run has succeeded."""

        def ended() -> str | None:
            status: str = ask(self.deployment.address, STATUS, run=run)["runOrError"]["status"]
            return status if status in ("SUCCESS", "FAILURE", "CANCELED") else None

        status = wait_until("the run's end", ended, 300)
        assert status == "SUCCESS", self.deployment.log("dagster-daemon").read_text()[-3000:]


def storm(root: Path, kills: int, seed: int, seconds: float) -> dict[str, str]:
    """Digests of the assets after so many kills and one run to the end.

    Args:
        seconds: how long an undisturbed run takes.
    """
    chance, served = random.Random(seed), Served(root)
    with served.deployment:
        served.start()
        for _ in range(kills):
            served.launch()
            time.sleep(chance.uniform(0, seconds))
            served.kill(*chance.choice([("webserver",), ("daemon",), ("webserver", "daemon")]))
            require_whole(root)
            served.start()
        served.finish(served.launch())
    require_whole(root)
    return assets(root)


def undisturbed(root: Path) -> tuple[dict[str, str], float]:
    """Digests of the assets after one run, and the seconds that it took."""
    served = Served(root)
    with served.deployment:
        served.start()
        run, before = served.launch(), time.monotonic()
        served.finish(run)
        return assets(root), time.monotonic() - before


def main() -> None:
    """Hold a storm against an undisturbed run."""
    arguments = options(__doc__, 20)
    with tempfile.TemporaryDirectory(prefix="rl-assets-") as folder:
        for name in ("calm", "storm"):
            (Path(folder) / name).mkdir()
        expected, seconds = undisturbed(Path(folder) / "calm")
        found = storm(Path(folder) / "storm", arguments.kills, arguments.seed, seconds)
    wrong = [f"differs: {path}" for path in differences(expected, found)]
    report(arguments.kills, expected, wrong)


if __name__ == "__main__":
    main()
