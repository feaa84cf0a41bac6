"""The real verl beside the project: an overlay folder for PYTHONPATH, made from its wheel on first use.

verl cannot share an environment with Dagster: its omegaconf needs antlr4-python3-runtime 4.9, with which
Dagster cannot read an asset selection. So verl, and what it imports and the project does not have, lie in
a folder of their own, and only processes that are started with it on their path see it.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from rl_assets.base.digests import digest_json

ROOT = Path(__file__).parent.parent
VERSION = "0.9.1"
PACKAGES = (
    f"verl=={VERSION}",
    "ray==2.60.0",
    "msgpack==1.2.4",
    "omegaconf==2.3.1",
    "antlr4-python3-runtime==4.9.3",
    "hydra-core==1.3.8",
    "codetiming==1.4.0",
    "torchdata==0.11.0",
    "orjson==3.13.0",
    "qwen-vl-utils==0.0.14",
)


def verl_site() -> Path:
    """The folder that holds verl; with verl's own tests under `tests/`, as its wheel has them."""
    return overlay(f"verl-{VERSION}", PACKAGES)


def overlay(name: str, packages: Sequence[str]) -> Path:
    """A folder that holds the packages alone, without what they depend on."""
    site = ROOT / ".cache" / f"{name}-{digest_json(packages)[:8]}"
    if not site.exists():
        site.parent.mkdir(exist_ok=True)
        staged = Path(tempfile.mkdtemp(dir=site.parent))
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(staged)]
        subprocess.run([*pip, *packages], check=True)
        try:
            staged.rename(site)
        except OSError:  # another process was faster
            shutil.rmtree(staged)
    return site


def run_pytest(
    *arguments: str | Path, path: list[Path], cwd: Path = ROOT, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run pytest in a process of its own, with the folders `path` before everything else on its path."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), **(env or {})},
        capture_output=True,
        text=True,
        check=False,
    )


def run_cases(*cases: Path, folder: Path, passed: int, site: Path | None = None) -> None:
    """Run files of tests that import the real verl, in a process that can: all pass, and none is missing.

    Args:
        cases: the files.
        folder: for what they write, and for the caches of `datasets`.
        passed: how many tests there are.
        site: an `overlay` of another trainer in verl's place.
    """
    result = run_pytest(
        "-q",
        f"--basetemp={folder / 'cases'}",
        *cases,
        path=[ROOT, site or verl_site()],
        env={"HF_HOME": str(folder)},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(rf"^{passed} passed", result.stdout, re.MULTILINE), result.stdout
