"""Processes and GPUs: how many workers, and which device each of them sees."""

from __future__ import annotations

import os
from pathlib import Path


def visible_gpus() -> list[str]:
    """Ids of the GPUs this process may use, found without starting CUDA."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [g for g in named.split(",") if g.strip()]
    return [str(i) for i in range(len(list(Path("/dev").glob("nvidia[0-9]*"))))]


def workers() -> int:
    """Worker processes for a run: host work (oracles, interpreter, compilation) dominates."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, min(cores, 16))
