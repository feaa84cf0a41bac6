"""Builds that are killed at random moments, and what is left after each kill.

    python -m tests.chaos.kills [--kills 100] [--seed 0]

A small dataset's whole graph runs in a process that gets SIGKILL after a random time; then it is started
again. After every kill each file that can be seen must be whole. A build that came to its end before its kill
is followed by one of other raw rows, which replaces what is there. At last a build of the first rows may end:
its assets must be those of a build that was never disturbed.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pyarrow.parquet as pq
import torch

import rl_assets.prompts
import rl_assets.rollout  # noqa: F401  (imported here so that no killed process spends its time on it)
from rl_assets.assets.dataset import Dataset
from rl_assets.assets.provenance import code_digest
from rl_assets.protocol import ShardManifest, read_shard
from rl_assets.store import digest_file, read_manifest
from tests.build import TRAIN, VAL, make_dataset, materialize, problem

OTHER = [problem(number) for number in range(3, 9)]


def dataset(root: Path, train: list[Any]) -> Dataset:
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
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
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


def finish(root: Path, train: list[Any]) -> float:
    """Build undisturbed; the seconds it took."""
    before = time.monotonic()
    require_success(root, os.waitpid(build(root, train), 0)[1])
    return time.monotonic() - before


def ended(root: Path, child: int, seconds: float) -> bool:
    """Whether the process came to its end in time; if not, its whole group is killed."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            require_success(root, status)
            return True
        time.sleep(0.005)
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


def storm(root: Path, seconds: float, kills: int, seed: int) -> dict[str, str]:
    """Kill builds in `root` as often as asked, then build undisturbed; the digests of what is there then.

    Args:
        seconds: how long a build takes.
    """
    chance, rows = random.Random(seed), [TRAIN, OTHER]
    done = 0
    while done < kills:
        if ended(root, build(root, rows[0]), chance.uniform(0, seconds)):
            rows.reverse()
        else:
            done += 1
        require_whole(root)
    finish(root, TRAIN)
    require_whole(root)
    return assets(root)


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


def report(kills: int, expected: dict[str, str], wrong: list[str]) -> NoReturn:
    """Print what came of a storm, and end with status 1 where anything is wrong or little was built."""
    sys.stdout.write("\n".join([f"{kills} kills, {len(expected)} files", *wrong]) + "\n")
    sys.exit(bool(wrong or len(expected) < 20))


def main() -> None:
    """Hold a storm against an undisturbed build in the same place."""
    arguments = options(__doc__, 100)
    with tempfile.TemporaryDirectory(prefix="rl-assets-") as folder:
        root = Path(folder) / "project"
        root.mkdir()
        code_digest()  # kept by every process that is forked: sources may be edited meanwhile
        seconds = finish(root, TRAIN)
        expected = assets(root)
        shutil.rmtree(root)
        root.mkdir()
        found = storm(root, seconds, arguments.kills, arguments.seed)
        wrong = [f"differs: {path}" for path in differences(expected, found)]
        wrong += [f"left over: {path}" for path in leftovers(root)]
        report(arguments.kills, expected, wrong)


if __name__ == "__main__":
    main()
