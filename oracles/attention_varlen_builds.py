"""Compile-time combinations for attention contracts without a bias: packed and paged sequences.

As in `tightrope.oracles.attention_builds`, and fewer: 27 rows in which every pair of values of two
fields occurs that may (tests/test_attention_cases.py). bias_dtype is that of the sink.
"""

from __future__ import annotations

from tightrope.limits import Limits
from tightrope.oracles import attention_builds
from tightrope.oracles.attention_builds import Build

FIELDS = ("dtype", "head_dim", "head_dim_v", "out_dtype", "softcap", "bias_dtype")
BIAS = attention_builds.FIELDS.index("bias")

# softcap: whether there is one
BUILDS: tuple[Build, ...] = (
    ("bfloat16", 16, 16, "float32", True, "input"),
    ("float16", 16, 16, "input", False, "float32"),
    ("float32", 16, 16, "input", False, "float32"),
    ("bfloat16", 24, 8, "input", False, "float32"),
    ("float16", 24, 8, "float32", True, "input"),
    ("float32", 24, 8, "input", False, "float32"),
    ("bfloat16", 40, 40, "float32", False, "input"),
    ("float16", 40, 40, "input", True, "float32"),
    ("float32", 40, 40, "input", False, "float32"),
    ("bfloat16", 64, 64, "float32", False, "input"),
    ("float16", 64, 64, "float32", True, "input"),
    ("float32", 64, 64, "input", True, "float32"),
    ("bfloat16", 64, 128, "float32", False, "input"),
    ("float16", 64, 128, "input", True, "float32"),
    ("float32", 64, 128, "input", False, "float32"),
    ("bfloat16", 80, 80, "float32", True, "float32"),
    ("float16", 80, 80, "input", False, "input"),
    ("float32", 80, 80, "input", True, "float32"),
    ("bfloat16", 128, 128, "input", False, "input"),
    ("float16", 128, 128, "float32", False, "input"),
    ("float32", 128, 128, "input", True, "float32"),
    ("bfloat16", 192, 128, "input", False, "input"),
    ("float16", 192, 128, "float32", False, "input"),
    ("float32", 192, 128, "input", True, "float32"),
    ("bfloat16", 256, 256, "input", True, "input"),
    ("float16", 256, 256, "float32", False, "float32"),
    ("float32", 256, 256, "input", True, "float32"),
)


def builds(limits: Limits) -> tuple[Build, ...]:
    """Rows of the list within limits; if there is none, every combination the limits leave.

    Raises ValueError if nothing is left.
    """
    every = free(limits)
    if not every:
        raise ValueError("no combination of dtypes, head_dim and head_dim_v is within these limits")
    return tuple(b for b in BUILDS if b in every) or every


def free(limits: Limits) -> tuple[Build, ...]:
    """Every legal combination within limits, of known head dims or the nearest allowed."""
    domain = {**limits.domain, "bias": ("none", "full")}
    wide = Limits(domain, limits.given, limits.where)
    rows = (b[:BIAS] + b[BIAS + 1 :] for b in attention_builds.free(wide))
    return tuple(dict.fromkeys(rows))
