"""Index plumbing that laws about rotations share: pairs, tables of given angles, one-row calls.

No rotation is computed here; oracles and kernels have their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tightrope.budget import Budget
from tightrope.compare import budgets
from tightrope.formats import FORMATS, Array, stored


def split(x: Array, case: Any) -> tuple[Array, Array]:
    """First and second members of the pairs of (..., head_dim), each (..., rotary_dim/2)."""
    rotated = x[..., : case.rotary_dim]
    if case.interleaved:
        return rotated[..., 0::2], rotated[..., 1::2]
    half = case.rotary_dim // 2
    return rotated[..., :half], rotated[..., half:]


def join(first: Array, second: Array, whole: Array, case: Any) -> Array:
    """The inverse of `split`; features past rotary_dim are those of `whole`."""
    joined = np.array(whole, copy=True)
    if case.interleaved:
        joined[..., 0 : case.rotary_dim : 2], joined[..., 1 : case.rotary_dim : 2] = first, second
    else:
        half = case.rotary_dim // 2
        joined[..., :half], joined[..., half : case.rotary_dim] = first, second
    return joined


def table_of(angles: Array, dtype: str) -> tuple[Array, Array, float]:
    """cos and sin of (rows, rotary_dim/2) angles in radians, and a bound on each entry's error.

    The error is one rounding to `dtype` of a value at most 1, and float64's own (under 2^-51).
    """
    error = 0.5 * float(FORMATS[dtype].ulp(0.5)) * 2 + 2.0**-51
    return stored(np.cos(angles), dtype), stored(np.sin(angles), dtype), error


@dataclass(frozen=True)
class Call:
    """One call's inputs, outputs and budgets."""

    inputs: dict[str, Array]
    outputs: dict[str, Array]
    budgets: dict[str, Budget]


def rotate_with(impl: Any, case: Any, inputs: dict[str, Array], row: int) -> Call:
    """Call with every token at one row of the table."""
    given = {**inputs, "positions": np.full_like(inputs["positions"], row)}
    return Call(given, impl(case, given), budgets(impl, case, given))
