"""A writer that is killed, or whose disk is full, leaves the old shards or the new ones, never a mix."""

import errno
import itertools
import multiprocessing
import random
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from rl_assets.base.files import write_file
from rl_assets.protocol.dataproto import DataProto
from rl_assets.protocol.manifest import ShardManifest
from rl_assets.protocol.shards import find_shard, read_shard, write_shard
from tests.protocol.batches import text_batch

KILLS = 50
SHARDS = 3


def write_version(root: Path, version: int) -> None:
    """A generation of shards and, last, the manifest that makes it the current one."""
    data = text_batch(200)
    data.union(DataProto.from_dict(non_tensors={"version": [version] * len(data)}))
    shards = [write_shard(root / "shards", f"train-{index}", data) for index in range(SHARDS)]
    manifest = ShardManifest(shards=shards, stamps={"version": str(version)})
    write_file(root / "manifest.json", manifest.model_dump_json().encode())


def read_version(root: Path) -> int:
    """The version that a reader sees, once every row of every shard is found to be of it."""
    manifest = ShardManifest.model_validate_json((root / "manifest.json").read_bytes())
    assert len(manifest.shards) == SHARDS
    versions = {
        version
        for shard in manifest.shards
        for version in read_shard(root / "shards", shard).non_tensor_batch["version"]
    }
    assert versions == {int(manifest.stamps["version"])}
    return versions.pop()


def write_without_end(root: Path, first: int, started: Connection) -> None:
    write_version(root, first)
    started.send(True)
    for version in itertools.count(first + 1):
        write_version(root, version)


def write_with_little_room(root: Path, version: int, room: int, told: Connection) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
    try:
        write_version(root, version)
        told.send(None)
    except OSError as error:
        told.send(error.errno)


@pytest.fixture(scope="module")
def processes() -> multiprocessing.context.ForkServerContext:
    """Processes that start with everything imported, so that most of their life is writing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "pandas", "pyarrow.compute"])
    return context


def test_a_writer_killed_at_any_moment(
    tmp_path: Path, processes: multiprocessing.context.ForkServerContext
) -> None:
    choose = random.Random(0)
    write_version(tmp_path, 0)
    seen = [0]
    staging = tmp_path / "shards/.staging"
    for kills in itertools.count(1):
        receiving, sending = processes.Pipe(duplex=False)
        writer = processes.Process(target=write_without_end, args=(tmp_path, seen[-1] + 1, sending))
        writer.start()
        receiving.recv()
        time.sleep(choose.uniform(0, 0.1))
        writer.kill()
        writer.join()
        seen.append(read_version(tmp_path))
        # Files are written in a small part of a writer's life; a kill must have met one of these parts.
        if kills >= KILLS and (any(staging.iterdir()) or kills >= 10 * KILLS):
            break
    assert seen == sorted(seen)
    assert any(new - old > 1 for old, new in itertools.pairwise(seen)), (
        "no writer got beyond its first version"
    )
    assert any(staging.iterdir()), "no writer was killed while it wrote"
    write_version(tmp_path, seen[-1] + 1)
    assert read_version(tmp_path) == seen[-1] + 1


@pytest.mark.parametrize("room", [0, 1, 600, 5_000, 20_000])
def test_a_file_that_may_not_grow(
    tmp_path: Path, processes: multiprocessing.context.ForkServerContext, room: int
) -> None:
    write_version(tmp_path, 1)
    receiving, sending = processes.Pipe(duplex=False)
    writer = processes.Process(target=write_with_little_room, args=(tmp_path, 2, room, sending))
    writer.start()
    assert receiving.recv() == errno.EFBIG
    writer.join()
    assert read_version(tmp_path) == 1
    assert not list((tmp_path / "shards" / ".staging").iterdir())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a small disk needs root")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk(small_disk: Path) -> None:
    write_version(small_disk, 1)
    with pytest.raises(OSError, match="No space left on device"):
        for version in range(2, 9):
            write_version(small_disk, version)
    current = read_version(small_disk)
    assert current >= 1
    current_shard = read_shard(
        small_disk / "shards",
        ShardManifest.model_validate_json((small_disk / "manifest.json").read_bytes()).shards[0],
    )
    assert len(current_shard) == 200
    assert find_shard(small_disk / "shards", "train-0") is not None
