"""The most memory that this process has had."""

import resource
from pathlib import Path


def peak_bytes() -> int:
    """Peak resident memory of this process, in bytes.

    Where there is /proc, its figure counts from the start of the program; `ru_maxrss` goes on from the
    peak of the process that started it.
    """
    status = Path("/proc/self/status")
    if status.exists():
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(fields["VmHWM"].split()[0]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
