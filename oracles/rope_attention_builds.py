"""Compile-time combinations that `rope_attention` cases draw from on a GPU.

As in `tightrope.oracles.attention_builds`: 33 rows in which every pair of values of two fields
occurs that may (tests/test_attention_cases.py). bias_dtype is that of the sink.
"""

from __future__ import annotations

from itertools import product

from tightrope.limits import Limits
from tightrope.oracles import attention_varlen_builds
from tightrope.oracles.attention_builds import Build

FIELDS = (
    *("dtype", "head_dim", "head_dim_v", "rotary_dim", "out_dtype", "softcap", "bias_dtype"),
    *("interleaved", "table_dtype", "position_dtype"),
)

# softcap: whether there is one
BUILDS: tuple[Build, ...] = (
    ("bfloat16", 16, 16, 16, "float32", False, "input", True, "input", "int64"),
    ("float16", 16, 16, 16, "input", True, "float32", False, "float32", "int32"),
    ("float32", 16, 16, 16, "input", True, "float32", True, "float32", "int64"),
    ("bfloat16", 24, 8, 16, "float32", False, "input", True, "input", "int64"),
    ("float16", 24, 8, 16, "input", False, "float32", False, "input", "int64"),
    ("float32", 24, 8, 16, "input", True, "float32", False, "float32", "int32"),
    ("bfloat16", 40, 40, 40, "input", True, "input", False, "float32", "int64"),
    ("float16", 40, 40, 40, "float32", False, "float32", True, "input", "int32"),
    ("float32", 40, 40, 40, "input", True, "float32", True, "float32", "int64"),
    ("bfloat16", 64, 64, 32, "float32", False, "float32", False, "float32", "int64"),
    ("float16", 64, 64, 32, "input", True, "input", True, "input", "int32"),
    ("float32", 64, 64, 32, "input", False, "float32", False, "float32", "int64"),
    ("bfloat16", 64, 64, 64, "input", False, "float32", False, "float32", "int64"),
    ("float16", 64, 64, 64, "float32", True, "input", True, "input", "int32"),
    ("float32", 64, 64, 64, "input", False, "float32", True, "float32", "int64"),
    ("bfloat16", 80, 80, 32, "float32", False, "input", True, "input", "int32"),
    ("float16", 80, 80, 32, "input", True, "float32", False, "input", "int32"),
    ("float32", 80, 80, 32, "input", True, "float32", False, "float32", "int64"),
    ("bfloat16", 128, 128, 96, "float32", False, "input", True, "input", "int64"),
    ("float16", 128, 128, 96, "input", False, "float32", True, "input", "int32"),
    ("float32", 128, 128, 96, "input", True, "float32", False, "float32", "int32"),
    ("bfloat16", 128, 128, 128, "float32", False, "float32", True, "float32", "int32"),
    ("float16", 128, 128, 128, "input", True, "input", False, "input", "int64"),
    ("float32", 128, 128, 128, "input", True, "float32", False, "float32", "int64"),
    ("bfloat16", 192, 128, 64, "input", True, "input", True, "float32", "int32"),
    ("float16", 192, 128, 64, "float32", False, "float32", False, "input", "int64"),
    ("float32", 192, 128, 64, "input", False, "float32", False, "float32", "int64"),
    ("bfloat16", 256, 256, 64, "input", False, "input", True, "input", "int64"),
    ("float16", 256, 256, 64, "float32", True, "float32", False, "float32", "int32"),
    ("float32", 256, 256, 64, "input", False, "float32", False, "float32", "int64"),
    ("bfloat16", 256, 256, 256, "float32", False, "input", True, "float32", "int32"),
    ("float16", 256, 256, 256, "float32", True, "input", False, "input", "int64"),
    ("float32", 256, 256, 256, "input", False, "float32", True, "float32", "int32"),
)
SHAPES = tuple(dict.fromkeys(b[1:4] for b in BUILDS))


def builds(limits: Limits) -> tuple[Build, ...]:
    """Rows of the list within limits; if there is none, every combination the limits leave.

    Raises ValueError if nothing is left.
    """
    every = free(limits)
    if not every:
        raise ValueError(
            "no combination of dtypes, head_dim, head_dim_v and rotary_dim is within these limits"
        )
    known = set(every)
    return tuple(b for b in BUILDS if b in known) or every


def free(limits: Limits) -> tuple[Build, ...]:
    """Every legal combination within limits, of known head dims or the nearest allowed."""
    flags = list(product(limits.values("interleaved"), limits.values("position_dtype")))
    tables = limits.values("table_dtype")
    found: list[Build] = []
    for dtype, head_dim, head_dim_v, *rest in attention_varlen_builds.free(limits):
        for rotary_dim in _rotary(head_dim, head_dim_v, limits):
            shape = (dtype, head_dim, head_dim_v, rotary_dim, *rest)
            kept = [t for t in tables if t == "float32" or dtype != "float32"]
            if "same_dtype_table" in limits.where and dtype != "float32":
                kept = [t for t in tables if t == "input"]
            found += [(*shape, i, table, p) for (i, p), table in product(flags, kept)]
    return tuple(found)


def _rotary(head_dim: int, head_dim_v: int, limits: Limits) -> list[int]:
    """Rotary dims of a head: those of the list, or all and half of the features."""
    whole = head_dim - head_dim % 2
    wanted = [r for d, v, r in SHAPES if (d, v) == (head_dim, head_dim_v)]
    wanted += [whole, head_dim // 4 * 2, 2]
    if "full_rotary" in limits.where:
        wanted = [head_dim]
    kept = [r for r in dict.fromkeys(wanted) if r % 2 == 0 and limits.allows("rotary_dim", r)]
    if not kept and "full_rotary" not in limits.where:
        kept = [r for r in limits.values("rotary_dim") if r <= head_dim][:1]
    return [r for r in kept if r][:2]
