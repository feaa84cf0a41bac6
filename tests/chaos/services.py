"""Web server and daemon that are killed at random moments, with the run that is in progress.

    python -m tests.chaos.services [--kills 20] [--seed 0]

Runs of a small dataset's whole graph are queued through the web server and started by the daemon, under the
settings of the project's dagster.yaml. Once a run is at work, after a random time, one of the two, or both,
gets SIGKILL with everything that it started (code servers and runs), and is started again. Then one more run
is launched. It must come to its turn, whatever became of the others; its assets must be those of an
undisturbed one; and no run may be left that counts as in progress.
"""

import os
import random
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import dagster as dg
import yaml
from dagster._core.launcher.base import WorkerStatus

from tests.build import TRAIN, VAL, write_jsonl
from tests.chaos.kills import assets, differences, options, report, require_whole
from tests.deployment import Deployment
from tests.graphql import ENDED, ask, runs, wait_until
from tests.project import make_project
from tests.server import ROOT, wait_for_server

LAUNCH = """mutation($run: ExecutionParams!) { launchRun(executionParams: $run) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on Error { message } } }"""
STATUS = "query($run: ID!) { runOrError(runId: $run) { ... on Run { status } } }"
SELECTOR = {
    "jobName": "toy_rebuild",
    "repositoryName": "__repository__",
    "repositoryLocationName": "toy_project",
}


def settings() -> dict[str, Any]:
    """What the project's dagster.yaml says, but for the places of the history: that lies in DAGSTER_HOME."""
    said: dict[str, Any] = yaml.safe_load((ROOT / "dagster.yaml").read_text())
    places = ("storage", "local_artifact_storage", "compute_logs")
    return {name: value for name, value in said.items() if name not in places}


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
        (project / "home/dagster.yaml").write_text(yaml.safe_dump(settings()))
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
            assert process.poll() is None, self.deployment.log(f"dagster-{name}").read_text()[-3000:]
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def step(self) -> str | None:
        """The step that the process of a run is at."""
        with dg.DagsterInstance.from_config(self.deployment.environment["DAGSTER_HOME"]) as history:
            for run in history.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])):
                steps = history.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_START)
                if steps and history.run_launcher.check_run_worker_health(run).status == WorkerStatus.RUNNING:
                    return str(steps[-1].step_key).removeprefix("toy__")
        return None

    def launch(self) -> str:
        """Queue a run; its id."""

        def press() -> dict[str, Any]:
            answer: dict[str, Any] = ask(self.deployment.address, LAUNCH, run={"selector": SELECTOR})
            return answer["launchRun"]

        launched = wait_until("a launched run", press, 120, lambda answer: "run" in answer)
        return str(launched["run"]["runId"])

    def unended(self) -> list[dict[str, Any]]:
        """The runs that have not come to an end."""
        return [run for run in runs(self.deployment.address) if run["status"] not in ENDED]

    def finish(self, run: str, seconds: float = 300) -> None:
        """Wait until the run has succeeded."""

        def look() -> str:
            status: str = ask(self.deployment.address, STATUS, run=run)["runOrError"]["status"]
            return status

        status = wait_until("the run's end", look, seconds, lambda status: status in ENDED)
        assert status == "SUCCESS", self.deployment.log("dagster-daemon").read_text()[-3000:]


def storm(root: Path, kills: int, seed: int, seconds: float) -> Counter[str]:
    """So many kills, and one run to the end; how many kills there were of what, at which step.

    Args:
        seconds: how long an undisturbed run takes.
    """
    chance, served, found = random.Random(seed), Served(root), Counter[str]()
    with served.deployment:
        served.start()
        for _ in range(kills):
            served.launch()
            wait_until("a run at work", served.step, 120)
            time.sleep(chance.uniform(0, seconds))
            names = chance.choice([("webserver",), ("daemon",), ("webserver", "daemon")])
            step = served.step() or "no step"
            served.kill(*names)
            found[f"{' and '.join(names)} at {step}"] += 1
            require_whole(root)
            served.start()
        served.finish(served.launch(), 300 + 60 * kills)
        # Dagster gives a run three minutes from its launch to its start.
        wait_until("the end of all runs", served.unended, 240, lambda left: not left)
    require_whole(root)
    return found


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
        wrong = [f"differs: {path}" for path in differences(expected, assets(Path(folder) / "storm"))]
    report(found, expected, wrong)


if __name__ == "__main__":
    main()
