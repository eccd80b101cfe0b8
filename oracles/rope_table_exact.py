"""rope_table in ball arithmetic (python-flint's arb): every value comes with its own error bound.

theta_c = exp(-(2c/D) ln b), then sin and cos of m theta_c (RoFormer, arXiv 2104.09864, eq. 15).
A base may be rational: other operations' frequencies are those of other bases. Scaled frequencies:
`rope_scaling_exact`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from flint import arb, ctx, fmpq

from tightrope.formats import FORMATS, Array
from tightrope.oracles import rope_scaling_exact
from tightrope.rope_scaling import RopeScaling

BITS = 192  # |m| < 2^63 costs 63 of them
RADIUS = 2.0**-110  # absolute, of every value in `table`


@lru_cache(maxsize=512)
def balls(
    rotary_dim: int, rope_theta: float | fmpq, bits: int, scaling: RopeScaling | None = None
) -> tuple[arb, ...]:
    """theta_c as balls of so many bits, (rotary_dim/2,)."""
    if scaling is not None:
        return rope_scaling_exact.balls(rotary_dim, rope_theta, scaling, bits)
    with ctx.workprec(bits):
        log = arb(rope_theta).log()
        return tuple((log * arb(fmpq(-2 * c, rotary_dim))).exp() for c in range(rotary_dim // 2))


def fraction(x: arb) -> Fraction:
    """The midpoint of a ball, as it is."""
    mantissa, exponent = x.mid().man_exp()
    return Fraction(int(mantissa)) * Fraction(2) ** int(exponent)


@lru_cache(maxsize=512)
def inv_freq(
    rotary_dim: int,
    rope_theta: float | fmpq,
    dtype: str = "float64",
    scaling: RopeScaling | None = None,
) -> Array:
    """Frequencies, correctly rounded to `dtype`, as float64 (rotary_dim/2,).

    They are rope_theta**(-2c/rotary_dim), or what `scaling` makes of them; the result is read-only.
    Raises ArithmeticError if 512 bits cannot tell which number is nearest.
    """
    fmt, out = FORMATS[dtype], []
    each = zip(*(balls(rotary_dim, rope_theta, bits, scaling) for bits in (BITS, 512)), strict=True)
    for tries in each:
        for x in tries:
            mid, radius = fraction(x), fraction(x.rad())
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
def table(
    positions: tuple[int, ...],
    rotary_dim: int,
    rope_theta: float | fmpq,
    scaling: RopeScaling | None = None,
) -> tuple[Array, Array]:
    """cos and sin of m theta_c as float64 (len, rotary_dim/2), within half an ulp and 2**-100.

    scaling: of the frequencies; attention_factor is left out.

    Read-only. Raises ArithmeticError if a ball stays wider than 2**-110 (only for angles far over
    2**256).
    """
    shape = (len(positions), rotary_dim // 2)
    rows = {m: _row(m, rotary_dim, rope_theta, scaling) for m in set(positions)}
    both = np.array([rows[m] for m in positions], np.float64).reshape(*shape, 2)
    return _frozen(both[..., 0].copy()), _frozen(both[..., 1].copy())


def _row(
    m: int, rotary_dim: int, rope_theta: float | fmpq, scaling: RopeScaling | None
) -> list[tuple[float, float]]:
    """(cos, sin) of m theta_c, from more bits where the angle is long."""
    for bits in (BITS, 2 * BITS):
        frequencies = balls(rotary_dim, rope_theta, bits, scaling)
        with ctx.workprec(bits):
            pairs = [(x * m).sin_cos() for x in frequencies]
        if all(float(s.rad()) <= RADIUS and float(c.rad()) <= RADIUS for s, c in pairs):
            return [(float(c.mid()), float(s.mid())) for s, c in pairs]
    raise ArithmeticError(f"{2 * BITS} bits are too few for position {m}")


def exact(
    case: Any,
    inputs: Mapping[str, Array],
    output: str,
    flat: Sequence[int],
    scaling: RopeScaling | None = None,
) -> list[Fraction]:
    """The exact value of the given elements, each within 2**-100 of itself, as rationals.

    With a scaling attention_factor is included, and positions may be (3, len).
    """
    which: Callable[[tuple[arb, arb]], arb] = {"sin": lambda p: p[0], "cos": lambda p: p[1]}[output]
    positions, columns, found = inputs["positions"], case.rotary_dim // 2, []
    for index in flat:
        row, column = divmod(int(index), columns)
        axis = rope_scaling_exact.axis_of(column, scaling) if positions.ndim > 1 else ...
        m, bits = int(positions[axis, row]), 2 * BITS
        while True:
            theta = balls(case.rotary_dim, case.rope_theta, bits, scaling)[column]
            with ctx.workprec(bits):
                value = which((theta * m).sin_cos())
                value *= rope_scaling_exact.attention_factor(scaling, bits) if scaling else 1
            middle = fraction(value)
            if fraction(value.rad()) <= abs(middle) / 2**100:
                break
            bits *= 2
        found.append(middle)
    return found
