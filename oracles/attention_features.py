"""Attention whose q and k are formed inside the operation: from errors of features to budgets.

`rope_attention` rotates q and k, `pope_attention` turns magnitudes; from their features on both are
attention. Derived in docs/error-budgets.md, section rope_attention, (R2) and (R3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tightrope.budget import Budget
from tightrope.formats import Array, Format
from tightrope.oracles.attention_budget import forward
from tightrope.oracles.attention_dots import Scores, scores
from tightrope.oracles.attention_numbers import U64
from tightrope.oracles.attention_problem import Problem
from tightrope.oracles.attention_stages import Stages


@dataclass(frozen=True)
class Features:
    """What enters the scores for q or k, (.., length, width): exact (float64, off by own), error of
    what the kernel holds; near, open: where that lies as prescribed roundings give it."""

    exact: Array
    error: Array
    own: Array
    near: Array
    open: Array

    def each(self, change: Callable[[Array], Array]) -> Features:
        """The same change of the arrangement for every array."""
        parts = (self.exact, self.error, self.own, self.near, self.open)
        return Features(*map(change, parts))


def held(
    exact: Array, before: Array, own: Array, fmt: Format, ends: tuple[Array, Array], same: Array
) -> Features:
    """Features within `before` of exact until they are rounded to fmt.

    ends: what prescribed roundings leave before this one, (low, high), exact numbers; same: where
    the rounding changes nothing. Infinite errors where fmt may overflow.
    """
    error = np.where(same, before, before + fmt.half_ulp(np.abs(exact) + before))
    low, high = (fmt.round(x) for x in ends)
    finite = np.isfinite(low) & np.isfinite(high)
    with np.errstate(invalid="ignore"):
        near, apart = (low + high) / 2, (high - low) / 2
    return Features(
        exact, np.where(finite, error, np.inf), np.broadcast_to(own, exact.shape),
        np.where(finite, near, exact), np.where(finite, apart, 0.0),
    )  # fmt: skip


def feature_scores(q: Features, k: Features, stages: Stages, factor: float, replay: bool) -> Scores:
    """Scores of (groups, length, width) features: exact centre, worst case (R2), and T1 (R3).

    factor: as `scores` has it. replay: whether near and open say anything.
    """
    with np.errstate(invalid="ignore"):  # an infinite error times 0: nothing is promised
        size_q, size_k = np.abs(q.exact) + q.error, np.abs(k.exact) + k.error
        worst = scores(size_q, size_k, stages, factor).error
        moved = np.abs(q.exact) @ _t(k.error) + q.error @ _t(size_k)
        own = np.abs(q.exact) @ _t(k.own) + q.own @ _t(size_k)
        own = own + q.exact.shape[-1] * U64 * (size_q @ _t(size_k))
    again = _replayed(q, k, worst, stages, factor) if replay else (None, None)
    return Scores(q.exact @ _t(k.exact), worst + moved, own, *again)


def _replayed(
    q: Features, k: Features, worst: Array, stages: Stages, factor: float
) -> tuple[Array, Array]:
    """Centre and error of scores whose features are known, but for a few undecided ones."""
    found = scores(q.near, k.near, stages, factor)
    centre, error = found.centre, found.error
    if found.replay_centre is not None and found.replay_error is not None:
        centre, error = found.replay_centre, found.replay_error
    error = error + found.own
    undecided = (q.open.max(-1) > 0)[..., :, None] | (k.open.max(-1) > 0)[..., None, :]
    if undecided.any():
        moved = np.abs(q.near) @ _t(k.open) + q.open @ _t(np.abs(k.near) + k.open)
        away = np.abs(centre - found.centre)  # of operands that are converted
        error = np.where(undecided, worst + moved + away + found.own, error)
    return centre, error


def budgets(
    case: Any, p: Problem, stages: Mapping[str, Any], found: Callable[[], Scores]
) -> dict[str, Budget]:
    """Budgets of out and lse of a (batch, num_heads, seqlen_q) call; found is only asked if it has
    a row."""
    shape = (case.batch, case.num_heads, case.seqlen_q)
    if 0 in shape:
        nothing = np.zeros((*shape, case.head_dim_v))
        return {
            "out": Budget(nothing, {}, p.out_dtype),
            "lse": Budget(nothing[..., 0], {}, "float32"),
        }
    spent = forward(p, stages, found())
    return {
        "out": spent.out.reshape((*shape, case.head_dim_v)),
        "lse": spent.lse.reshape(shape),
    }


def _t(x: Array) -> Array:
    return x.swapaxes(-1, -2)
