"""A kernel of which no schedule is known: any blocks, in any order, with any rescales, or none.

Derived in docs/error-budgets.md, attention, section strangers.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tightrope.formats import Array
from tightrope.oracles.attention_numbers import (
    FLOAT32,
    NORMAL,
    TF32,
    U,
    gamma,
    growth,
    half_ulp,
)
from tightrope.oracles.attention_rows import Rows, each
from tightrope.oracles.attention_softmax_budget import ALPHA_NORMAL, ZERO, Start, Weights
from tightrope.oracles.attention_stages import Stages
from tightrope.oracles.attention_sums import Sums
from tightrope.oracles.attention_terms import Parts


class Row(NamedTuple):
    """Of whole rows: the largest logit and error, keys (groups, rows, 1), and sorted t + e."""

    top: Array
    worst: Array
    keys: Array
    upper: Array


class Part(NamedTuple):
    """Sums over some keys, relative to 2**top: of (P v) as accumulated and what that may lose.

    under: what P / L, or the parts it is split into, may lose by underflow; relative to L.
    """

    sums: Sums
    weight: Array
    lost: Array
    summing: Array
    under: Array


def unknown(rows: Rows, start: Start | None) -> Parts:
    """What the terms are made of; the sink is one more key with v = 0, at any place."""
    rows = rows if start is None else rows.ending_with(start)
    stages, parts = rows.stages, rows.parts
    row = _row(rows)
    total = np.sum(list(each(lambda i: _p(parts[i].t, row.top).sum(-1), len(parts))), axis=0)
    found = list(each(lambda i: _part(rows, i, row, total), len(parts)))
    sums = found[0].sums
    for part in found[1:]:
        sums = sums.plus(part.sums)
    weight, lost, summing, under = (
        np.sum([getattr(part, name) for part in found], axis=0)
        for name in ("weight", "lost", "summing", "under")
    )
    per = np.where(total > 0, total, 1.0)
    seen = rows.problem.visible.sum(-1)[..., None]
    lost = lost + _absolute(seen, stages)
    if stages.precision == "tf32x3":
        lost = lost + 1.25 * 2.0**-20 * weight + 2.0**-130 * seen
    none = np.zeros(total.shape)
    return Parts(
        top=row.top, total=total, sums=sums, sink=none, sink_eps=none,
        shift_error=row.worst[..., 0] + 2 * U * np.abs(row.top),
        accumulation=lost / per[..., None] + under, denominator=summing / per,
        quotient=2 * stages.division * U * weight / per[..., None] + _absolute(1, stages),
    )  # fmt: skip


def _row(rows: Rows) -> Row:
    t, e = [k.t for k in rows.parts], [k.error for k in rows.parts]
    top = np.max([x.max(-1) for x in t], axis=0)
    upper = np.concatenate([a + b for a, b in zip(t, e, strict=True)], -1)
    at = list(np.ndindex(upper.shape[:-1]))
    for _ in each(lambda i: upper[at[i]].sort(), len(at) if upper.size > 2**16 else 0):
        pass
    if upper.size <= 2**16:
        upper.sort(-1)
    return Row(
        np.where(np.isfinite(top), top, 0.0),
        np.max([x.max(-1) for x in e], axis=0)[..., None],
        np.sum([(x > -np.inf).sum(-1) for x in t], axis=0)[..., None],
        upper,
    )


def _p(t: Array, top: Array) -> Array:
    return np.exp2(t - top[..., None])


def _part(rows: Rows, i: int, row: Row, total: Array) -> Part:
    stages, t, e = rows.stages, rows.parts[i].t, rows.parts[i].error
    seen = t > -np.inf
    rescales = np.where(seen, _above(t, e, row.upper), 0.0)
    p = _p(t, row.top)
    eps, lost = _eps(t, e, row, rescales, seen, stages)
    rho = _rho(p, eps, total, stages)
    nothing = np.zeros(())
    v = rows.v(i)
    weight = p * (1 + eps) * (1 + (0.0 if rho is None else rho))
    seen = rows.problem.visible.sum(-1)[..., None]
    rounds = gamma(_roundings(seen, rescales, rows.problem.visible.shape[-1] + 1, stages))
    summing = p * (1 + eps) * gamma(np.maximum(row.keys - 1, 0) + rescales)
    return Part(
        Sums.of(Weights(p, eps, lost, rho, nothing, nothing, nothing), v),
        weight @ np.abs(v), (weight * rounds) @ np.abs(v), summing.sum(-1),
        _under(weight / np.where(total > 0, total, 1.0)[..., None], t > -np.inf, v, stages),
    )  # fmt: skip


def _under(share: Array, seen: Array, v: Array, stages: Stages) -> Array:
    """P / L may be flushed, or be off by ulps of a subnormal; `tf32x3` splits what may be one."""
    lost = np.minimum(NORMAL, share) if stages.flush else stages.division * FLOAT32.tiny * seen
    under = lost @ np.abs(v)
    if stages.precision == "tf32x3":
        small = seen * 1.0 @ np.abs(v) + share.sum(-1)[..., None]
        under = under + 2 * TF32.tiny * small
    return under


def _above(t: Array, e: Array, upper: Array) -> Array:
    """How many other keys of the row may have a larger logit: each may cost one rescale."""
    lower = t - e
    count = np.empty(t.shape)
    for row in np.ndindex(t.shape[:-1]):
        count[row] = upper.shape[-1] - np.searchsorted(upper[row], lower[row], "right")
    return count - (e > 0)  # its own upper end lies above its lower end


def _eps(t: Array, e: Array, row: Row, rescales: Array, seen: Array, stages: Stages
         ) -> tuple[Array, Array]:  # fmt: skip
    """Relative errors of the weights, and which may be flushed.

    The arguments of the rescales telescope to top - t.
    """
    far = np.where(seen, np.maximum(row.top[..., None] - t, 0.0), 0.0) + 2 * row.worst
    argument = e + (1.0 if stages.scaled else 2.5) * U * far + FLOAT32.tiny
    eps = growth(argument, (1 + rescales) * math.log1p(stages.exp))
    lost = seen & (far > ALPHA_NORMAL)
    if stages.flush:
        return np.where(lost, np.maximum(eps, 1.0), eps), lost
    # every factor is at most 1, so that errors of a subnormal one add up to their sum
    small = 1.01 * (1 + rescales) * stages.exp_ulp * FLOAT32.tiny
    return np.where(lost, eps + small / np.maximum(np.exp2(-far), ZERO), eps), lost


def _rho(p: Array, eps: Array, total: Array, stages: Stages) -> Array | None:
    """Rounding of P, or of P / L: underflow is worst for the smallest of these."""
    if stages.p is None:
        return None
    small = np.maximum(p / np.maximum(total, 1.0)[..., None], 1e-300)
    rho = np.maximum(stages.p.unit, half_ulp(small * (1 + eps), stages.p) / small)
    return np.minimum((2.0 if stages.truncated else 1.0) * rho, 1 + eps)


def _roundings(number: Array, rescales: Array, blocks: int, stages: Stages) -> Array:
    """How many roundings the product of one key may go through on its way into acc."""
    parts = 3 if stages.precision == "tf32x3" else 1
    sums = stages.addition * parts * number
    if stages.io is not FLOAT32:
        sums = sums * (number > 1)
    if stages.normalised:
        sums = sums + blocks * (2 + 2 * stages.division)
    return sums + rescales


def _absolute(number: Array | int, stages: Stages) -> Array | float:
    """Underflow: any operation may lose a subnormal, or an ulp of one."""
    return 2 * (number + 1) * (2.0**-126 if stages.flush else FLOAT32.tiny)
