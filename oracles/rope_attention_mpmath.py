"""`rope_attention` in mpmath: pairs turned as complex numbers, then attended to. For tests only.

RoFormer (Su et al. 2021, arXiv:2104.09864, eq. 12) introduces the rotation in this form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mpmath

from tightrope.formats import Array
from tightrope.oracles.attention_mpmath import DIGITS, batched, numbers


def rope_attention(case: Any, inputs: Mapping[str, Array]) -> dict[str, list[Any]]:
    """ "out" and "lse", flat in C order, as mpf; lse -inf for rows without a key."""
    with mpmath.workdps(DIGITS):
        turns = [
            [mpmath.mpc(float(c), float(s)) for c, s in zip(cos, sin, strict=True)]
            for cos, sin in zip(inputs["cos"], inputs["sin"], strict=True)
        ]
        q, k = (
            _rotated(inputs[name], inputs[f"{name}_positions"], turns, case.interleaved)
            for name in ("q", "k")
        )
        return batched(case, inputs, q, k)


def _rotated(x: Array, positions: Array, turns: list[list[Any]], interleaved: bool) -> Any:
    """x (batch, heads, seqlen, head_dim) as nested lists, rotated."""
    result = numbers(x)
    for b, heads in enumerate(result):
        rows = positions if positions.ndim == 1 else positions[b]
        for vectors in heads:
            for vector, row in zip(vectors, rows.tolist(), strict=True):
                _turn(vector, turns[row], interleaved)
    return result


def _turn(vector: list[Any], turns: list[Any], interleaved: bool) -> None:
    """Pair i is (2i, 2i + 1) or (i, i + rotary_dim/2); features beyond the pairs stay."""
    for i, turn in enumerate(turns):
        first, second = (2 * i, 2 * i + 1) if interleaved else (i, i + len(turns))
        z = mpmath.mpc(vector[first], vector[second]) * turn
        vector[first], vector[second] = z.real, z.imag
