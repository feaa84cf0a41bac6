"""Builds that are killed at random moments, and what is left after each kill.

    python -m tests.chaos.kills [--kills 100] [--seed 0]

A small dataset's whole graph runs in a process that gets SIGKILL at a random moment; then it is started
again, half of the time after the raw rows were replaced by new ones. Moments are drawn within the step that
was killed at its work least often so far, so that all steps have their share, however short they are. After
every kill each file that can be seen must be whole. At last a build of the first rows may end: its assets
must be those of a build that was never disturbed. All the while the system's clock is set to and fro by hours
and years.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pyarrow.parquet as pq
import torch

import rl_assets.prompts
import rl_assets.rollout  # noqa: F401  (imported here so that no killed process spends its time on it)
from rl_assets.base.digests import digest_file
from rl_assets.base.manifests import read_manifest
from rl_assets.graph.dataset import GraphDataset
from rl_assets.graph.provenance import code_digest
from rl_assets.protocol.manifest import ShardManifest
from rl_assets.protocol.shards import read_shard
from tests.build import TRAIN, VAL, make_dataset, materialize, problem
from tests.chaos.clock import jumps, restart_under_a_clock_that_can_be_set
from tests.test_provenance import modules_of_steps


def dataset(root: Path, train: list[Any]) -> GraphDataset:
    """The small dataset in its folder, with these raw rows."""
    return make_dataset(
        root,
        train,
        VAL,
        checks={"reject_rate": {"max": 0.5}},
        shards={"count": 2},
        rollout={"n": 2},
    )


def start(root: Path, work: Callable[[], bool]) -> int:
    """Do `work` in a process of its own group, which has all that this one has imported; its id."""
    (root / "log.txt").write_text("")
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        sys.modules["__main__"] = ModuleType("__main__")  # what it spawns need not import this file again
        with (root / "log.txt").open("w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        torch.set_num_threads(1)  # the threads of this process are not in the child
        os._exit(0 if work() else 1)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(2)


def build(root: Path, train: list[Any]) -> int:
    """Build the whole graph in a process of its own; its id."""
    made = dataset(root, train)
    return start(root, lambda: materialize(made).success)


def require_success(root: Path, status: int) -> None:
    assert status == 0, (root / "log.txt").read_text()[-3000:]


BEGUN = re.compile(r'STEP_START - Started execution of step "toy__(\w+)"')
ENDED = re.compile(r'STEP_SUCCESS - .* step "toy__(\w+)" in (?:(\d+)m)?([\d.]+)(ms|s)')
BEFORE = "before the first step"


def finish(root: Path, train: list[Any]) -> dict[str, float]:
    """Build undisturbed; the seconds that each step took, and what came before the first one."""
    begun = time.monotonic()
    require_success(root, os.waitpid(build(root, train), 0)[1])
    log = (root / "log.txt").read_text()
    steps = {
        name: 60 * int(minutes or 0) + float(number) / (1000 if unit == "ms" else 1)
        for name, minutes, number, unit in ENDED.findall(log)
    }
    return {BEFORE: max(time.monotonic() - begun - sum(steps.values()), 0.1), **steps}


def place(log: str) -> str:
    """Where a build stood when it was killed: a step at its work, or what there is besides."""
    begun = list(BEGUN.finditer(log))
    if not begun:
        return BEFORE
    since = log[begun[-1].end() :]
    if "STEP_SUCCESS" in since:
        return "between two steps"
    return "a step that finds nothing changed" if ": unchanged, nothing to do" in since else begun[-1][1]


def ended(root: Path, child: int, step: str, seconds: float) -> bool:
    """Whether the process came to its end by itself; if not, it was killed so many seconds into a step.

    What it had started is killed with it.
    """
    deadline = None
    while deadline is None or time.monotonic() < deadline:
        if deadline is None and (step == BEFORE or step in BEGUN.findall((root / "log.txt").read_text())):
            deadline = time.monotonic() + seconds
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            require_success(root, status)
            return True
        time.sleep(0.002)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def visible(root: Path) -> list[Path]:
    """The files of the storage that a reader may come upon, relative to it."""
    storage = root / "data/storage"
    files = (path.relative_to(storage) for path in storage.rglob("*") if path.is_file())
    return sorted(path for path in files if not any(part.startswith(".") for part in path.parts))


def require_whole(root: Path) -> None:
    """Read every table, manifest and shard that can be seen, in a process of its own."""
    require_success(root, os.waitpid(start(root, lambda: is_whole(root)), 0)[1])


def is_whole(root: Path) -> bool:
    """True; the reader of a table, manifest or shard raises where one is not complete."""
    storage = root / "data/storage"
    for path in visible(root):
        if path.suffix == ".parquet":
            pq.read_table(storage / path)
        elif path.suffix == ".json":
            json.loads((storage / path).read_bytes())
    for name in ("proto_shards", "rollouts"):
        for manifest in (storage / "toy").glob(f"{name}.json"):
            for ref in read_manifest(ShardManifest, manifest).shards:
                read_shard(storage / "toy" / name, ref)
    return True


def assets(root: Path) -> dict[str, str]:
    """Digest of every visible file by its path, but for those that tell of builds and not of data."""
    storage = root / "data/storage"
    return {
        str(path): digest_file(storage / path)
        for path in visible(root)
        if not path.name.endswith((".build.json", ".checks.json")) and "build_report" not in path.name
    }


def storm(root: Path, steps: dict[str, float], kills: int, seed: int) -> Counter[str]:
    """Kill builds in `root` as often as asked, then build undisturbed; how many kills fell where.

    Args:
        steps: the seconds that each step of a build takes.
    """
    chance, found = random.Random(seed), Counter(dict.fromkeys(steps, 0))
    rows = TRAIN
    while found.total() < kills:
        step = min(chance.sample(list(steps), len(steps)), key=found.__getitem__)
        # How long a step takes differs by orders of magnitude: it may find much of its work done.
        if not ended(root, build(root, rows), step, steps[step] * 10 ** chance.uniform(-3, 0)):
            found[place((root / "log.txt").read_text())] += 1
        require_whole(root)
        if chance.random() < 0.5:
            first = chance.randrange(100, 900)
            rows = [problem(number) for number in range(first, first + 6)]
    finish(root, TRAIN)
    require_whole(root)
    return found


def leftovers(root: Path) -> list[str]:
    """What killed builds left unfinished, and later builds did not remove."""
    storage = root / "data/storage"
    return sorted(str(path.relative_to(storage)) for path in storage.rglob(".staging/*"))


def differences(expected: dict[str, str], found: dict[str, str]) -> list[str]:
    """Assets that are lost, changed or too many; shards of the other rows may lie beside those in use."""
    lost = [path for path, digest in expected.items() if found.get(path) != digest]
    return sorted(lost + [path for path in found.keys() - expected.keys() if "-of-" not in path])


def options(about: str | None, kills: int) -> argparse.Namespace:
    """What the command line of a storm says: `kills` (or as many as here) and `seed`."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=kills)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def report(where: Counter[str], expected: dict[str, str], wrong: list[str], *notes: str) -> NoReturn:
    """Print what came of a storm, and end with status 1 where anything is wrong or little was built.

    Args:
        where: how many kills fell where.
        notes: what else there is to say.
    """
    lines = [f"{where.total()} kills, {len(expected)} files"]
    lines += [f"{number:4d}  {name}" for name, number in where.items()]
    sys.stdout.write("\n".join([*lines, *notes, *wrong]) + "\n")
    sys.exit(bool(wrong or len(expected) < 20))


def main() -> None:
    """Hold a storm against an undisturbed build in the same place."""
    arguments = options(__doc__, 100)
    restart_under_a_clock_that_can_be_set()
    with tempfile.TemporaryDirectory(prefix="rl-assets-") as folder:
        root = Path(folder) / "project"
        root.mkdir()
        for module in ("rl_assets.graph.checks", *modules_of_steps()):
            code_digest(module)  # kept by every process that is forked: sources may be edited meanwhile
        steps = finish(root, TRAIN)
        expected = assets(root)
        shutil.rmtree(root)
        root.mkdir()
        with jumps(arguments.seed) as jumped:
            found = storm(root, steps, arguments.kills, arguments.seed)
        wrong = [f"differs: {path}" for path in differences(expected, assets(root))]
        wrong += [f"left over: {path}" for path in leftovers(root)]
        if arguments.kills >= 3 * len(steps):
            wrong += [f"never killed: {step}" for step in steps if not found[step]]
        report(found, expected, wrong, f"the clock was set {len(jumped)} times")


if __name__ == "__main__":
    main()
