"""Disks that are full or may not be written, raw files that change: an error by name, and the old assets."""

import ctypes
import os
import re
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from rl_assets.assets.dataset import Dataset
from tests.build import failure, materialize, problem, write_jsonl
from tests.chaos.kills import assets, require_whole, start


def outcome(dataset: Dataset, before: Callable[[], object]) -> str:
    """Build in a process in which `before` was done; the message of the step that failed."""

    def work() -> bool:
        before()
        with open(os.devnull, "w") as nowhere:  # the limit of a disk holds for logs too
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        result = materialize(dataset)
        data = (event.step_failure_data for event in result.all_events if event.is_step_failure)
        messages = [failed.error.to_string() for failed in data if failed.error]
        os.write(writer, "\n".join(messages).encode()[:60_000])
        return not result.success

    reader, writer = os.pipe()
    child = start(dataset.root, work)
    os.close(writer)
    with os.fdopen(reader) as stream:
        message = stream.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, (dataset.root / "log.txt").read_text()[-3000:]
    return message


def change_the_rows(dataset: Dataset) -> None:
    write_jsonl(dataset.root / "data/toy/train.jsonl", [problem(number) for number in range(20, 30)])


@pytest.mark.parametrize("size", [1_000, 9_000, 13_000])
def test_a_full_disk(toy: Dataset, size: int) -> None:
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


def test_a_storage_that_may_not_be_written(toy: Dataset) -> None:
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


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda path: path.unlink(), "no such file any more"),
        (lambda path: path.write_text(path.read_text() + "{}\n"), "bytes, expected the"),
    ],
    ids=["vanishes", "grows"],
)
def test_a_raw_file_that_changes_after_its_scan(
    toy: Dataset, change: Callable[[Path], object], says: str
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
