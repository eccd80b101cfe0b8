"""Dots fed into dots, and the same dots by two instructions: a device against the model."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from tightrope.audit_device_data import KINDS, Draw
from tightrope.audit_device_dots import NUMPY, Model, compared, each, rounded, to_numpy, to_torch
from tightrope.audit_device_kernels import DEVICE, chain_kernel, dot_kernel, instructions
from tightrope.interpreter.dots import dot


def chained(
    dtype: torch.dtype, precision: str, shape: tuple[int, int, int], products: int, steps: int = 4
) -> dict[str, Any]:
    """Accumulators fed through several dots with a rescaling between, some of the scales zero."""
    (m, n, k), kind = shape, NUMPY[dtype]
    trials = max(2, products // (m * n * k * steps))
    draw = Draw(5, trials, m, n, k * steps, kind)
    a, b, c = draw.plain(4)
    s = np.exp2(-np.abs(draw.normal((trials, steps, m), 2))).astype(np.float32)
    s[draw.some(s.shape, 0.2)] = 1
    s[draw.some(s.shape, 0.05)] = 0
    a = rounded(a.reshape(trials, m, steps, k).swapaxes(1, 2), kind)
    b, c = rounded(b.reshape(trials, steps, k, n), kind), c.astype(np.float32)
    result = torch.empty(c.shape, device=DEVICE)
    operands = to_torch(a, dtype), to_torch(b, dtype), *(to_torch(x, torch.float32) for x in (c, s))
    # Fused, the accumulator of tf32x3, which is added last, would not be rounded before.
    launched = chain_kernel[(trials,)](
        *operands, result, steps, m, n, k, precision, enable_fp_fusion=False
    )
    model: Model = partial(dot, precision=precision, model="hopper")
    for i in range(steps):
        c = each(model, a[:, i], b[:, i], c * s[:, i, :, None])
    found = compared(to_numpy(result), c)
    found.pop("at")
    return {
        "probe": "chained dots", "dtype": str(dtype), "precision": precision, "shape": shape,
        "instructions": instructions(launched), **found,
    }  # fmt: skip


def by_rows(dtype: torch.dtype, k: int, products: int) -> dict[str, Any]:
    """The same numbers through 16 rows (mma.sync) and 64 (wgmma): are the bits equal?"""
    trials, n = max(2, products // (64 * 16 * k)), 16
    unequal, used = {}, set()
    for seed, (kind, draw) in enumerate(KINDS.items()):
        x = draw(Draw(seed, trials, 64, n, k, NUMPY[dtype]))
        a, b = (to_torch(rounded(v, NUMPY[dtype]), dtype) for v in x[:2])
        c = torch.from_numpy(x[2].astype(np.float32)).to(DEVICE)
        wide, narrow = torch.empty_like(c), torch.empty_like(c)
        used |= set(instructions(dot_kernel[(trials,)](a, b, c, wide, 64, n, k, "tf32")))
        parts = a.reshape(-1, 16, k), b.repeat_interleave(4, 0), c.reshape(-1, 16, n)
        used |= set(instructions(dot_kernel[(4 * trials,)](*parts, narrow, 16, n, k, "tf32")))
        differ = (wide.view(torch.int32) != narrow.view(torch.int32)) & ~(
            wide.isnan() & narrow.isnan()
        )
        unequal[kind] = int(differ.sum())
    return {
        "probe": "16 rows and 64", "dtype": str(dtype), "k": k, "instructions": sorted(used),
        "compared": wide.numel() * len(KINDS), "mismatches": sum(unequal.values()), "by": unequal,
    }  # fmt: skip
