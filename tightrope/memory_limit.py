"""How much memory of the host one process of a run may use."""

from __future__ import annotations

import os
import resource
from pathlib import Path

GIB = 1 << 30
PART = 0.8  # of the machine's memory, for all workers together
CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

_limit: int | None = None


class MemoryLimit(RuntimeError):
    """The process holds more memory than it may, or cannot have what it asks for."""


def gibibytes(text: str) -> float:
    """An option's number of GiB, 0 for no limit; raises ValueError."""
    if not 0 <= float(text) < float("inf"):
        raise ValueError(text)
    return float(text)


def fair(workers: int) -> float:
    """GiB for each of so many processes, of what the machine or its container has."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in map(Path, CGROUPS):
        if path.is_file() and (words := path.read_text().strip()).isdigit():
            whole = min(whole, int(words))
    return max(1.0, round(PART * whole / max(1, workers) / GIB, 1))


def apply(gib: float | None, virtual: bool) -> None:
    """Limit this process; None or 0: no limit.

    virtual: also what it may ask for, so that one huge request fails in place of the machine. Not
    with CUDA, which maps far more than it uses.
    """
    global _limit
    _limit = int(gib * GIB) if gib else None
    if _limit is not None and virtual:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = held("VmData") + _limit  # what is mapped by now is no kernel's doing
        if hard != resource.RLIM_INFINITY:
            wanted = min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def held(field: str = "VmRSS") -> int:
    """Bytes that this process holds, by the name of /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) << 10
    raise LookupError(field)


def prove_within() -> None:
    """Raise MemoryLimit if the process holds more than it may."""
    if _limit is None:
        return
    with open("/proc/self/statm", "rb") as file:
        pages = int(file.read().split()[1])
    if pages * resource.getpagesize() > _limit:
        raise MemoryLimit(
            f"the process holds {pages * resource.getpagesize() / GIB:.2f} GiB after this call, "
            f"its limit is {_limit / GIB:.2f} (--memory-limit)"
        )
