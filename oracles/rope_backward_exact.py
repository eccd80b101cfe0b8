"""Exact results of `rope_backward` in rational arithmetic, one element at a time.

Column j of `rope`'s matrix holds what feature j of x adds to y: c at j itself, and at its partner
s, or -s if j is the second of the pair. The gradient of x_j is that column times dy, two products
of binary fractions: rationals hold it without a rounding, so that no ball is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from tightrope.formats import Array

if TYPE_CHECKING:
    from tightrope.oracles.rope_backward_cases import RopeBackwardCase


def exact(
    case: RopeBackwardCase, inputs: Mapping[str, Array], output: str, flat: Sequence[int]
) -> list[Fraction]:
    """The exact values of output "dq" or "dk" at flat (C order) indices.

    Raises ArithmeticError or ValueError if an input is infinite or NaN.
    """
    dy, rows = inputs[output], inputs["positions"]
    _, heads, head_dim = dy.shape
    values = []
    for index in flat:
        vector, feature = divmod(int(index), head_dim)
        token, head = divmod(vector, heads)
        row = int(rows[token])
        column = _column(inputs["cos"][row], inputs["sin"][row], feature, case.interleaved)
        given = dy[token, head]
        values.append(sum((_rational(given[i]) * m for i, m in column), Fraction(0)))
    return values


def _column(cos: Array, sin: Array, feature: int, interleaved: bool) -> list[tuple[int, Fraction]]:
    """(row, entry) of a column of `rope`'s matrix; cos and sin are a row, (rotary_dim/2,)."""
    width = len(cos)
    if feature >= 2 * width:
        return [(feature, Fraction(1))]
    if interleaved:
        pair, second, distance = feature // 2, feature % 2 == 1, 1
    else:
        pair, second, distance = feature % width, feature >= width, width
    c, s = _rational(cos[pair]), _rational(sin[pair])
    return [(feature, c), (feature - distance, -s) if second else (feature + distance, s)]


def _rational(number: Array) -> Fraction:
    return Fraction(float(number))
