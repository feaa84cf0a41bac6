"""Disks that are full or may not be written, raw files that change: an error by name, and the old assets."""

import ctypes
import os
import re
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rl_assets.contract import gate
from rl_assets.graph.dataset import GraphDataset
from tests.build import failure, materialize, problem, write_jsonl
from tests.chaos.kills import assets, is_whole, leftovers, require_whole, start

OTHER = [problem(number) for number in range(20, 30)]


def outcome(dataset: GraphDataset, before: Callable[[], object], after: Callable[[], object] = bool) -> str:
    """Build in a process in which `before` was done; the message of the step that failed.

    Args:
        after: done in the same process.
    """

    def work() -> bool:
        before()
        with open(os.devnull, "w") as nowhere:  # the limit of a disk holds for logs too
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        result = materialize(dataset)
        data = (event.step_failure_data for event in result.all_events if event.is_step_failure)
        messages = [failed.error.to_string() for failed in data if failed.error]
        os.write(writer, "\n".join(messages).encode()[:60_000])
        after()
        return not result.success

    reader, writer = os.pipe()
    child = start(dataset.root, work)
    os.close(writer)
    with os.fdopen(reader) as stream:
        message = stream.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, (dataset.root / "log.txt").read_text()[-3000:]
    return message


def change_the_rows(dataset: GraphDataset) -> None:
    write_jsonl(dataset.root / "data/toy/train.jsonl", OTHER)


# --- disks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1_000, 9_000, 13_000])
def test_a_full_disk(toy: GraphDataset, size: int) -> None:
    """No file may grow beyond a size, as if the disk were full there."""
    change_the_rows(toy)
    before = assets(toy.root)

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    message = outcome(toy, limit)
    assert re.search(r"File too large: '.*/data/storage/toy/.*'", message), message[:3000]
    require_whole(toy.root)
    assert before.keys() <= assets(toy.root).keys()


def test_a_storage_that_may_not_be_written(toy: GraphDataset) -> None:
    change_the_rows(toy)
    before = assets(toy.root)
    folders = [path for path in (toy.root / "data/storage").rglob("*") if path.is_dir()]
    for folder in [toy.root / "data/storage", *folders]:
        folder.chmod(0o555)
    try:
        message = outcome(toy, drop_capabilities)
    finally:
        for folder in [toy.root / "data/storage", *folders]:
            folder.chmod(0o755)
    assert re.search(r"Permission denied: '.*/data/storage/toy/.*'", message), message[:3000]
    assert assets(toy.root) == before


def drop_capabilities() -> None:
    """Make permissions count for the superuser too."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    ctypes.CDLL(None).capset(header, (ctypes.c_uint32 * 6)())


class Mounts:
    """File systems that only one process sees, and what it starts."""

    NEWNS, NEWUSER = 0x20000, 0x10000000
    READ_ONLY, REMOUNT, BIND, PRIVATE = 1, 32, 4096, 0x4000 | 1 << 18

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        user, group = os.getuid(), os.getgid()
        if self._libc.unshare(self.NEWNS):
            if self._libc.unshare(self.NEWNS | self.NEWUSER):
                raise PermissionError("neither a superuser nor a user who may have a name space")
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"0 {user} 1")
            Path("/proc/self/gid_map").write_text(f"0 {group} 1")
        self.mount("none", "/", "", self.PRIVATE, "")

    def mount(self, source: str, target: str, kind: str, flags: int, options: str) -> None:
        words = (source.encode(), target.encode(), kind.encode())
        if self._libc.mount(*words, flags, options.encode()):
            raise OSError(ctypes.get_errno(), f"mount {target}")

    def small_disk(self, folder: Path, free: int) -> None:
        """A disk of its own for a folder, with what the folder holds and so many bytes more."""
        held = folder.with_name("held")
        shutil.copytree(folder, held)
        self.mount("none", str(folder), "tmpfs", 0, "")
        shutil.copytree(held, folder, dirs_exist_ok=True)
        found = os.statvfs(folder)
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
        self.mount("none", str(folder), "tmpfs", self.REMOUNT, f"size={used + free}")

    def read_only(self, folder: Path) -> None:
        self.mount(str(folder), str(folder), "", self.BIND, "")
        self.mount("none", str(folder), "", self.BIND | self.REMOUNT | self.READ_ONLY, "")


def may_mount() -> bool:
    """Whether a process may have mounts of its own here."""
    child = os.fork()
    if not child:
        try:
            Mounts()
            os._exit(0)
        except OSError:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


needs_mounts = pytest.mark.skipif(not may_mount(), reason="this system lets nobody mount")


@needs_mounts
@pytest.mark.parametrize("free", [0, 50_000])
def test_a_disk_without_room(toy: GraphDataset, free: int) -> None:
    """What the failed build left is looked at in its process, where the disk is."""
    change_the_rows(toy)
    before = assets(toy.root)

    def look() -> None:
        assert is_whole(toy.root)
        assert before.keys() <= assets(toy.root).keys()
        assert not leftovers(toy.root)

    message = outcome(toy, lambda: Mounts().small_disk(toy.root / "data/storage", free), look)
    assert re.search(r"No space left on device: '.*/data/storage/toy/.*'", message), message[:3000]


@needs_mounts
def test_a_disk_that_is_mounted_read_only(toy: GraphDataset) -> None:
    change_the_rows(toy)
    before = assets(toy.root)
    message = outcome(toy, lambda: Mounts().read_only(toy.root / "data/storage"))
    assert re.search(r"Read-only file system: '.*/data/storage.*'", message), message[:3000]
    assert assets(toy.root) == before


# --- raw files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda path: path.unlink(), "no such file any more"),
        (lambda path: path.write_text(path.read_text() + "{}\n"), "bytes, expected the"),
    ],
    ids=["vanishes", "grows"],
)
def test_a_raw_file_that_changes_after_its_scan(
    toy: GraphDataset, change: Callable[[Path], object], says: str
) -> None:
    change_the_rows(toy)
    assert materialize(toy, "raw_files").success
    before = assets(toy.root)
    change(toy.root / "data/toy/train.jsonl")
    result = materialize(toy, "field_contract", "rejected_rows")
    assert not result.success
    assert "data/toy/train.jsonl: found" in failure(result)
    assert says in failure(result)
    assert assets(toy.root) == before


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda path: path.unlink(), "no such file any more"),
        (lambda path: path.write_text(path.read_text() + "{}\n"), "written to while it was read"),
        (lambda path: path.write_text(path.read_text()[:-40]), "written to while it was read"),
        (lambda path: path.write_text(path.read_text().replace("29 + 29", "29 + 92")), "written to while"),
    ],
    ids=["vanishes", "grows", "shrinks", "is written over"],
)
def test_a_raw_file_that_changes_while_it_is_read(
    toy: GraphDataset, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object], says: str
) -> None:
    change_the_rows(toy)
    raw, read_rows, before = toy.root / "data/toy/train.jsonl", gate.read_rows, assets(toy.root)

    def change_after_a_row(path: str, *arguments: Any) -> Iterator[Any]:
        for number, row in enumerate(read_rows(path, *arguments)):
            if number == 1 and path.endswith("train.jsonl"):
                change(raw)
            yield row

    monkeypatch.setattr(gate, "read_rows", change_after_a_row)
    result = materialize(toy, "raw_files", "field_contract", "rejected_rows")
    assert not result.success
    assert "data/toy/train.jsonl: found" in failure(result)
    assert says in failure(result)
    after = assets(toy.root)
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert changed == {"toy/raw_files.json"}
