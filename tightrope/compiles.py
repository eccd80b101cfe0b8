"""How many kernels this process has compiled: compilation is a cost that a run reports."""

from __future__ import annotations

import sys
from functools import cache


def count() -> int:
    """Variants compiled so far by Triton in this process; 0 under the interpreter."""
    triton = sys.modules.get("triton")
    if triton is None:
        return 0
    return sum(_cached(fn) for fn in _functions())


@cache
def _functions() -> list[object]:
    return []


def watch(fn: object) -> None:
    """Count the variants of a jitted function (bundled launchers call this once a kernel)."""
    if fn not in _functions():
        _functions().append(fn)


def _cached(fn: object) -> int:
    caches = getattr(fn, "device_caches", None) or {}
    return sum(len(entry[0]) for entry in caches.values())
