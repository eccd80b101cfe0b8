"""Steps of attention's gradients as Triton functions: weights, their gradients, reduced rows.

FlashAttention-2 (Dao, arXiv 2307.08691, section 2.3.2), in base 2 and float32.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def fetched(at, rows, columns, PADDED: tl.constexpr):
    """A tile; 0 outside the rows and, if PADDED, the columns wanted, where nothing is read."""
    if PADDED:
        tile = tl.load(at, mask=rows[:, None] & columns[None, :], other=0.0)
    else:
        tile = tl.load(at, mask=rows[:, None], other=0.0)
    return tile


@triton.jit
def weights(s, shift, c, factor, cap, SOFTCAP: tl.constexpr):
    """(p, slope): exp(logit - lse) of scores s, and how a cap flattens the logit there (else 1).

    shift: lse in base 2, +inf for a row whose weights are 0. tanh(y) = 1 - 2/(exp(2y) + 1).
    """
    if SOFTCAP:
        tanh = 1.0 - 2.0 / (tl.exp2(s * factor * (2 * LOG2E)) + 1.0)
        p = tl.exp2(cap * tanh * LOG2E - shift)
        slope = 1.0 - tanh * tanh
    else:
        p = tl.exp2(tl.fma(s, c, tl.broadcast_to(-shift, s.shape)))
        slope = 1.0
    return p, slope


@triton.jit
def reduced(out, dout, lse, mine):
    """(delta, shift) of rows: sum(dout * out), and lse in base 2, +inf where no key is seen.

    exp2(x - inf) = 0 then, whatever the score; rows past the last are such rows.
    """
    delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1)
    live = mine & (lse != float("-inf"))
    return tl.where(mine, delta, 0.0), tl.where(live, lse * LOG2E, float("inf"))


@triton.jit
def rows_of(base, start, row, stride, UNIT: tl.constexpr):
    """Addresses (rows, 1) of rows of a head from `start` on, all counted in words of UNIT."""
    at = base + start * UNIT + row[:, None] * (stride * UNIT)
    if UNIT > 1:
        at = tl.multiple_of(at, (16, 16))
    return at


@triton.jit
def met(own_1, own_2, walked_1, walked_2, sums, shifts, c, factor, cap, SOFTCAP: tl.constexpr):
    """(p, ds), unmasked, of tiles: own_1, own_2 and walked_1, walked_2 are q and dout, k and v, or
    the other way. sums, shifts: of the rows, as `reduced` makes them, along their axis."""
    s = tl.dot(own_1, tl.trans(walked_1), input_precision="ieee")
    dp = tl.dot(own_2, tl.trans(walked_2), input_precision="ieee")
    p, slope = weights(s, shifts, c, factor, cap, SOFTCAP)
    ds = p * (dp - sums)
    if SOFTCAP:
        ds *= slope
    return p, ds
