"""`rope_backward` as the transpose of a matrix: no formula of its own. For tests only.

The matrix of `rope` is found column by column, as what the forward makes of unit vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from tightrope.formats import Array
from tightrope.oracles.rope_mpmath import rotated

if TYPE_CHECKING:
    from tightrope.oracles.rope_backward_cases import RopeBackwardCase


def transposed(case: RopeBackwardCase, inputs: Mapping[str, Array], output: str) -> list[Fraction]:
    """All of output "dq" or "dk", flat in C order, as rationals."""
    given = inputs[output]
    tokens, _, head_dim = given.shape
    units = np.broadcast_to(np.eye(head_dim), (tokens, head_dim, head_dim))
    columns = iter(rotated(case, {**inputs, "units": units}, "units"))
    result: list[Fraction] = []
    for token in range(tokens):
        matrix = [[next(columns) for _ in range(head_dim)] for _ in range(head_dim)]
        for dy in given[token]:
            upstream = [Fraction(float(v)) for v in dy]
            result += [
                sum((m * d for m, d in zip(column, upstream, strict=True) if m), Fraction(0))
                for column in matrix
            ]
    return result
