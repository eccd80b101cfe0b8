"""cos and sin of PoPE's angles as a kernel holds them: (P3) to (P6) of docs/error-budgets.md."""

from __future__ import annotations

import numpy as np

from tightrope.formats import FORMATS, Array, Format
from tightrope.oracles.attention_numbers import FLOAT32, OUTWARD, U64, U, half_ulp, lowest_bit
from tightrope.oracles.pope_attention_angles import TRIG_ERROR, reduced
from tightrope.oracles.pope_features_held import Held, Product, term, to_float32
from tightrope.oracles.pope_features_stages import Grant

ENOUGH = 4.0  # radians: from here on (P4) is 1 + |x|


def turning(positions: Array, inv_freq: Array, delta: Array | None, grant: Grant, own: bool
            ) -> tuple[Held, Held]:  # fmt: skip
    """cos and sin that multiply a magnitude, (batch or 1, num_heads or 1, length, rotary_dim).

    positions (batch or 1, 1, length, 1), integers; inv_freq (rotary_dim,) and delta (num_heads, 1,
    rotary_dim) float64. own: whether delta is of this side, the key's; else, by the phase, its
    opposite turns this side.
    """
    if delta is None or own != (grant.phase == "key"):
        return _tables(positions, inv_freq, None, grant)
    if own:
        return _tables(positions, inv_freq, delta, grant)
    if grant.phase == "query_angle":
        return _tables(positions, inv_freq, -delta, grant)
    c, s = _tables(positions, inv_freq, None, grant)
    cd, sd = _of_delta(delta, grant)
    opposite = Held(-sd.value, sd.error, sd.own, -sd.high, -sd.low)
    return _turned(c, cd, s, sd), _turned(s, cd, c, opposite)


def _tables(positions: Array, inv_freq: Array, delta: Array | None, grant: Grant
            ) -> tuple[Held, Held]:  # fmt: skip
    angle = reduced(positions, inv_freq, np.zeros((1, 1, 1)) if delta is None else delta)
    off = angle_error(positions, inv_freq, delta, grant)
    still = positions == 0
    if delta is not None:
        still = still & (delta == 0)
    c, s = _functions(angle, off, still, grant)
    return c.rounded(grant.table, "table"), s.rounded(grant.table, "table")


def _of_delta(delta: Array, grant: Grant) -> tuple[Held, Held]:
    """cos and sin of delta alone, in float32."""
    angle = reduced(np.zeros((1, 1, 1, 1), np.int64), np.ones(1), delta)
    still = delta == 0
    off = 0.0 if grant.angle is not None else grant.angle_error
    return _functions(angle, np.where(still, 0.0, off), still, grant)


def _functions(angle: Array, off: Array, still: Array, grant: Grant) -> tuple[Held, Held]:
    """(P4): cos and sin of angles that are off by so many radians; exact where they are 0."""
    off, still = (np.broadcast_to(x, angle.shape) for x in (off, still))
    x, y = np.cos(angle), np.sin(angle)
    own = np.where(still, 0.0, TRIG_ERROR)

    def one(value: Array, other: Array) -> Held:
        moved = np.minimum(
            1 + np.abs(value), (np.abs(other) + own) * off + (np.abs(value) + own) * off * off / 2
        )
        reach = np.abs(value) + own + moved
        largest = np.minimum(reach + grant.trig_ulp * FLOAT32.ulp(reach), 1 - U)
        within = np.where(still, 0.0, grant.trig_ulp * FLOAT32.ulp(largest))
        return Held.float32(value, (moved + term("cos, sin", within)) * OUTWARD, own)

    return one(x, y), one(y, x)


def angle_error(positions: Array, inv_freq: Array, delta: Array | None, grant: Grant) -> Array:
    """(P3): radians that the angle may be off by, at most `ENOUGH`."""
    still = positions == 0
    if grant.angle is None:
        if delta is not None:
            still = still & (delta == 0)
        return term("angle within", np.where(still, 0.0, min(grant.angle_error, ENOUGH)))
    fmt = grant.angle
    size = np.abs(positions.astype(np.float64))
    step = np.where(_holds(positions, fmt), 0.0, fmt.half_ulp(size))
    near = fmt.round(inv_freq)
    off = term("position", step * inv_freq)
    uneven = np.where(near == inv_freq, 0.0, fmt.half_ulp(inv_freq))
    off = off + term("inv_freq", (size + step) * uneven)
    off = off + term("product of the angle", _product(positions, near, fmt))
    if delta is not None:
        angle = np.abs(positions.astype(np.float64) * inv_freq + delta)
        reach = (angle + off + 2 * U64 * size * inv_freq) * OUTWARD
        added = np.where((delta == 0) | still, 0.0, fmt.half_ulp(reach))
        off = off + term("delta added", added)
    return np.minimum(off * OUTWARD, ENOUGH)


def _holds(positions: Array, fmt: Format) -> Array:
    """Whether the format holds the integer."""
    count = np.abs(positions.astype(np.int64)).astype(np.uint64)
    last = np.maximum(count & (~count + np.uint64(1)), np.uint64(1))
    return np.asarray(count // last < np.uint64(1 << fmt.precision))


def _product(positions: Array, near: Array, fmt: Format) -> Array:
    """h(m^ w^), 0 where the format holds it; both factors are known numbers."""
    m = positions.astype(fmt.dtype).astype(np.float64)
    p = m * near
    if fmt is FORMATS["float64"]:
        exact = np.abs(p) <= 2.0**53 * np.where(p == 0, 1.0, lowest_bit(m) * lowest_bit(near))
    else:
        exact = fmt.round(p) == p
    return np.where(exact, 0.0, fmt.half_ulp(p))


def _turned(a: Held, b: Held, c: Held, d: Held) -> Held:
    """(P6): a b + c d in float32, either product rounded or fused; exact where b = 1, d = 0."""
    p, q = Product.of(a, b), Product.of(c, d)
    value = p.value + q.value
    off = p.moved + q.moved + term("turned by delta", p.rounding() + q.rounding())
    reach = (np.abs(value) + p.own + q.own + off) * OUTWARD
    alone = d.sure & (d.value == 0)
    off = off + term("turned by delta", np.where(alone, 0.0, half_ulp(reach)))
    own = np.where(alone, p.own, p.own + q.own + U64 * np.abs(value))
    (p_low, p_high), (q_low, q_high) = p.ends, q.ends
    spare = np.where(alone, 0.0, 2 * U64 * (np.abs(value) + np.abs(q_low) + np.abs(q_high)))
    low, high = to_float32(p_low + q_low - spare), to_float32(p_high + q_high + spare)
    return Held(value, off * OUTWARD, own, low, high)
