"""What a killed build leaves: nothing half-written; after the next build nothing is lost or doubled."""

import os
import subprocess
import sys

from tests.conftest import ROOT


def test_killed_builds_end_in_the_assets_of_an_undisturbed_one() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos.kills", "--kills", "4", "--seed", "1"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-5000:]
    assert done.stdout.startswith("4 kills, ")
