"""What the loop must know of the device: who holds it, and how much memory it has left."""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from rl_assets.base.progress import Log
from rl_assets.base.workers.pool import CLUSTER


@contextlib.contextmanager
def device_lock(device: torch.device, log: Log | None = None) -> Iterator[None]:
    """Hold a CUDA device alone among the processes of this machine; wait while another one holds it.

    The lock is an `fcntl` lock on a file named after the device's UUID, so it is the same whatever
    CUDA_VISIBLE_DEVICES says, and the system frees it when its holder dies. A CPU is not locked.
    """
    if device.type != "cuda":
        yield
        return
    with file_lock(str(torch.cuda.get_device_properties(device).uuid), log):
        yield


@contextlib.contextmanager
def file_lock(name: str, log: Log | None = None) -> Iterator[None]:
    """Hold the machine-wide lock `name`; `log` is told who holds it where that is another process."""
    folder = Path(tempfile.gettempdir()) / "rl-assets-locks"
    folder.mkdir(mode=0o1777, exist_ok=True)
    # Opened for appending: a waiter must not wipe the holder's process id.
    with (folder / f"{name}.lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            if log:
                log(f"waiting for device {name}: process {file.read().strip() or '?'} holds it")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


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

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def release_memory(device: torch.device) -> None:
    """Give cached memory back to the device, so that others can have it."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
