"""What killed builds and services leave: nothing half-written; in the end nothing is lost or doubled."""

import os
import platform
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT


@pytest.mark.parametrize(("what", "kills"), [("kills", 3), ("services", 1)])
def test_what_was_killed_ends_in_the_assets_of_an_undisturbed_run(what: str, kills: int) -> None:
    """With this seed, the web server and the daemon are killed in the middle of a run, and it with them."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.chaos.{what}", "--kills", str(kills), "--seed", "3"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-5000:]
    assert done.stdout.startswith(f"{kills} kills, ")
    if what == "kills" and (sys.platform, platform.machine()) == ("linux", "x86_64"):
        assert re.search("^the clock was set [1-9]", done.stdout, re.MULTILINE), done.stdout
