"""Steps of PoPE attention's gradients as Triton functions: points of a tile, and the way back.

A polar feature x of magnitude mu = softplus(x) at the angle a is the point mu (cos a, sin a). A
gradient (g_x, g_y) of the point is sigmoid(x) (cos a g_x + sin a g_y) of x, since softplus' is
sigmoid, and mu (cos a g_y - sin a g_x) of a (the chain rule on PoPE, arXiv 2509.10534, eq. 3, 6).

`sigmoid` is 1/(1 + u) or u/(1 + u) with u = e^-|x|, as "precise" of `tightrope.softplus` makes u:
with e = 2^-24, u is off by 6.1 e relative (2.5 ulp of `tl.exp2`, 5 e, and 1.1 e of the argument),
u/(1 + u) or 1/(1 + u) passes on at most all of that, the sum rounds by 1 e, and the quotient, 2.5
ulp, by 5 e: below 13 e (`SIGMOID_ULP`), but that u below 2^-126 is flushed to 0.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tightrope.softplus import LN2, LOG2E, LOG2E_REST, softplus
from tightrope.turns import cos_sin, phase

SIGMOID_ULP = 13.0  # relative error, in 2^-24


@triton.jit
def turning(angle, wanted, words):
    """cos and sin (1, features) in float32 of phases in radians; exactly 1 and 0 where unwanted."""
    given = tl.load(angle, mask=wanted, other=0.0)
    c, s = cos_sin(phase(given.to(tl.float64), words))
    return c.to(tl.float32)[None, :], s.to(tl.float32)[None, :]


@triton.jit
def angles(cos, sin, wanted, back_c, back_s, TURNED: tl.constexpr):
    """cos and sin of a tile in float32, 0 where unwanted; TURNED: turned back by a phase."""
    c = tl.load(cos, mask=wanted, other=0.0).to(tl.float32)
    s = tl.load(sin, mask=wanted, other=0.0).to(tl.float32)
    if TURNED:
        before = c
        c = c * back_c + s * back_s
        s = s * back_c - before * back_s
    return c, s


@triton.jit
def points_of(x, c, s, FORM: tl.constexpr):
    """The points of polar features, each coordinate rounded once to the features' dtype."""
    mu = softplus(x, FORM)
    return (mu * c).to(x.dtype), (mu * s).to(x.dtype)


@triton.jit
def sigmoid(x):
    """1/(1 + e^-x) in float32, of any float type; 0 where e^x is below 2^-126."""
    x = x.to(tl.float32)
    size = tl.minimum(tl.abs(x), 128.0, propagate_nan=tl.PropagateNan.ALL)
    power = size * LOG2E
    rest = tl.fma(size, LOG2E, -power) + size * LOG2E_REST
    u = tl.exp2(-power)
    u = tl.fma(u, rest * -LN2, u)
    return tl.where(x < 0, u, 1.0) / (1.0 + u)
