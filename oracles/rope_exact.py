"""Exact results of `rope` in ball arithmetic, one element at a time.

The result of one element, x_j c_j - x_j' s_j or x_j c_j + x_j' s_j with j' the partner of j, is a
dyadic rational: the precision rises until the ball has radius 0, and its midpoint is the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from flint import arb, ctx

from tightrope.formats import Array

if TYPE_CHECKING:
    from tightrope.oracles.rope_cases import RopeCase

PRECISION = 160
# Products of two float64 numbers reach from 2**-2148 to 2**2048.
ENOUGH = 8192


def exact(
    case: RopeCase, inputs: Mapping[str, Array], output: str, flat: Sequence[int]
) -> list[Fraction]:
    """The exact values of output "q" or "k" at flat (C order) indices, as rationals."""
    x, cos, sin, rows = inputs[output], inputs["cos"], inputs["sin"], inputs["positions"]
    _, heads, head_dim = x.shape
    values = []
    for index in flat:
        rest, feature = divmod(int(index), head_dim)
        token, head = divmod(rest, heads)
        vector, row = x[token, head], int(rows[token])
        values.append(_feature(vector, cos[row], sin[row], feature, case.interleaved))
    return values


def _feature(vector: Array, cos: Array, sin: Array, feature: int, interleaved: bool) -> Fraction:
    """One feature of one rotated head; cos and sin are the table's row, (rotary_dim/2,)."""
    width = len(cos)
    if feature >= 2 * width:
        return Fraction(float(vector[feature]))
    if interleaved:
        pair, is_second = divmod(feature, 2)
        partner = feature + 1 - 2 * is_second
    else:
        is_second, pair = divmod(feature, width)
        partner = pair + width * (1 - is_second)
    sign = 1 if is_second else -1
    own, other = arb(float(vector[feature])), arb(float(vector[partner]))
    return _settled(own, arb(float(cos[pair])), sign * other, arb(float(sin[pair])))


def _settled(own: Any, c: Any, other: Any, s: Any) -> Fraction:
    """own c + other s without any rounding; raises ArithmeticError if an input is not finite."""
    bits = PRECISION
    while bits <= ENOUGH:
        with ctx.workprec(bits):
            ball = own * c + other * s
        if ball.is_exact() and ball.is_finite():
            mantissa, exponent = (int(part) for part in ball.man_exp())
            return Fraction(mantissa) * Fraction(2) ** exponent
        bits *= 2
    raise ArithmeticError("rope's exact value does not exist: an input is infinite or NaN")
