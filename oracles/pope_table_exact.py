"""pope_table in ball arithmetic (python-flint's arb): every value comes with its own error bound.

b^(s c/d) = (b^-s)^(-2c/(2d)): the frequencies of rope_table at twice the width, and at the exact
rational 1/b in the place of b where s = 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

from flint import fmpq

from tightrope.formats import Array
from tightrope.oracles import rope_table_exact

BITS = 512  # of a frequency in `exact`: relative radius far below 2^-100


def _base(rope_theta: float, exponent_sign: int) -> fmpq:
    return fmpq(*float(rope_theta).as_integer_ratio()) ** -exponent_sign


def inv_freq(
    rotary_dim: int, rope_theta: float, exponent_sign: int, dtype: str = "float64"
) -> Array:
    """rope_theta**(s c/rotary_dim), correctly rounded to `dtype`, as float64 (rotary_dim,).

    The result is read-only. Raises ArithmeticError where it lies too near to the middle of two
    numbers.
    """
    base = _base(rope_theta, exponent_sign)
    return rope_table_exact.inv_freq(2 * rotary_dim, base, dtype)


def table(
    positions: tuple[int, ...], rotary_dim: int, rope_theta: float, exponent_sign: int
) -> tuple[Array, Array]:
    """cos and sin of m theta_c as float64 (len, rotary_dim), within half an ulp and 2**-100.

    Read-only. Raises ArithmeticError for angles far over 2**256.
    """
    base = _base(rope_theta, exponent_sign)
    return rope_table_exact.table(positions, 2 * rotary_dim, base)


def exact(
    case: Any, inputs: Mapping[str, Array], output: str, flat: Sequence[int]
) -> list[Fraction]:
    """The exact value of the given elements, each within 2**-100 of itself, as rationals."""
    base, twice = _base(case.rope_theta, case.exponent_sign), 2 * case.rotary_dim
    if output != "inv_freq":
        wider = SimpleNamespace(rotary_dim=twice, rope_theta=base)
        return rope_table_exact.exact(wider, inputs, output, flat)
    found = rope_table_exact.balls(twice, base, BITS)
    return [rope_table_exact.fraction(found[int(c)]) for c in flat]
