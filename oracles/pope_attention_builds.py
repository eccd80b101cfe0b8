"""Compile-time combinations that `pope_attention` cases draw from on a GPU.

As in `tightrope.oracles.attention_builds`: 33 rows in which every pair of values of two fields
occurs that may (tests/test_pope_cases.py). bias_dtype is that of the sink.
"""

from __future__ import annotations

from itertools import product

from tightrope.limits import Limits
from tightrope.oracles import attention_varlen_builds
from tightrope.oracles.attention_builds import Build

FIELDS = (
    *("dtype", "head_dim", "head_dim_v", "rotary_dim", "out_dtype", "softcap", "bias_dtype"),
    *("inv_freq_dtype", "position_dtype", "delta"),
)
WIDEST = 256  # features, polar ones twice, under the relation wide256

# softcap, delta: whether there is one
BUILDS: tuple[Build, ...] = (
    ("bfloat16", 16, 16, 16, "input", True, "input", "float32", "int32", False),
    ("float16", 16, 16, 16, "float32", False, "float32", "float64", "int64", True),
    ("float32", 16, 16, 16, "input", True, "float32", "float32", "int64", False),
    ("bfloat16", 24, 8, 7, "input", True, "float32", "float64", "int32", False),
    ("float16", 24, 8, 7, "float32", True, "input", "float64", "int64", True),
    ("float32", 24, 8, 7, "input", False, "float32", "float32", "int32", False),
    ("bfloat16", 40, 40, 40, "float32", False, "float32", "float64", "int32", True),
    ("float16", 40, 40, 40, "input", True, "input", "float32", "int64", False),
    ("float32", 40, 40, 40, "input", True, "float32", "float32", "int64", False),
    ("bfloat16", 64, 64, 64, "float32", False, "float32", "float32", "int32", False),
    ("float16", 64, 64, 64, "float32", False, "input", "float32", "int64", True),
    ("float32", 64, 64, 64, "input", True, "float32", "float64", "int32", False),
    ("bfloat16", 64, 128, 32, "input", True, "input", "float64", "int64", True),
    ("float16", 64, 128, 32, "float32", False, "float32", "float32", "int32", False),
    ("float32", 64, 128, 32, "input", False, "float32", "float32", "int64", False),
    ("bfloat16", 72, 72, 72, "input", True, "input", "float64", "int64", False),
    ("float16", 72, 72, 72, "float32", False, "float32", "float32", "int32", True),
    ("float32", 72, 72, 72, "input", True, "float32", "float32", "int64", True),
    ("bfloat16", 80, 80, 40, "float32", False, "float32", "float64", "int64", True),
    ("float16", 80, 80, 40, "input", True, "input", "float32", "int32", False),
    ("float32", 80, 80, 40, "input", True, "float32", "float32", "int64", True),
    ("bfloat16", 96, 96, 96, "float32", False, "float32", "float32", "int32", False),
    ("float16", 96, 96, 96, "float32", True, "input", "float32", "int32", False),
    ("float32", 96, 96, 96, "input", False, "float32", "float64", "int64", True),
    ("bfloat16", 128, 128, 128, "input", False, "input", "float64", "int32", False),
    ("float16", 128, 128, 128, "float32", True, "float32", "float32", "int64", True),
    ("float32", 128, 128, 128, "input", False, "float32", "float32", "int32", True),
    ("bfloat16", 192, 128, 64, "float32", False, "float32", "float32", "int32", True),
    ("float16", 192, 128, 64, "input", True, "input", "float64", "int64", False),
    ("float32", 192, 128, 64, "input", False, "float32", "float64", "int64", False),
    ("bfloat16", 256, 256, 128, "float32", False, "input", "float64", "int64", False),
    ("float16", 256, 256, 128, "float32", False, "input", "float64", "int32", False),
    ("float32", 256, 256, 128, "input", True, "float32", "float32", "int64", True),
)
SHAPES = tuple(dict.fromkeys(b[1:4] for b in BUILDS))


def builds(limits: Limits) -> tuple[Build, ...]:
    """Rows of the list within limits; if there is none, every combination the limits leave.

    Raises ValueError if nothing is left.
    """
    known = dict.fromkeys(free(limits))
    if not known:
        raise ValueError(
            "no combination of dtypes, head_dim, head_dim_v and rotary_dim is within these limits"
        )
    return tuple(b for b in BUILDS if b in known) or tuple(known)


def free(limits: Limits) -> tuple[Build, ...]:
    """Every legal combination within limits, of known head dims or the nearest allowed."""
    deltas = sorted({delta != "none" for delta in limits.values("delta")})
    kinds = (limits.values(name) for name in ("inv_freq_dtype", "position_dtype"))
    last = list(product(*kinds, deltas))
    found: list[Build] = []
    for dtype, head_dim, head_dim_v, *rest in attention_varlen_builds.free(limits):
        for rotary_dim in _polar(head_dim, head_dim_v, limits):
            found += [(dtype, head_dim, head_dim_v, rotary_dim, *rest, *more) for more in last]
    return tuple(found)


def _polar(head_dim: int, head_dim_v: int, limits: Limits) -> list[int]:
    """Rotary dims of a head: those of the list, or all, half and few of the features."""
    wanted = [r for d, v, r in SHAPES if (d, v) == (head_dim, head_dim_v)]
    wanted = wanted or [head_dim, head_dim // 2, 3]
    if "full_rotary" in limits.where:
        wanted = [head_dim]
    most = min(head_dim, WIDEST - head_dim if "wide256" in limits.where else head_dim)
    kept = [r for r in wanted if 0 < r <= most and limits.allows("rotary_dim", r)]
    if not kept and "full_rotary" not in limits.where:
        kept = [r for r in limits.values("rotary_dim") if r <= most][-1:]
    return kept[:2]
