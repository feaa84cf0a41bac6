"""What the loop must know of the device: who holds it, and how much memory it has left."""

import contextlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from rl_assets.base.progress import Log
from rl_assets.base.workers.pool import CLUSTER
from rl_assets.errors import InputError


@contextlib.contextmanager
def device_lock(device: torch.device, log: Log | None = None) -> Iterator[None]:
    """Hold a CUDA device alone among this user's processes on the machine; wait while another one holds it.

    The lock is on a file named after the device's UUID, so it is the same whatever CUDA_VISIBLE_DEVICES
    says, and the system frees it when its holder dies. A CPU is not locked.

    Raises:
        InputError: the folder of the locks is not this user's own.
    """
    if device.type != "cuda":
        yield
        return
    with file_lock(str(torch.cuda.get_device_properties(device).uuid), log):
        yield


@contextlib.contextmanager
def file_lock(name: str, log: Log | None = None) -> Iterator[None]:
    """Hold this user's lock `name`; `log` is told who holds it where that is another process.

    Raises:
        InputError: the folder of the locks is not this user's own.
    """
    file = _own_folder() / f"{name}.lock"
    lock = FileLock(file)
    try:
        held = lock.acquire(blocking=False)
    except Timeout:
        if log:
            log(f"waiting for device {name}: process {file.read_text().strip() or '?'} holds it")
        held = lock.acquire()
    with held:
        file.write_text(f"{os.getpid()}\n")
        yield


def _own_folder() -> Path:
    """A folder that this user alone can write to: in one of all users, a lock could be a link to any file."""
    folder = Path(tempfile.gettempdir()) / f"rl-assets-locks-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise InputError(
            file=folder,
            found="a link, a file, or another user's folder",
            expected="a folder of this user's own, for the locks of devices",
            remedy="Remove it, or set TMPDIR to a folder of your own.",
        )
    return folder


def device_names(name: str) -> list[str]:
    """The devices that a setting means: ``auto`` is every CUDA device of this machine, or the CPU.

    Where the work goes to a Ray cluster, ``auto`` stays what it is, for the cluster to decide.
    """
    if name != "auto" or os.environ.get(CLUSTER):
        return [name]
    return [f"cuda:{index}" for index in range(torch.cuda.device_count())] or ["cpu"]


def free_memory(device: torch.device) -> int:
    """Bytes that could be allocated on `device` now."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def peak_memory(device: torch.device) -> int:
    """Most bytes held so far: of the device on CUDA, of this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource

    unit = 1 if sys.platform == "darwin" else 1024  # bytes on macOS, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def release_memory(device: torch.device) -> None:
    """Give cached memory back to the device, so that others can have it."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
