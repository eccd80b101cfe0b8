"""Dots of operands that the kernel itself widens: which of them are summed together.

With fewer than 64 rows a lane holds as many neighbours along k as fit in 32 bits of the type that
was loaded, so that one instruction takes places that are not neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from tightrope.audit_device_dots import NUMPY, rounded, to_numpy, to_torch, unequal
from tightrope.audit_device_kernels import DEVICE, instructions, widened_kernel
from tightrope.interpreter.dots import by_lanes
from tightrope.interpreter.tensor_core import HALF, TF32, tensor_core

Array = np.ndarray
CASES = (
    (torch.float8_e4m3fn, torch.bfloat16), (torch.float8_e5m2, torch.float16),
    (torch.bfloat16, torch.float32), (torch.float8_e4m3fn, torch.float32),
    (torch.float32, torch.bfloat16),
)  # fmt: skip
ORDERS = ((1, 1), (1, 2), (1, 4), (2, 2), (2, 4), (4, 2))


def in_order(a: Array, b: Array, run: int, parts: int) -> Array:
    """The products of each trial, where `run` of `run * parts` neighbours are summed together."""
    core = TF32 if a.dtype == np.float32 else HALF
    x, y = by_lanes(a, -1, run, parts), by_lanes(b, -2, run, parts)
    return tensor_core(x, y, np.zeros((*a.shape[:2], b.shape[2]), np.float32), core)


def widened(m: int, k: int, trials: int, n: int = 16) -> Iterator[dict[str, Any]]:
    """One record a pair of types: outputs unlike each order, "run of neighbours a lane holds"."""
    for loaded, used in CASES:
        rng = np.random.default_rng(7)
        a, b = (
            rounded(np.ldexp(rng.standard_normal(s), rng.integers(-4, 5, s)), NUMPY[loaded])
            for s in ((trials, m, k), (trials, k, n))
        )
        result = torch.empty((trials, m, n), device=DEVICE)
        kind = torch.empty(1, dtype=used, device=DEVICE)
        operands = to_torch(a, loaded), to_torch(b, loaded), result, kind
        launched = widened_kernel[(trials,)](*operands, m, n, k)
        got, x, y = to_numpy(result), a.astype(NUMPY[used]), b.astype(NUMPY[used])
        unlike = {
            f"{run} of {run * parts}": int(unequal(got, in_order(x, y, run, parts)).sum())
            for run, parts in ORDERS
        }
        yield {
            "probe": "widened", "loaded": str(loaded), "dtype": str(used), "shape": (m, n, k),
            "instructions": instructions(launched), "compared": got.size, "unlike": unlike,
        }  # fmt: skip
