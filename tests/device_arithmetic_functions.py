"""Fused and unfused products and sums of a device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from tightrope.audit_device_dots import NUMPY, compared, to_numpy, to_torch
from tightrope.audit_device_kernels import DEVICE, binary_kernel, instructions
from tightrope.interpreter.rounding import fma, round_to

Array = np.ndarray
BLOCK = 1024


def multiply_adds() -> Iterator[dict[str, Any]]:
    """x*w + x and tl.fma in each type: how often each way to round gives the bits of the device."""
    rng = np.random.default_rng(1)
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        kind = NUMPY[dtype]
        x, w = (round_to(np.ldexp(*_parts(rng)), kind) for _ in "xw")
        single = (x.astype("f4") * w.astype("f4") + x.astype("f4")).astype(kind)
        ways = {"fused": fma(x, w, x, kind), "rounded twice": x * w + x, "in float32": single}
        for name, fused in (("x * w + x", True), ("x * w + x", False), ("fma", True)):
            y = torch.empty(x.size, dtype=dtype, device=DEVICE)
            operands = to_torch(x, dtype), to_torch(w, dtype), y
            launched = binary_kernel[(x.size // BLOCK,)](
                *operands, name, BLOCK, enable_fp_fusion=fused
            )
            got = to_numpy(y)
            yield {
                "probe": "multiply and add", "dtype": str(dtype), "function": name,
                "fusion": fused, "instructions": instructions(launched), "compared": x.size,
                "unlike": {way: compared(got, z)["mismatches"] for way, z in ways.items()},
            }  # fmt: skip


def _parts(rng: np.random.Generator) -> tuple[Array, Array]:
    return rng.standard_normal(1 << 16), rng.integers(-3, 4, 1 << 16)
