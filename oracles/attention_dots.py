"""What the products S = q k^T may be off, and the Hopper tensor core's bound for any product.

Derived in docs/error-budgets.md, attention, section products.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tightrope.formats import Array, Format
from tightrope.oracles.attention_numbers import (
    FLOAT32,
    NORMAL,
    TF32,
    U64,
    gamma,
    half_ulp,
    lowest_bit,
    power,
    rounded,
)
from tightrope.oracles.attention_stages import Stages

STEP = 16  # products a Hopper instruction adds at once
KEPT = 2.0**-25  # fractional bits kept when they are aligned
TRUNCATED = 2.0**-23  # one ulp: what truncating the sum to float32 may lose
_REACH = 2.0**-60


@dataclass(frozen=True)
class Scores:
    """S = q k^T before any scale: float64 (groups, seqlen_q, seqlen_k), and a bound on the error.

    own: of the float64 centre. replay_centre, replay_error: the same after replaying prescribed
    conversions of q and k (T1), None where there are none.
    """

    centre: Array
    error: Array
    own: Array | float = 0.0
    replay_centre: Array | None = None
    replay_error: Array | None = None


def scores(q: Array, k: Array, stages: Stages, factor: float = 1.0) -> Scores:
    """Scores of q (groups, rows, head_dim) and k (groups, keys, head_dim).

    factor: the smallest number by which `logits="any"` may have multiplied q or k before.
    """
    turned = k.swapaxes(-1, -2)
    centre, size = q @ turned, np.abs(q) @ np.abs(turned)
    unit = _common_unit(q, k)
    own = np.where(size <= 2.0**53 * unit, 0.0, q.shape[-1] * U64 * size)
    replay_centre = replay_error = None
    if stages.precision == "tf32":
        cut_q, cut_k = rounded(q, TF32, True), rounded(turned, TF32, True)
        replay_centre = cut_q @ cut_k
        replay_error = _finished(replay_centre, _sum_error(q, size, unit, stages) + own, stages)
        error = replay_error + _converted(q, turned, size)
        if not stages.scaled:  # what is converted may be a scaled q
            replay_centre = replay_error = None
    elif stages.precision == "tf32x3":
        error = _split_error(q, turned, size)
    elif stages.mma:
        error = np.where(size <= 2.0**24 * unit, 0.0, mma_scores(q, k, stages.io))
    else:
        error = _sum_error(q, size, unit, stages)
    if not (stages.scaled or stages.mma):  # the model's operands are q and k as they are stored
        error = error + _underflow(q, turned, stages, factor)
    error = np.where(size * (1 + 2.0**-10) < FLOAT32.largest, error, np.inf)
    return Scores(centre, _finished(centre, error, stages), own, replay_centre, replay_error)


def _finished(centre: Array, error: Array, stages: Stages) -> Array:
    """The last rounding of S, to the format that the stage `scores` names."""
    if stages.scores is None:
        return error
    top = np.abs(centre) + error
    error = error + half_ulp(top, stages.scores)
    return np.where(top < stages.scores.largest, error, np.inf)


def _common_unit(q: Array, k: Array) -> Array:
    """A power of two that divides every product of a row with a key."""
    low_q = lowest_bit(q).min(-1, initial=np.inf)[..., :, None]
    low_k = lowest_bit(k).min(-1, initial=np.inf)[..., None, :]
    return low_q * low_k


def _sum_error(q: Array, size: Array, unit: Array, stages: Stages) -> Array:
    """Any order; 0 where every partial sum is a float32, unless q or k may be scaled before."""
    width = q.shape[-1]
    count = stages.addition * width + (0 if stages.scaled else 6)
    error = gamma(count) * size + width * (FLOAT32.tiny if stages.scaled else 2.0**-126)
    return np.where((size <= 2.0**24 * unit) & stages.scaled, 0.0, error)


def _underflow(q: Array, turned: Array, stages: Stages, factor: float) -> Array | float:
    """Scaled operands, and their products, may be subnormal; in units of S."""
    if not factor:
        return 0.0  # every logit is 0
    least = NORMAL if stages.flush else FLOAT32.tiny
    if stages.precision != "ieee":
        least += 2 * TF32.tiny
    other = np.abs(q).sum(-1)[..., None] + np.abs(turned).sum(-2)[..., None, :]
    with np.errstate(over="ignore"):
        return (least * other + q.shape[-1] * (NORMAL + least**2)) / min(abs(factor), 1.0)


def _converted(q: Array, turned: Array, size: Array) -> Array:
    """Truncation of both operands to tf32 loses less than 2^-10 of each."""
    tiny = TF32.tiny * (np.abs(q).sum(-1)[..., None] + np.abs(turned).sum(-2)[..., None, :])
    return (2.0**-9 + 2.0**-20) * size + tiny + q.shape[-1] * TF32.tiny**2


def _split_error(q: Array, turned: Array, size: Array) -> Array:
    """tf32x3: small*small is dropped, the small parts are truncated, three products are added."""
    width = q.shape[-1]
    tiny = TF32.tiny * (np.abs(q).sum(-1)[..., None] + np.abs(turned).sum(-2)[..., None, :])
    lost = (2.0**-22 + 2.0**-20) * (1 + 2.0**-9) * size + 2 * tiny
    return lost + gamma(6 * width + 2) * (size * (1 + 2.0**-9) + tiny) + width * FLOAT32.tiny


def mma_scores(q: Array, k: Array, fmt: Format) -> Array:
    """The Hopper bound for q k^T, in steps of 16 features from an accumulator of 0."""
    total: Array | float = 0.0
    error: Array | float = 0.0
    for start in range(0, q.shape[-1], STEP):
        left, right = q[..., start : start + STEP], k[..., start : start + STEP].swapaxes(-1, -2)
        largest = largest_product(left, right, fmt)
        terms = left.shape[-1]
        if start:
            largest, terms = np.maximum(largest, power(np.abs(total) + error)), terms + 1
        error = error + (terms * KEPT) * largest
        total = total + left @ right
        error = error + np.maximum(power(np.abs(total) + error) * TRUNCATED, FLOAT32.tiny)
    return np.broadcast_to(np.asarray(error, np.float64), (*q.shape[:-1], k.shape[-2]))


def largest_product(left: Array, right: Array, fmt: Format) -> Array:
    """2**max_j(e(a_j) + e(b_j)) for rows a of left and columns b of right, at most 16 terms.

    e is the exponent, at least emin: subnormal operands may be aligned as they are stored; zeros
    have none, and a row of `right` that meets zeros alone is not looked at. The maximum is one
    matrix product: of 8th powers of powers of two, at most 16 of which are added, so that the
    exponent of the sum, divided by 8 and rounded down, is the maximum itself. Terms below 2**-60 of
    the largest operand are raised to that. Nothing is aligned below 2**-126: the smallest exponent
    of an accumulator.
    """
    met = np.asarray(left.any(-2))[..., None]
    right = right if met.all() else np.where(met, right, 0.0)
    a, top_a = _scaled(left, fmt)
    b, top_b = _scaled(right, fmt)
    total = a @ b
    bits = total.view(np.int64)  # changed in place: long contexts spend their time here
    bits >>= 52
    bits += 7 * 1023  # (x - 1023 >> 3) + 1023
    bits >>= 3
    bits <<= 52
    total *= top_a * top_b
    return np.maximum(total, NORMAL, out=total)


def _scaled(x: Array, fmt: Format) -> tuple[Array, float]:
    size = np.maximum(power(x), 2.0**fmt.emin)  # no matter for a zero, which is left out below
    top = float(size.max(initial=2.0**fmt.emin))
    size = np.maximum(size / top, _REACH)
    size *= size
    size *= size
    return size * size * (x != 0), top
