"""Drawing what only `pope_attention` cases have: frequencies, positions, delta, magnitudes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tightrope.oracles.attention_draws import DATA_V_WEIGHTS, Draw
from tightrope.oracles.attention_problem import visible
from tightrope.polar import EXPONENT_AS_CODED, EXPONENT_AS_PRINTED

# Starts of positions: all there are; those at which float32 angles keep their meaning, for falling
# frequencies and for growing ones.
FAR, LONG, NEAR = 1 << 20, 1 << 17, 64
EDGES = {  # where integers, and angles, stop being exact in some format
    "int32": (2**17 - 1, 2**20, 2**24, 2**31 - 1),
    "int64": (2**17 - 1, 2**20, 2**24, 2**31, 2**40),
}
ALIKE = {"float16": 2, "float32": 2, "bfloat16": 5}  # distances that hardly turn most features
DATA_WEIGHTS = (
    *("normal",) * 8,
    *("delicate", "thresholds") * 4,
    *("times_3", "spiking", "rising", "far_groups") * 2,
)


def logits(d: Draw, fields: dict[str, Any]) -> dict[str, Any]:
    """softmax_scale and softcap such that neither a tanh nor a weight is saturated throughout: near
    its own position a query's polar logit is a sum of positive terms, about 0.65 each."""
    width = fields["head_dim"]
    scales = [s for s in (0.0625, 0.3, 1.0) if s * width <= 24]
    scale = d.one("softmax_scale", (None, None, None, *scales))
    found = {"softmax_scale": scale}
    if fields["softcap"] is not None:
        slight = width * (width**-0.5 if scale is None else scale) <= 4
        found["softcap"] = d.one("softcap", (5.0, 50.0, 20.0, *((1.0,) if slight else ())))
    return found


def angles(d: Draw, fields: dict[str, Any]) -> dict[str, Any]:
    """Frequencies, the kind of positions, and the first one.

    A query that meets only keys at its own position, or next to it, meets them at angles near 0 (or
    delta), which looks like no position at all: there positions of queries and keys are
    independent.
    """
    signs = d.limits.values("exponent_sign")
    sign, claimed = d.of((signs[0], *signs)), "positions" in d.limits.given
    growing = sign == EXPONENT_AS_PRINTED and not claimed
    kinds = ("offset", "per_batch", "range") * (10 if growing else 3) + ("random",)
    if _distance(fields) <= ALIKE[fields["dtype"]]:
        sign = d.one("exponent_sign", (EXPONENT_AS_CODED,)) if growing else sign
        kinds = ("random",)
    elif claimed:
        kinds = ("offset", "random", "per_batch", "long", "range")
    few = (100.0,) * 20 if fields["size"] == "large" else (10000.0, 100.0) * 10
    bases = few if growing else (10000.0, 10000.0, 100.0)
    kind = d.one("positions", kinds)
    most = FAR if claimed else NEAR if growing else LONG
    layouts = d.limits.domain["layout_inv_freq"]
    return {
        "rope_theta": d.one("rope_theta", (*bases, 10000.0, 500000.0)),
        "exponent_sign": sign,
        "positions": kind,
        "start": _start(d, kind, EDGES[fields["position_dtype"]], most),
        "layout_inv_freq": d.one("layout_inv_freq", (*("contiguous",) * 5, *layouts)),
    }


def _start(d: Draw, kind: str, edges: tuple[int, ...], most: int) -> int:
    if kind in ("range", "random"):
        return 0
    if kind == "long":
        edge = d.of(edges)
        return int(d.of((edge, -edge))) - d.number(0, 16)
    return d.number(-most, most)


def _distance(fields: dict[str, Any]) -> int:
    """The largest between the indices of a query and of a key that it sees."""
    n, m, offset = (fields[name] for name in ("seqlen_q", "seqlen_k", "q_offset"))
    window = fields["causal"], fields["window_left"], fields["window_right"]
    apart = np.abs(np.arange(n)[:, None] + offset - np.arange(m))
    return int((apart * visible(n, m, offset, *window)).max(initial=0))


def deltas(d: Draw, fields: dict[str, Any]) -> dict[str, Any]:
    """Whose delta, and what it holds; fields["delta"] says whether there is one."""
    known = tuple(d.limits.domain["layout_delta"])
    there = bool(fields["delta"])
    whose = ("kv_heads", "heads") if there else ("none",)
    data = ("clamped",) * 3 + ("wide", "wide", "zero") if there else ("clamped",)
    return {
        "delta": d.one("delta", whose),
        "delta_data": d.one("delta_data", data),
        "layout_delta": d.one("layout_delta", ("contiguous",) * 3 + (known if there else ())),
    }


def contents(d: Draw) -> dict[str, Any]:
    """What q, k, v and hidden slots hold."""
    domain = d.limits.domain
    return {
        "data": d.one("data", (*DATA_WEIGHTS, *domain["data"])),
        "data_v": d.one("data_v", (*DATA_V_WEIGHTS, *domain["data_v"])),
        "hidden": d.one("hidden", ("finite", "nan", "inf")),
    }
