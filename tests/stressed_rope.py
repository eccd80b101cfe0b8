"""Rotations, every rounding at the end of its range: right kernels.

`python tests/record_false_alarms.py FILE stressed` runs every law on them.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from pushed_calls import SEED, arrays, dtype_of, tensor
from simulated_rope import arithmetic, kernel
from test_rope_budget import PATTERNS, pushed

from tightrope import implements

DTYPES = ("float16", "bfloat16", "float32")


def rotated(pattern, xs, cos, sin, positions, interleaved, out_dtype):
    """Copies of xs (tokens, heads, head_dim), rotated in float32."""
    cos, sin, rows = arrays(cos, sin, positions)
    outs = []
    for x in xs:
        dtype = dtype_of(x, out_dtype)
        case = SimpleNamespace(
            interleaved=interleaved, dtype=str(x.dtype).removeprefix("torch."),
            out_dtype="input" if out_dtype is None else "float32",
        )  # fmt: skip
        given = {"x": arrays(x)[0], "cos": cos, "sin": sin, "positions": rows}
        step = pushed(pattern, np.random.default_rng(SEED))
        outs.append(tensor(kernel(case, given, "x", arithmetic(), step), dtype))
    return outs


def register(pattern):
    @implements("rope", name=f"stressed_{pattern}", dtype=DTYPES)
    def _(q, k, cos, sin, positions, *, interleaved, inplace=False, out_dtype=None):
        outs = rotated(pattern, (q, k), cos, sin, positions, interleaved, out_dtype)
        return [x.copy_(y) for x, y in zip((q, k), outs, strict=True)] if inplace else outs

    @implements("rope_backward", name=f"stressed_{pattern}", dtype=DTYPES)
    def _(dq, dk, cos, sin, positions, *, interleaved, inplace=False, out_dtype=None):
        outs = rotated(pattern, (dq, dk), cos, -sin, positions, interleaved, out_dtype)
        return [x.copy_(y) for x, y in zip((dq, dk), outs, strict=True)] if inplace else outs


for each in PATTERNS:
    register(each)
