"""Exact results of `merge_attention` in ball arithmetic, one element at a time.

The merge of partial states is a softmax over splits: out = sum of e^(lse_i) out_i over the sum of
e^(lse_i), lse = ln of that sum. A state with lse = -inf is the identity, whatever its out holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from flint import arb

from tightrope.formats import Array, widen
from tightrope.oracles.attention_exact import Value
from tightrope.oracles.attention_row_exact import Row, dyadic


def exact(case: Any, inputs: Mapping[str, Array], output: str, flat: Sequence[int]) -> list[Value]:
    """Exact values of "out" (..., head_dim) or "lse" (...) at flat (C order) indices, within
    2**-100 of themselves; None for -inf. Raises ArithmeticError if a live state is not finite.
    """
    outs, lses = inputs["outs"], widen(inputs["lses"])
    splits, head_dim = len(lses), outs.shape[-1]
    outs, lses = outs.reshape(splits, -1, head_dim), lses.reshape(splits, -1)
    rows: dict[int, Row] = {}
    found: list[Value] = []
    for index in flat:
        place, feature = divmod(int(index), head_dim) if output == "out" else (int(index), 0)
        live = np.flatnonzero(lses[:, place] != -np.inf)
        if place not in rows:
            rows[place] = _row(lses[live, place], live)
        if output == "lse":
            found.append(rows[place].lse())
        elif live.size:
            column = dyadic(outs[live, place, feature][:, None])
            found.append(rows[place].out(column.mantissas[:, 0].tolist(), column.exponent))
        else:
            found.append(Fraction(0))
    return found


def _row(lses: Array, live: Array) -> Row:
    if not np.isfinite(lses).all():
        raise ArithmeticError("the exact value does not exist: an lse is +inf or NaN")
    return Row(t=[arb(x) for x in lses.tolist()], at=live)
