"""`rope` as complex multiplication in mpmath: (x1 + i x2)(c + i s) = y1 + i y2. For tests only.

RoFormer (Su et al. 2021, arXiv:2104.09864, eq. 12) introduces the rotation in this form.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import mpmath

from tightrope.formats import Array

if TYPE_CHECKING:
    from tightrope.oracles.rope_cases import RopeCase

PRECISION = 4400  # bits: no product or sum of float64 numbers needs more, so nothing is rounded


def rotated(case: RopeCase, inputs: Mapping[str, Array], output: str) -> list[Fraction]:
    """All of output "q" or "k", flat in C order, as rationals."""
    result: list[Fraction] = []
    with mpmath.workprec(PRECISION):
        for token, row in enumerate(inputs["positions"]):
            turns = [
                mpmath.mpc(float(c), float(s))
                for c, s in zip(inputs["cos"][row], inputs["sin"][row], strict=True)
            ]
            for vector in inputs[output][token]:
                features = [Fraction(float(v)) for v in vector]
                pairs = _pairs(len(turns), case.interleaved)
                for (first, second), turn in zip(pairs, turns, strict=True):
                    z = mpmath.mpc(float(vector[first]), float(vector[second])) * turn
                    features[first], features[second] = _rational(z.real), _rational(z.imag)
                result += features
    return result


def _pairs(count: int, interleaved: bool) -> list[tuple[int, int]]:
    return [(2 * i, 2 * i + 1) if interleaved else (i, i + count) for i in range(count)]


def _rational(value: Any) -> Fraction:
    sign, mantissa, exponent, _ = value._mpf_
    return (-1) ** sign * Fraction(int(mantissa)) * Fraction(2) ** int(exponent)
