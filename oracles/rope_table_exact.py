"""rope_table in ball arithmetic (python-flint's arb): every value comes with its own error bound.

theta_c = exp(-(2c/D) ln b), then sin and cos of m theta_c (RoFormer, arXiv 2104.09864, eq. 15).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from flint import arb, ctx, fmpq

from tightrope.formats import FORMATS, Array

BITS = 192  # |m| < 2^63 costs 63 of them
RADIUS = 2.0**-110  # absolute, of every value in `table`


@lru_cache(maxsize=512)
def _inv_freq(rotary_dim: int, rope_theta: float, bits: int) -> tuple[arb, ...]:
    with ctx.workprec(bits):
        log = arb(rope_theta).log()
        return tuple((log * arb(fmpq(-2 * c, rotary_dim))).exp() for c in range(rotary_dim // 2))


def _fraction(x: arb) -> Fraction:
    """The midpoint of a ball, as it is."""
    mantissa, exponent = x.mid().man_exp()
    return Fraction(int(mantissa)) * Fraction(2) ** int(exponent)


@lru_cache(maxsize=512)
def inv_freq(rotary_dim: int, rope_theta: float, dtype: str = "float64") -> Array:
    """rope_theta**(-2c/rotary_dim), correctly rounded to `dtype`, as float64 (rotary_dim/2,).

    The result is read-only. Raises ArithmeticError if 512 bits cannot tell which number is nearest.
    """
    fmt, out = FORMATS[dtype], []
    balls = zip(*(_inv_freq(rotary_dim, rope_theta, bits) for bits in (BITS, 512)), strict=True)
    for tries in balls:
        for x in tries:
            mid, radius = _fraction(x), _fraction(x.rad())
            low, high = fmt.round_fraction(mid - radius), fmt.round_fraction(mid + radius)
            if low == high:
                out.append(low)
                break
        else:
            raise ArithmeticError(f"{rope_theta}**(-2c/{rotary_dim}): undecided in {dtype}")
    return _frozen(np.array(out))


def _frozen(x: Array) -> Array:
    x.flags.writeable = False
    return x


@lru_cache(maxsize=256)
def table(positions: tuple[int, ...], rotary_dim: int, rope_theta: float) -> tuple[Array, Array]:
    """cos and sin of m theta_c as float64 (len, rotary_dim/2), within half an ulp and 2**-100.

    Read-only. Raises ArithmeticError if a ball is wider than 2**-110 (only for |m| far over 2**63).
    """
    shape = (len(positions), rotary_dim // 2)
    frequencies = _inv_freq(rotary_dim, rope_theta, BITS)
    rows = {}
    with ctx.workprec(BITS):
        for m in set(positions):
            balls = [(x * m).sin_cos() for x in frequencies]
            if any(float(s.rad()) > RADIUS or float(c.rad()) > RADIUS for s, c in balls):
                raise ArithmeticError(f"{BITS} bits are too few for position {m}")
            rows[m] = [(float(c.mid()), float(s.mid())) for s, c in balls]
    both = np.array([rows[m] for m in positions], np.float64).reshape(*shape, 2)
    return _frozen(both[..., 0].copy()), _frozen(both[..., 1].copy())


def exact(
    case: Any, inputs: Mapping[str, Array], output: str, flat: Sequence[int]
) -> list[Fraction]:
    """The exact value of the given elements, each within 2**-100 of itself, as rationals."""
    which: Callable[[tuple[arb, arb]], arb] = {"sin": lambda p: p[0], "cos": lambda p: p[1]}[output]
    positions, columns, found = inputs["positions"], case.rotary_dim // 2, []
    for index in flat:
        row, column = divmod(int(index), columns)
        bits = 2 * BITS
        while True:
            theta = _inv_freq(case.rotary_dim, case.rope_theta, bits)[column]
            with ctx.workprec(bits):
                value = which((theta * int(positions[row])).sin_cos())
            middle = _fraction(value)
            if _fraction(value.rad()) <= abs(middle) / 2**100:
                break
            bits *= 2
        found.append(middle)
    return found
