"""Exact results of `rope_attention`: a rotation in integers, then attention in ball arithmetic.

The rotation of a stored pair by a stored cosine and sine (RoFormer, arXiv:2104.09864, eq. 34) is a
dyadic number, so nothing is rounded before the first exp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tightrope.formats import Array
from tightrope.oracles.attention_exact import Value, dense_values
from tightrope.oracles.attention_row_exact import Dyadic, dyadic


def _rotated(x: Array, cos: Array, sin: Array, interleaved: bool) -> Dyadic:
    """x (rows, head_dim), cos and sin (rows, rotary_dim/2): one rotated row each."""
    half = cos.shape[1]
    whole, turns = dyadic(x), dyadic(np.concatenate([cos, sin], axis=1))
    c, s = turns.mantissas[:, :half], turns.mantissas[:, half:]
    step, second = (2, 1) if interleaved else (1, half)
    last = 2 * half
    firsts = slice(0, last, step) if interleaved else slice(0, half)
    seconds = slice(second, last, step)
    result = whole.mantissas << -turns.exponent
    x1, x2 = whole.mantissas[:, firsts], whole.mantissas[:, seconds]
    result[:, firsts] = x1 * c - x2 * s
    result[:, seconds] = x2 * c + x1 * s
    return Dyadic(result, whole.exponent + turns.exponent)


def exact(case: Any, inputs: Mapping[str, Array], output: str, flat: Sequence[int]) -> list[Value]:
    """Exact values of "out" or "lse" at flat (C order) indices, within 2**-100 of themselves.

    Positions are rows of the table and only rotate; masks go by indices. None stands for -inf,
    the lse of a row without a key. Raises ArithmeticError if an input that the row sees is not
    finite.
    """
    cos, sin = inputs["cos"], inputs["sin"]

    def load(name: str, batch: int, head: int, rows: Array) -> Dyadic:
        positions = inputs[f"{name}_positions"]
        at = (positions if positions.ndim == 1 else positions[batch])[rows]
        return _rotated(inputs[name][batch, head, rows], cos[at], sin[at], case.interleaved)

    return dense_values(case, inputs, output, flat, load)
