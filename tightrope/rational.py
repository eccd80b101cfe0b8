"""Deciding one element in rational arithmetic, where float64 cannot."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from tightrope.formats import Format


def settle(out: float, bound: float, value: Fraction, fmt: Format) -> tuple[bool, float]:
    """(whether RN(value - bound) <= out <= RN(value + bound), share of the bound spent)."""
    if np.isnan(out) or np.isnan(bound):
        return False, float("inf")
    if np.isinf(bound):  # an intermediate result may overflow: every number is possible
        return True, 0.0
    e = Fraction(bound)
    right = fmt.round_fraction(value - e) <= out <= fmt.round_fraction(value + e)
    share = share_of(out, value, e, fmt)
    return right, min(share, 1.0) if right else max(share, 1.0)


def share_of(out: float, value: Fraction, e: Fraction, fmt: Format) -> float:
    """How far `value` lies from the reals that round to `out`, in units of e."""
    if fmt.round_fraction(value) == out:
        return 0.0
    if e == 0:
        return float("inf")
    if value < 0:
        out, value = -out, -value
    ratio = abs(_edge(out, value, fmt) - value) / e
    return float(ratio) if ratio < 10**300 else float("inf")


def _edge(out: float, value: Fraction, fmt: Format) -> Fraction:
    """The end, on the side of value >= 0, of the interval of reals that round to `out`."""
    if np.isinf(out):
        edge = Fraction(fmt.largest) + Fraction(float(fmt.ulp(fmt.largest))) / 2
        return edge if out > 0 else -edge
    below, above = (float(v) for v in fmt.neighbours(np.float64(out)))
    near = below if value < Fraction(out) else above
    if np.isinf(near):
        return Fraction(out) + Fraction(float(fmt.ulp(out))) / 2
    return (Fraction(out) + Fraction(near)) / 2


def decimal(value: Fraction, digits: int = 25) -> str:
    """A rational as a decimal string of `digits` significant digits."""
    import mpmath

    with mpmath.workdps(digits + 10):
        return mpmath.nstr(mpmath.mpf(value.numerator) / value.denominator, digits)
