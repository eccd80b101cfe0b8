"""Gradients of attention as finite differences of one number, in mpmath. For tests only.

With lse and D = dout . out held, dq, dk and dv are the gradient of

    F(q, k, v) = sum_ij exp(t_ij - lse_i) (dout_i . v_j - D_i)

since dF/dt_ij = P (dP - D) and dF/dv_j = sum_i P dout_i. A central difference with a step of 10^-22
in numbers of 70 digits leaves about 40 of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import mpmath

from tightrope.formats import Array
from tightrope.oracles.attention_mpmath import logit, numbers, sees

if TYPE_CHECKING:
    from tightrope.oracles.attention_backward_cases import AttentionBackwardCase

DIGITS, STEP = 70, 22
Score = Callable[[Any, Mapping[str, Any], int, int, int, int], Any]


def attention_backward(
    case: AttentionBackwardCase, inputs: Mapping[str, Array]
) -> dict[str, list[Any]]:
    """ "dq", "dk" and "dv", flat in C order, as mpf."""
    with mpmath.workdps(DIGITS):
        held = {n: numbers(inputs[n]) for n in ("dout", "q", "k", "v", "out", "lse")}
        return differences(case, held, inputs.get("q_offset"))


def plain(case: Any, held: Mapping[str, Any], batch: int, head: int, i: int, j: int) -> Any:
    """The logit of a query and a key."""
    q, k = held["q"][batch], held["k"][batch]
    return logit(case, q[head][i], k[head * len(k) // len(q)][j])


def differences(
    case: Any, held: Mapping[str, Any], offsets: Array | None, score: Score = plain
) -> dict[str, list[Any]]:  # fmt: skip
    """The same of nested lists of mpf, whose digits are all used; score: of another operation."""
    found: dict[str, list[Any]] = {}
    for name in ("q", "k", "v"):
        found[f"d{name}"] = [
            _difference(case, held, offsets, score, name, (b, h, i), c)
            for b, heads in enumerate(held[name])
            for h, rows in enumerate(heads)
            for i, row in enumerate(rows)
            for c in range(len(row))
        ]
    return found


def _difference(
    case: Any, held: Mapping[str, Any], offsets: Array | None, score: Score, name: str,
    at: tuple[int, int, int], feature: int,
) -> Any:  # fmt: skip
    """(F(x + h) - F(x - h)) / 2h in one feature; only pairs that it belongs to are looked at."""
    batch, head, place = at
    vector = held[name][batch][head][place]
    if not mpmath.isfinite(vector[feature]):  # no row sees this key
        return mpmath.mpf(0)
    return slope(vector, feature, lambda: _sum(case, held, offsets, score, name, at))


def slope(vector: list[Any], place: int, compute: Callable[[], Any]) -> Any:
    """(F(x + h) - F(x - h)) / 2h of what is computed from a vector, whose x is put back."""
    step = mpmath.mpf(10) ** -STEP
    ends = []
    before = vector[place]
    for moved in (before + step, before - step):
        vector[place] = moved
        ends.append(compute())
    vector[place] = before
    return (ends[0] - ends[1]) / (2 * step)


def _sum(
    case: Any, held: Mapping[str, Any], offsets: Array | None, score: Score, name: str,
    at: tuple[int, int, int],
) -> Any:  # fmt: skip
    """The terms of F to which the vector `at` of q, k or v belongs."""
    batch, head, place = at
    q, k = held["q"][batch], held["k"][batch]
    offset = case.q_offset if offsets is None else int(offsets[batch])
    group = len(q) // len(k)
    heads = [head] if name == "q" else range(head * group, (head + 1) * group)
    rows = [place] if name == "q" else range(len(q[head]))
    keys = range(len(k[0])) if name == "q" else [place]
    each = ((h, i, j) for h in heads for i in rows for j in keys if sees(case, i + offset, j))
    return sum((term(case, held, score, batch, *pair) for pair in each), mpmath.mpf(0))


def term(
    case: Any, held: Mapping[str, Any], score: Score, batch: int, head: int, i: int, j: int
) -> Any:
    """Of F, of a query and a key that it sees."""
    dout, v = held["dout"][batch][head][i], held["v"][batch]
    upstream = mpmath.fdot(dout, v[head * len(v) // len(held["q"][batch])][j])
    upstream -= mpmath.fdot(dout, held["out"][batch][head][i])
    return mpmath.exp(score(case, held, batch, head, i, j) - held["lse"][batch][head][i]) * upstream
