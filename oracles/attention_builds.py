"""Compile-time combinations that attention cases draw from on a GPU, so that few kernels compile.

Every pair of values of two fields that may occur together does (tests/test_attention_cases.py);
the list was made once by greedy cover, 50 rows where the product has 544. Without a GPU nothing is
compiled and half of the cases combine freely.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from tightrope.limits import Limits

Build = tuple[Any, ...]

FIELDS = ("dtype", "head_dim", "head_dim_v", "out_dtype", "softcap", "bias", "bias_dtype")

# softcap and bias: whether there is one
BUILDS: tuple[Build, ...] = (
    ("bfloat16", 16, 16, "float32", False, True, "input"),
    ("bfloat16", 16, 16, "float32", True, True, "float32"),
    ("bfloat16", 24, 8, "input", True, False, "float32"),
    ("float16", 16, 16, "input", False, False, "float32"),
    ("float16", 24, 8, "float32", False, True, "input"),
    ("float32", 16, 16, "input", True, True, "float32"),
    ("float32", 24, 8, "input", False, False, "float32"),
    ("bfloat16", 40, 16, "float32", True, True, "input"),
    ("float16", 40, 16, "float32", False, False, "float32"),
    ("float32", 40, 16, "input", False, False, "float32"),
    ("bfloat16", 32, 32, "float32", False, True, "float32"),
    ("float16", 32, 32, "float32", True, True, "input"),
    ("float16", 32, 32, "input", True, False, "float32"),
    ("float32", 32, 32, "input", False, True, "float32"),
    ("bfloat16", 40, 40, "input", True, True, "input"),
    ("float16", 40, 40, "float32", False, False, "float32"),
    ("float32", 40, 40, "input", True, False, "float32"),
    ("bfloat16", 16, 96, "input", False, True, "input"),
    ("float16", 16, 96, "float32", True, False, "float32"),
    ("float32", 16, 96, "input", True, True, "float32"),
    ("bfloat16", 64, 64, "input", False, False, "float32"),
    ("float16", 64, 64, "float32", True, True, "input"),
    ("float32", 64, 64, "input", True, True, "float32"),
    ("bfloat16", 72, 72, "input", True, True, "input"),
    ("float16", 72, 72, "float32", False, False, "float32"),
    ("float32", 72, 72, "input", True, True, "float32"),
    ("bfloat16", 80, 80, "float32", True, True, "input"),
    ("float16", 80, 80, "input", False, False, "float32"),
    ("float32", 80, 80, "input", False, True, "float32"),
    ("bfloat16", 64, 128, "float32", False, False, "float32"),
    ("bfloat16", 96, 96, "float32", True, False, "float32"),
    ("bfloat16", 128, 64, "float32", False, False, "float32"),
    ("float16", 64, 128, "input", True, True, "input"),
    ("float16", 96, 96, "input", False, True, "input"),
    ("float16", 128, 64, "float32", False, True, "input"),
    ("float32", 64, 128, "input", False, False, "float32"),
    ("float32", 96, 96, "input", False, False, "float32"),
    ("float32", 128, 64, "input", True, True, "float32"),
    ("bfloat16", 128, 128, "float32", False, False, "float32"),
    ("float16", 128, 128, "float32", False, True, "input"),
    ("float32", 128, 128, "input", True, False, "float32"),
    ("bfloat16", 192, 128, "float32", True, False, "float32"),
    ("float16", 192, 128, "input", True, True, "input"),
    ("float32", 192, 128, "input", False, True, "float32"),
    ("bfloat16", 192, 192, "float32", True, True, "input"),
    ("float16", 192, 192, "input", False, True, "float32"),
    ("float32", 192, 192, "input", False, False, "float32"),
    ("bfloat16", 256, 256, "float32", False, True, "input"),
    ("float16", 256, 256, "input", True, True, "float32"),
    ("float32", 256, 256, "input", False, False, "float32"),
)
DIMS = tuple(dict.fromkeys(build[1:3] for build in BUILDS))


def legal(build: Build) -> bool:
    """float32 has one output dtype."""
    dtype, out_dtype = build[0], build[3]
    return dtype != "float32" or out_dtype == "input"


def builds(limits: Limits) -> tuple[Build, ...]:
    """Rows of the list within limits; if there is none, every combination the limits leave.

    Raises ValueError if nothing is left.
    """
    kept = tuple(b for b in BUILDS if _allowed(b, limits))
    found = kept or free(limits)
    if not found:
        raise ValueError("no combination of dtypes, head_dim and head_dim_v is within these limits")
    return found


def free(limits: Limits) -> tuple[Build, ...]:
    """Every legal combination within limits, of the list's head dims or the nearest allowed."""
    dims = [d for d in DIMS if _dims_allowed(d, limits)] or _nearest(limits)
    flags = [_flags(limits, name) for name in ("softcap", "bias")]
    every = product(
        limits.values("dtype"), dims, limits.values("out_dtype"), *flags,
        limits.values("bias_dtype"),
    )  # fmt: skip
    flat = ((dtype, *dim, *rest) for dtype, dim, *rest in every)
    return tuple(b for b in flat if legal(b))


def _flags(limits: Limits, name: str) -> list[bool]:
    off = limits.domain[name][0]
    allowed = {value != off for value in limits.values(name)}
    return sorted(allowed)


def _allowed(build: Build, limits: Limits) -> bool:
    f = dict(zip(FIELDS, build, strict=True))
    named = all(limits.allows(n, f[n]) for n in ("dtype", "out_dtype", "bias_dtype"))
    flags = all(f[n] in _flags(limits, n) for n in ("softcap", "bias"))
    return named and flags and _dims_allowed((f["head_dim"], f["head_dim_v"]), limits)


def _dims_allowed(dims: tuple[int, int], limits: Limits) -> bool:
    equal = dims[0] == dims[1] or "same_head_dim" not in limits.where
    aligned = dims[0] % 8 == dims[1] % 8 == 0 or "aligned16" not in limits.where
    fits = limits.allows("head_dim", dims[0]) and limits.allows("head_dim_v", dims[1])
    return equal and aligned and fits


def _nearest(limits: Limits) -> list[tuple[int, int]]:
    """Up to four pairs of head dims that the limits allow, small ones first."""
    every = product(sorted(limits.values("head_dim")), sorted(limits.values("head_dim_v")))
    return [d for d in every if _dims_allowed(d, limits)][:4]
