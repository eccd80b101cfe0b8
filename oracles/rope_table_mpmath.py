"""rope_table in mpmath, for tests: a second derivation that never reduces a large angle.

theta_c = (b^(1/D))^(-2c); cos(m theta) + i sin(m theta) = (cos theta + i sin theta)^m (de Moivre).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import mpmath

BITS = 320


def table(
    positions: Sequence[int],
    rotary_dim: int,
    rope_theta: float,
    columns: Sequence[int] | None = None,
) -> list[list[tuple[Fraction, Fraction]]]:
    """(cos, sin) of every position and column as rationals, within 2**-240 for |m| < 2**63."""
    columns = range(rotary_dim // 2) if columns is None else columns
    with mpmath.workprec(BITS):
        root = mpmath.root(mpmath.mpf(rope_theta), rotary_dim)
        units = [unit(1 / root ** (2 * c)) for c in columns]
        return rows(positions, units)


def rows(
    positions: Sequence[int], units: Sequence[mpmath.mpc]
) -> list[list[tuple[Fraction, Fraction]]]:
    """(Re, Im) of every unit to the power of every position, in the precision at hand."""
    return [[_rational(_power(z, int(m))) for z in units] for m in positions]


def unit(angle: mpmath.mpf) -> mpmath.mpc:
    """cos + i sin of an angle in radians."""
    cosine, sine = mpmath.cos_sin(angle)
    return mpmath.mpc(cosine, sine)


def _power(z: mpmath.mpc, m: int) -> mpmath.mpc:
    """z**m by squarings; |z| = 1, so that the inverse is the conjugate."""
    result, square = mpmath.mpc(1), z if m >= 0 else mpmath.conj(z)
    for bit in reversed(f"{abs(m):b}"):
        if bit == "1":
            result *= square
        square *= square
    return result


def _rational(z: mpmath.mpc) -> tuple[Fraction, Fraction]:
    return fraction(z.real), fraction(z.imag)


def fraction(x: mpmath.mpf) -> Fraction:
    """The number as it is."""
    mantissa, exponent = x.man_exp  # of the magnitude
    return (-1 if x < 0 else 1) * Fraction(int(mantissa)) * Fraction(2) ** int(exponent)
