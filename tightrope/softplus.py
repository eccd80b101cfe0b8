"""ln(1 + e^x) in Triton, PoPE's magnitude (Gopalakrishnan et al., arXiv 2509.10534, eq. 3), 3 ways.

All are max(x, 0) + u P(u) with u = e^-|x| = 2^(-|x| log2(e)), one `tl.exp2`, and a polynomial
P(u) near ln(1 + u)/u on [0, 1], by Horner's rule in fma: no logarithm, no branch, no cancellation
(both terms are positive), so that far below 0 it is relative errors of u that count, passed on at
most once (u/((1 + u) ln(1 + u)) <= 1). With e = 2^-24, relative errors:

- "precise": u loses 2.5 ulp of `tl.exp2`, 5 e. Its argument: h = RN(|x| log2(e)) leaves a rest r,
  known to 2^-42 from one fma and the low part of log2(e), and 2^-r is 1 - r ln(2) to 2^-37, since
  |r| < 2^-17: 1.1 e with its rounding. |x| is cut at 128, where u is 0. P has degree 9, off by
  2.1e-8 with its rounded coefficients, 0.4 e, and its roundings give 2 e at most, the last fma 1 e:
  below 10 e (`ULPS`, if an ulp is taken as e at least).
- "short": the argument in one product: |x| (1 e + 0.23 e of the constant), at |x| <= 87.4 below
  108 e; tl.exp2 5 e; P of degree 5 is minimax, off by 8.43e-6 = 141.4 e; roundings 3 e: below
  264 e.
- "half", of float16 alone: u rounded to float16 (2^-11, tl.exp2 and its argument with it 2^-17), P
  of degree 3 and last fma in that format, two values an instruction on a GPU. P with its roundings
  is off by 1.84 * 2^-11, by trial of every u, and the last fma by 2^-11: together below 2^-9.
  Where numbers are subnormal, two roundings of 2^-25 absolute.

`tl.exp2` flushes results below 2^-126 to 0, and the whole of them with it. NaN stays NaN, and +inf
stays +inf.
Minimax by Remez's exchange, relative error; P(0) = 1 where 1 is written.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

FORMS = ("precise", "short", "half")
ULPS = {"precise": 10.0, "short": 264.0, "half": 2.0**15}
"""Relative error of each form, in 2^-24."""
ABSOLUTE = {"precise": 0.0, "short": 0.0, "half": 2.0**-24}
"""What is lost beside, absolute, where `tl.exp2` does not flush."""

LOG2E = tl.constexpr(1.4426950216293335)  # float32
LOG2E_REST = tl.constexpr(1.925963033500992e-08)
LN2 = tl.constexpr(0.6931471805599453)
# Of P, float32, from the highest power of u down.
PRECISE = tl.constexpr((
    -0.0033184746, 0.020204594, -0.05766446, 0.10680557, -0.15355398, 0.19695401, -0.24958588,
    0.33330512, -0.4999993, 1.0,
))  # fmt: skip
SHORT = tl.constexpr((-0.023869151, 0.101222284, -0.21004869, 0.32520667, -0.49936137, 0.9999916))


@triton.jit
def _ended(x, u, P: tl.constexpr, DEGREE: tl.constexpr):
    """max(x, 0) + u P(u)."""
    p = tl.fma(u, P[0], P[1])
    for i in tl.static_range(2, DEGREE + 1):
        p = tl.fma(p, u, P[i])
    return tl.fma(u, p, tl.maximum(x, 0.0))


@triton.jit
def _precise(x):
    size = tl.minimum(tl.abs(x), 128.0, propagate_nan=tl.PropagateNan.ALL)
    power = size * LOG2E
    rest = tl.fma(size, LOG2E, -power) + size * LOG2E_REST
    u = tl.exp2(-power)
    return _ended(x, tl.fma(u, rest * -LN2, u), PRECISE, 9)


@triton.jit
def _short(x):
    return _ended(x, tl.exp2(tl.abs(x) * -LOG2E), SHORT, 5)


@triton.jit
def _half(x):
    u = tl.exp2(tl.abs(x.to(tl.float32)) * -LOG2E).to(tl.float16)
    p = tl.fma(
        u,
        tl.full(x.shape, -0.0784912109375, tl.float16),
        tl.full(x.shape, 0.26123046875, tl.float16),
    )
    p = tl.fma(p, u, tl.full(x.shape, -0.489990234375, tl.float16))
    p = tl.fma(p, u, tl.full(x.shape, 1.0, tl.float16))
    return tl.fma(u, p, tl.maximum(x, tl.full(x.shape, 0.0, tl.float16)))


@triton.jit
def softplus(x, FORM: tl.constexpr):
    """ln(1 + e^x) in float32, of any float type; "half": of float16, in float16."""
    if FORM == "half":
        found = _half(x)
    elif FORM == "short":
        found = _short(x.to(tl.float32))
    else:
        found = _precise(x.to(tl.float32))
    return found


def form_for(dtype: str) -> str:
    """The form that the kernels take for q and k of a dtype."""
    return "precise" if dtype == "float32" else "short"


def stages(form: str) -> dict[str, Any]:
    """What a form promises, as arithmetic stages of `pope_attention`."""
    magnitude = "input" if form == "half" else "float32"
    return {"softplus_ulp": ULPS[form], "softplus_error": ABSOLUTE[form], "magnitude": magnitude}
