"""query_scale in mpmath, for tests: ln(1 + w) = 2 artanh(w/(w + 2)), w found by counting steps."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import mpmath

from tightrope.oracles.rope_table_mpmath import fraction

BITS = 320


def scale(
    positions: Sequence[int], attn_scale: float, floor_scale: int, shift: int
) -> list[Fraction]:
    """The temperatures as rationals, within 2**-240."""
    with mpmath.workprec(BITS):
        return [
            fraction(1 + 2 * mpmath.mpf(attn_scale) * _half_log(int(m) + shift, floor_scale))
            for m in positions
        ]


def _half_log(tokens: int, floor_scale: int) -> mpmath.mpf:
    """artanh(w/(w + 2)) for the whole steps w within so many tokens."""
    steps = (tokens - tokens % floor_scale) // floor_scale
    return mpmath.atanh(mpmath.mpf(steps) / (steps + 2))
