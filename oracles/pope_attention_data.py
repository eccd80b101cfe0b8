"""What q and k of `pope_attention` cases hold, by how softplus and the polar logits behave.

Magnitudes are positive, so that a key's logits can only follow a curve (rising, spiking, ...)
through the sign of cos: its features are large where, seen from one query, the cosine has the
curve's sign. Logits of other queries follow as far as angles change slowly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from tightrope.formats import FORMATS, Array
from tightrope.oracles import attention_data
from tightrope.oracles.pope_attention_problem import angles, scale_of

if TYPE_CHECKING:
    from tightrope.oracles.pope_attention_cases import PopeAttentionCase

# Where implementations change formulas, or lose what exp(x) adds to 1.
THRESHOLDS = (0.0, 5.0, -5.0, 8.0, -8.0, 10.0, 15.0, 20.0, -20.0, -15.0, 30.0, 88.0, -16.6)
# Of a magnitude that balances a small one: float16 has to hold it; times an error of 2**-24, as an
# honest ln(1 + e^x) in float32 has, it has to leave the others their meaning.
LARGEST = {"float16": 6e4, "bfloat16": 1e6, "float32": 1e6}
LEAST = 2.0**-20  # of a magnitude that is meant to be none


def drawn(
    case: PopeAttentionCase, given: Mapping[str, Array], rng: np.random.Generator
) -> tuple[Array, Array]:
    """q (batch, num_heads, seqlen_q, head_dim) and k (batch, num_kv_heads, seqlen_k, head_dim),
    not rounded; given: positions, inv_freq and delta. Raises KeyError for an unknown kind.
    """
    lengths = (case.seqlen_q, case.head_dim), (case.seqlen_k, case.head_dim)
    shape_q = (case.batch, case.num_heads, *lengths[0])
    shape_k = (case.batch, case.num_kv_heads, *lengths[1])
    fmt, width = FORMATS[case.dtype], case.rotary_dim
    if case.data in attention_data.CURVES:
        q, k = attention_data.drawn("normal", shape_q, shape_k, fmt, rng)
        q, k = 0.25 * q, 0.25 * k
        q[..., :width] += rng.uniform(0.3, 1.7, (1, case.num_heads, 1, 1))
        k[..., :width] = _along_curve(case, given, rng)
    elif case.data in ("delicate", "thresholds"):
        q, k = attention_data.drawn("normal", shape_q, shape_k, fmt, rng)
        _balance(case, q[..., :width], k[..., :width], rng)
    else:
        q, k = attention_data.drawn(case.data, shape_q, shape_k, fmt, rng)
    return q, k


def inverse_softplus(y: Array) -> Array:
    """x with ln(1 + e^x) = y > 0."""
    return np.asarray(y + np.log(-np.expm1(-y)))


def _along_curve(
    case: PopeAttentionCase, given: Mapping[str, Array], rng: np.random.Generator
) -> Array:
    """Polar features of k: magnitude a max(0, sign cos) and a little more, a such that the last
    query's logit is near the curve's, with magnitudes of 1.31 in q."""
    curve = attention_data.CURVES[case.data](case.seqlen_k, rng)[:, None]
    shape = (case.batch, case.num_kv_heads, case.seqlen_k, case.rotary_dim)
    if 0 in shape or not case.seqlen_q:
        return np.zeros(shape)
    group = case.num_heads // case.num_kv_heads
    seen = np.cos(angles(case, given, "k") - angles(case, given, "q")[:, :, -1:])
    seen = np.broadcast_to(seen[:, ::group], shape)
    facing = np.maximum(0.0, np.sign(curve) * seen)
    room = np.maximum((facing**2).sum(-1, keepdims=True), case.rotary_dim / 8)
    size = np.abs(curve) / (1.31 * room * scale_of(case))
    wanted = size * facing + rng.uniform(LEAST, 0.5, shape)
    return inverse_softplus(np.minimum(wanted, LARGEST[case.dtype]))


def _balance(case: PopeAttentionCase, q: Array, k: Array, rng: np.random.Generator) -> None:
    """One of q and k lies near a level that is hard on softplus, feature by feature; the other is
    such that their product is of the order of 1. A fourth of the features stays as it is."""
    shape, largest = case.rotary_dim, LARGEST[case.dtype]
    # what is further below cannot be balanced: it has to vanish, and mostly does
    seen = rng.uniform(-np.log(largest) - 1.0, -8.0, shape)
    levels, spread = np.where(rng.random(shape) < 0.8, seen, rng.uniform(-40.0, -8.0, shape)), 1.0
    if case.data == "thresholds":
        levels, spread = rng.choice(THRESHOLDS, shape), 0.0
    for c in np.flatnonzero(rng.random(shape) < 0.75):
        near, far = (q, k) if rng.random() < 0.5 else (k, q)
        near[..., c] = _beside(float(levels[c]), spread, near[..., c].shape, case.dtype, rng)
        small = float(np.logaddexp(0.0, levels[c]))
        product = rng.uniform(0.2, 2.0, far[..., c].shape)
        far[..., c] = inverse_softplus(np.clip(product / small, LEAST, largest))


def _beside(
    level: float, spread: float, shape: tuple[int, ...], dtype: str, rng: np.random.Generator
) -> Array:
    """Within spread of a level, or a few ulps of the format around it."""
    if spread:
        return level + spread * rng.uniform(-1, 1, shape)
    fmt = FORMATS[dtype]
    steps = rng.integers(-3, 4, shape)
    return np.asarray(fmt.round(level) + steps * fmt.ulp(level))
