"""Files that appear whole or not at all: staging folders, locks, publishing in one step.

Work is written to a staging folder first and moved into place in one step, so that a reader sees the old file
or the new one, never half of either.
"""

import contextlib
import errno
import logging
import os
import platform
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout
from upath import UPath

from rl_assets.base import formats
from rl_assets.base.digests import digest_bytes
from rl_assets.errors import InputError, first_line
from rl_assets.spec.credentials import REMEDY, carries_credentials

DAMAGED = ".damaged"
"""Ending of the name under which something that cannot be read is put aside."""
_LOCK = ".lock"
_WEEK = 7 * 24 * 3600.0
_log = logging.getLogger(__name__)


def storage_root(project: Path) -> UPath:
    """Where assets are kept: `RL_ASSETS_STORAGE` (a folder or any fsspec URL), else `data/storage`.

    Args:
        project: the project's top folder, against which a relative folder is read.

    Raises:
        InputError: the URL has credentials in it.
    """
    address = os.environ.get("RL_ASSETS_STORAGE") or "data/storage"
    if carries_credentials(address):
        raise InputError(
            field="RL_ASSETS_STORAGE",
            found="an address with credentials in it, and it is shown",
            remedy=REMEDY,
        )
    place = UPath(address)
    return UPath(project / str(place)) if is_local(place) else place


def is_url(path: str) -> bool:
    """Whether `path` names a file of an fsspec file system and not of the local disk."""
    return "://" in path


def is_local(path: Path | UPath) -> bool:
    """Whether `path` lies on a local disk, where a rename is atomic."""
    return not isinstance(path, UPath) or path.protocol in ("", "file", "local")


@contextlib.contextmanager
def staging(root: Path | UPath) -> Iterator[Path]:
    """A fresh local folder for unfinished work, removed at the end whatever happens.

    It lies on the disk of `root` where that is local, so that publishing is a rename, not a copy. What a
    killed process of this machine left there is removed.
    """
    with contextlib.ExitStack() as held:
        if is_local(root):
            parent = Path(str(root)) / ".staging"
            make_folder(parent)
            folder = _own_folder(parent, held)
        else:
            folder = Path(tempfile.mkdtemp(prefix="rl-assets-"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _own_folder(parent: Path, held: contextlib.ExitStack) -> Path:
    """A fresh folder in `parent` that is locked until `held` is closed or the process dies."""
    # Else another process may take a folder for abandoned that is not locked yet.
    with locked(parent / _LOCK):
        for other in parent.glob(f"{_machine()}*"):
            if is_abandoned(other):
                shutil.rmtree(other, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=_machine(), dir=parent))
        held.enter_context(locked(folder / _LOCK))
    return folder


def _machine() -> str:
    """What the names of this machine's staging folders begin with: its locks may not be seen from another."""
    return digest_bytes(platform.node().encode())[:8] + "-"


def is_abandoned(folder: Path) -> bool:
    """Whether the process that made a staging folder is gone.

    On this machine its lock says so. Of another machine's folder, or where the file system has no locks,
    nothing is known: it counts as abandoned once nothing in it was written for a week.
    """
    held = is_locked(folder / _LOCK) if folder.name.startswith(_machine()) else None
    if held is not None:
        return not held
    times = [path.lstat().st_mtime for path in (folder, *folder.rglob("*"))]
    return max(times) < time.time() - _WEEK


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold the lock of a file that is there for nothing else; wait while another process holds it.

    The lock ends with the block or the process. On a file system without locks nothing is held.
    """
    lock = FileLock(file, thread_local=False)
    with contextlib.suppress(OSError):
        lock.acquire()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.unlink()  # before the release: who waits for it sees that it is gone, and makes another
        lock.release()


def is_locked(file: Path) -> bool | None:
    """Whether a living process of this machine holds the lock of a file; None where locks say nothing."""
    if not file.exists():
        return False
    try:
        with FileLock(file, blocking=False):
            return False
    except Timeout:
        return True
    except OSError:  # gone meanwhile, or a file system without locks
        return None


def make_folder(path: Path | UPath) -> None:
    """Make a folder of the store, and those above it; a file that is in its place is put aside."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        in_the_way = next((place for place in (path, *path.parents) if place.is_file()), None)
        if in_the_way is None:
            raise
        put_aside(in_the_way, error)
        path.mkdir(parents=True, exist_ok=True)


def put_aside(path: Path | UPath, why: BaseException | str) -> UPath | None:
    """Rename what is damaged to its name and `.damaged`, so that the next run makes it again.

    What was put aside under that name before is replaced. The log names both.

    Returns:
        Where it is now; None where it could not be renamed (a store that may not be written), or was gone.
    """
    path = UPath(path)
    aside = path.parent / f"{path.name}{DAMAGED}"
    reason = first_line(why) if isinstance(why, BaseException) else why
    try:
        if aside.exists():
            aside.fs.rm(aside.path, recursive=True)
        if is_local(path):
            os.rename(str(path), str(aside))
        else:
            path.fs.mv(path.path, aside.path, recursive=True)
    except OSError as error:
        _log.warning("%s is damaged (%s), and cannot be renamed (%s)", path, reason, first_line(error))
        return None
    _log.warning("%s is damaged (%s): it was renamed to %s and is made again", path, reason, aside.name)
    return aside


@contextlib.contextmanager
def damage_put_aside() -> Iterator[None]:
    """Put aside what turns out to be damaged, and say so in the error: the next run makes it again.

    Raises:
        UnreadableError: something was.
    """
    try:
        yield
    except formats.UnreadableError as error:
        aside = put_aside(UPath(error.file), error.found) if error.file else None
        if aside is None:
            raise
        raise formats.UnreadableError(
            file=error.file,
            field=error.field,
            found=error.found,
            expected=error.expected,
            remedy=f"It was renamed to {aside.name}. Run the job again: what is missing is made again.",
        ) from error


def publish_file(staged: Path, target: Path | UPath) -> None:
    """Put a finished local file at `target` in one step, replacing what was there.

    On a local disk this is a link (a copy, where the disks differ) beside the target and a rename. An
    object store makes an upload visible only when it is complete, so there the upload itself is the step.
    The staged file stays readable until its staging folder goes.
    """
    make_folder(target.parent)
    if target.is_dir():
        put_aside(target, "a folder in the place of a file")
    if not is_local(target):
        with staged.open("rb") as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
        return
    name = f".{target.name}.{uuid.uuid4().hex}.tmp"
    beside = staged.parent / name
    try:
        try:
            os.link(staged, beside)
            _replace(beside, target)
        except OSError:  # another disk, or a file system without links
            beside.unlink(missing_ok=True)
            beside = Path(str(target.parent)) / name
            _clear(beside.parent, f".{target.name}.*.tmp")
            with named_errors(beside):
                shutil.copyfile(staged, beside)
                _replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)


def _clear(folder: Path, pattern: str) -> None:
    """Remove what a process that was killed left half-written, an hour ago or earlier."""
    for path in folder.glob(pattern):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < time.time() - 3600:
                path.unlink()


def _replace(source: Path, target: Path | UPath) -> None:
    with source.open("rb") as written:
        os.fsync(written.fileno())
    os.replace(source, str(target))


@contextlib.contextmanager
def named_errors(path: Path | UPath) -> Iterator[None]:
    """Let an error of the disk say which file it is about: one that comes while writing does not."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise OSError(error.errno or errno.EIO, error.strerror or first_line(error), str(path)) from error
        raise


def write_file(target: Path | UPath, data: bytes) -> None:
    """Write `data` to `target` in one step, replacing what was there."""
    with tempfile.TemporaryDirectory(prefix="rl-assets-") as folder, named_errors(target):
        staged = Path(folder) / "data"
        staged.write_bytes(data)
        publish_file(staged, target)
