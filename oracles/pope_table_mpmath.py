"""pope_table in mpmath, for tests: a second derivation that never reduces a large angle.

theta_c = (b^(1/d))^(s c), and powers of cos theta_c + i sin theta_c (de Moivre).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import mpmath

from tightrope.oracles.rope_table_mpmath import BITS, fraction, rows, unit


def table(
    positions: Sequence[int], rotary_dim: int, rope_theta: float, exponent_sign: int
) -> tuple[list[Fraction], list[list[tuple[Fraction, Fraction]]]]:
    """theta_c, and (cos, sin) of every position and column, as rationals.

    Within 2**-200 for |m| < 2**63 and frequencies below 2**24, relative and absolute.
    """
    with mpmath.workprec(BITS):
        root = mpmath.root(mpmath.mpf(rope_theta), rotary_dim)
        theta = [root ** (exponent_sign * c) for c in range(rotary_dim)]
        return [fraction(x) for x in theta], rows(positions, [unit(x) for x in theta])
