"""Gradients of attention as finite differences of one number, in mpmath. For tests only.

With lse and D = dout . out held, dq, dk and dv are the gradient of

    F(q, k, v) = sum_ij exp(t_ij - lse_i) (dout_i . v_j - D_i)

since dF/dt_ij = P (dP - D) and dF/dv_j = sum_i P dout_i. A central difference with a step of 10^-22
in numbers of 70 digits leaves about 40 of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import mpmath

from tightrope.formats import Array
from tightrope.oracles.attention_mpmath import logit, numbers, sees

if TYPE_CHECKING:
    from tightrope.oracles.attention_backward_cases import AttentionBackwardCase

DIGITS, STEP = 70, 22


def attention_backward(
    case: AttentionBackwardCase, inputs: Mapping[str, Array]
) -> dict[str, list[Any]]:
    """ "dq", "dk" and "dv", flat in C order, as mpf."""
    with mpmath.workdps(DIGITS):
        held = {n: numbers(inputs[n]) for n in ("dout", "q", "k", "v", "out", "lse")}
        return differences(case, held, inputs.get("q_offset"))


def differences(
    case: Any, held: Mapping[str, Any], offsets: Array | None
) -> dict[str, list[Any]]:  # fmt: skip
    """The same of nested lists of mpf, whose digits are all used."""
    found: dict[str, list[Any]] = {}
    for name in ("q", "k", "v"):
        found[f"d{name}"] = [
            _difference(case, held, offsets, name, (b, h, i), c)
            for b, heads in enumerate(held[name])
            for h, rows in enumerate(heads)
            for i, row in enumerate(rows)
            for c in range(len(row))
        ]
    return found


def _difference(
    case: Any, held: Mapping[str, Any], offsets: Array | None, name: str,
    at: tuple[int, int, int], feature: int,
) -> Any:  # fmt: skip
    """(F(x + h) - F(x - h)) / 2h in one feature; only pairs that it belongs to are looked at."""
    batch, head, place = at
    vector = held[name][batch][head][place]
    if not mpmath.isfinite(vector[feature]):  # no row sees this key
        return mpmath.mpf(0)
    step = mpmath.mpf(10) ** -STEP
    ends = []
    before = vector[feature]
    for moved in (before + step, before - step):
        vector[feature] = moved
        ends.append(_sum(case, held, offsets, name, at))
    vector[feature] = before
    return (ends[0] - ends[1]) / (2 * step)


def _sum(
    case: Any, held: Mapping[str, Any], offsets: Array | None, name: str, at: tuple[int, int, int]
) -> Any:
    """The terms of F to which the vector `at` of q, k or v belongs."""
    batch, head, place = at
    q, k = held["q"][batch], held["k"][batch]
    offset = case.q_offset if offsets is None else int(offsets[batch])
    group = len(q) // len(k)
    heads = [head] if name == "q" else range(head * group, (head + 1) * group)
    total = mpmath.mpf(0)
    for h in heads:
        rows = [place] if name == "q" else range(len(q[h]))
        keys = range(len(k[h // group])) if name == "q" else [place]
        for i in rows:
            for j in keys:
                if sees(case, i + offset, j):
                    total += _term(case, held, batch, h, h // group, i, j)
    return total


def _term(
    case: Any, held: Mapping[str, Any], batch: int, head: int, kv_head: int, i: int, j: int
) -> Any:
    dout = held["dout"][batch][head][i]
    t = logit(case, held["q"][batch][head][i], held["k"][batch][kv_head][j])
    upstream = mpmath.fdot(dout, held["v"][batch][kv_head][j])
    upstream -= mpmath.fdot(dout, held["out"][batch][head][i])
    return mpmath.exp(t - held["lse"][batch][head][i]) * upstream
