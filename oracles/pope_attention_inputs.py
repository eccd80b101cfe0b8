"""Tensors of a `pope_attention` case, as NumPy arrays in their own dtypes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tightrope.formats import Array, stored
from tightrope.oracles.attention_varlen_inputs import keywords
from tightrope.oracles.pope_attention_data import drawn
from tightrope.oracles.rope_attention_inputs import completed, drawn_offsets

if TYPE_CHECKING:
    from tightrope.oracles.pope_attention_cases import PopeAttentionCase

FAR = 1 << 20  # "random" positions lie within it of 0


def inputs(case: PopeAttentionCase) -> dict[str, Array]:
    """q (batch, num_heads, seqlen_q, head_dim), k (batch, num_kv_heads, seqlen_k, head_dim),
    v (..., head_dim_v) in `dtype`; inv_freq (rotary_dim,) in `inv_freq_dtype`; q_positions,
    k_positions (seqlen,) or (batch, seqlen) in `position_dtype`; where they are on, delta
    (num_kv_heads or num_heads, rotary_dim) float32, sink (num_heads,) in `bias_dtype` and q_offset
    (batch,) int32.
    """
    rng = np.random.default_rng(case.seed)
    offsets = drawn_offsets(case, rng)
    turning = {"inv_freq": _frequencies(case), **_delta(case, rng)}
    places = _positions(case, offsets, rng)
    q, k = drawn(case, {**turning, **places}, rng)
    found = completed(case, stored(q, case.dtype), stored(k, case.dtype), offsets, rng)
    return {**found, **turning, **places, **keywords(case, offsets, rng)}


def layouts(case: PopeAttentionCase) -> dict[str, str]:
    named = {"q": case.layout_q, "k": case.layout_k, "v": case.layout_v}
    named["inv_freq"] = case.layout_inv_freq
    return named if case.delta == "none" else {**named, "delta": case.layout_delta}


def _frequencies(case: PopeAttentionCase) -> Array:
    exponents = case.exponent_sign * np.arange(case.rotary_dim) / case.rotary_dim
    return stored(case.rope_theta**exponents, case.inv_freq_dtype)


def _delta(case: PopeAttentionCase, rng: np.random.Generator) -> dict[str, Array]:
    if case.delta == "none":
        return {}
    heads = case.num_heads if case.delta == "heads" else case.num_kv_heads
    shape = (heads, case.rotary_dim)
    x = {
        "zero": np.zeros(shape),
        "clamped": rng.uniform(-2 * np.pi, 0.0, shape),
        "wide": rng.uniform(-40.0, 40.0, shape) * 2.0 ** rng.integers(-6, 6, shape),
    }[case.delta_data]
    return {"delta": stored(x, "float32")}


def _positions(
    case: PopeAttentionCase, offsets: Array, rng: np.random.Generator
) -> dict[str, Array]:
    """Of any size; those that position_dtype does not hold are its last."""
    queries, keys = np.arange(case.seqlen_q) + case.q_offset, np.arange(case.seqlen_k)
    start: Array | int = case.start
    if case.positions == "random":
        lengths = (case.seqlen_q, case.seqlen_k)
        queries, keys = (rng.choice(rng.integers(-FAR, FAR + 1, n + 1), n) for n in lengths)
    if case.positions == "per_batch":
        start = rng.integers(-abs(case.start), abs(case.start) + 1, (case.batch, 1))
        queries = np.arange(case.seqlen_q) + offsets[:, None]
    ends = np.iinfo(case.position_dtype)
    each = {"q_positions": queries + start, "k_positions": keys + start}
    return {n: np.clip(x, ends.min, ends.max).astype(ends.dtype) for n, x in each.items()}
