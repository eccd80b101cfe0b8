"""Errors after which no result of the process can be trusted: it is replaced, not asked again."""

from __future__ import annotations

import re

from tightrope.memory_limit import MemoryLimit

STICKY = re.compile(
    r"illegal memory access|misaligned address|device-side assert|unspecified launch failure|"
    r"illegal instruction|hardware stack error|invalid program counter|illegal address",
    re.IGNORECASE,
)
EXHAUSTED = re.compile(r"can't allocate memory|out of memory", re.IGNORECASE)


class DeviceLost(RuntimeError):
    """A CUDA error after which no kernel of this process can be trusted."""


def fatal(error: Exception) -> RuntimeError | None:
    """The error as DeviceLost or MemoryLimit; None for one that a process survives."""
    lines = str(error).splitlines()
    told = lines[0] if lines else type(error).__name__
    if isinstance(error, MemoryError | MemoryLimit) or EXHAUSTED.search(str(error)):
        return MemoryLimit(told)
    if STICKY.search(str(error)):
        return DeviceLost(told)
    return None
