"""What P, dP - D and the softcap's slope of attention's backward pass may be off.

Derived in docs/error-budgets.md, attention_backward, sections P, upstream and softcap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from tightrope.formats import Array
from tightrope.oracles.attention_backward_problem import Backward, slope
from tightrope.oracles.attention_backward_stages import Stages
from tightrope.oracles.attention_budget import forward
from tightrope.oracles.attention_dots import Scores, scores
from tightrope.oracles.attention_numbers import (
    FLOAT32,
    LOG2E,
    NORMAL,
    U64,
    U,
    gamma,
    growth,
    half_ulp,
)
from tightrope.oracles.attention_rows import LARGEST, MOST
from tightrope.oracles.attention_scores_budget import FROM_LOG2E, logits, smallest_factor
from tightrope.oracles.attention_softmax_budget import ZERO, argument_error


@dataclass(frozen=True)
class State:
    """What is known of the kernel's lse and out: errors (groups, rows) and (groups, rows,
    head_dim_v), 0 where it takes those that are given; lost: rows of which nothing is known."""

    lse: Array
    out: Array
    lost: Array


@dataclass(frozen=True)
class Weights:
    """P (groups, rows, keys), 0 where masked. common (groups, rows, 1): relative error of a whole
    row; eps: of an entry alone; total: of both; flushed: where P may be 0. own: of float64,
    relative. t_error, y_own: of the base-2 logit, and of float64's z / softcap. lost (groups,
    rows): rows of which nothing is promised.
    """

    p: Array
    common: Array
    eps: Array
    total: Array
    flushed: Array
    own: Array
    t_error: Array
    y_own: Array
    lost: Array


@dataclass(frozen=True)
class Upstream:
    """a = dP - D (groups, rows, keys). row (groups, rows, 1): error that a whole row shares;
    entry: of one alone; own: of float64."""

    a: Array
    row: Array
    entry: Array
    own: Array
    lost: Array
    apart: Array


@dataclass(frozen=True)
class Slope:
    """The softcap's derivative g and its error; None stands for no softcap."""

    g: Array
    error: Array
    own: Array


def state_of(b: Backward, stages: Stages, given: Scores | None = None) -> State:
    """Raises nothing: a kernel that runs its own forward pass is off by that one's budget."""
    rows = b.lse.shape
    if stages.given or 0 in b.forward.visible.shape:
        return State(np.zeros(rows), np.zeros(b.out.shape), np.zeros(rows, bool))
    kept = replace(b.forward, out_dtype=b.forward.dtype)
    spent = forward(kept, stages.recomputed, given)
    live = np.isfinite(spent.lse.expected)
    lse = np.where(live, spent.lse.expected, 0.0)
    e_lse = spent.lse.bound + spent.lse.oracle
    e_lse = np.abs(b.lse - lse) + e_lse + half_ulp(np.abs(lse) + e_lse)
    e_out = spent.out.bound + spent.out.oracle
    e_out = e_out + half_ulp(np.abs(spent.out.expected) + e_out, stages.forward.io)
    e_out = np.abs(b.out - spent.out.expected) + e_out
    lost = live & ~(np.isfinite(e_lse) & np.isfinite(e_out).all(-1))
    return State(
        np.where(live & ~lost, e_lse, 0.0), np.where((live & ~lost)[..., None], e_out, 0.0), lost
    )


def weights_of(b: Backward, state: State, stages: Stages, given: Scores | None = None
               ) -> Weights:  # fmt: skip
    """given: scores that are not those of q and k."""
    p, first = b.forward, stages.forward
    found = given or scores(p.q, p.k, first, smallest_factor(p))
    seen, hopeless = p.visible, ~np.isfinite(found.error)
    e = np.where(hopeless, 0.0, found.error)
    of = logits(p, found.centre, e, found.own, first, seen, None)
    lam = (b.lse * LOG2E)[..., None]
    e_lam = LOG2E * state.lse[..., None] + FROM_LOG2E * (np.abs(lam) + LOG2E * state.lse[..., None])
    e_lam = e_lam + half_ulp(np.abs(lam) + e_lam)
    x = np.where(seen, of.t, 0.0) - np.where(seen, lam, 0.0)
    lost = seen & (hopeless | (of.error > MOST) | ~(np.abs(x) <= LARGEST) | (x > 100.0))
    lost = lost.any(-1) | state.lost | (e_lam[..., 0] > MOST)
    kept = seen & ~lost[..., None]
    p_of = np.where(kept, np.exp2(np.where(kept, x, 0.0)), 0.0)
    common = growth(np.minimum(e_lam, MOST))
    argument = of.error + argument_error(np.abs(x) + of.error + e_lam, first)
    once = math.log1p(first.exp) + (0.0 if stages.given else 2 * first.division * U)
    eps = np.where(kept, growth(np.where(kept, argument, 0.0), once), 0.0)
    total = (1 + common) * (1 + eps) - 1
    eps, total, flushed = _underflow(p_of, eps, total, kept, stages)
    own = growth(of.own + 3 * U64 * (np.abs(lam) + np.abs(x)) + 2.0**-52, 4 * U64)
    y_own = np.zeros(())
    if p.softcap is not None:
        y_own = abs(p.softmax_scale / p.softcap) * (found.own + 4 * U64 * np.abs(found.centre))
    return Weights(
        p_of, common, eps, total, flushed, np.where(kept, own, 0.0), of.error, y_own, lost
    )


def _underflow(p: Array, eps: Array, total: Array, kept: Array, stages: Stages
               ) -> tuple[Array, Array, Array]:  # fmt: skip
    first = stages.forward
    if first.flush:
        flushed = kept & (p * (1 - np.minimum(total, 1.0)) < NORMAL)
        return *(np.where(flushed, np.maximum(x, 1.0), x) for x in (eps, total)), flushed
    few = first.exp_ulp + (0.0 if stages.given else 2 * first.division)
    small = np.where(kept & (p < 4 * NORMAL), few * FLOAT32.tiny / np.maximum(p, ZERO), 0.0)
    return eps + small * (1 + eps), total + small * (1 + total), kept & (small > 0.25)


def upstream_of(b: Backward, w: Weights, state: State, stages: Stages) -> Upstream:
    """The difference of two sums; D is one number a row, so its error is shared by the row."""
    found, d = scores(b.dout, b.forward.v, stages.forward), _row_sums(b, stages)
    seen = b.forward.visible
    lost = (seen & ~np.isfinite(found.error)).any(-1) | ~np.isfinite(d.error[..., 0])
    kept = seen & ~(lost | w.lost)[..., None]
    # sums count as exact where 24 bits hold them, also below what float32 can hold
    under = b.dout.any(-1, keepdims=True) * (b.dout.shape[-1] * FLOAT32.tiny)
    e = np.where(kept, found.error + under, 0.0)
    row = d.error + under + (np.abs(b.dout) * state.out).sum(-1, keepdims=True)
    size = np.where(kept, np.abs(found.centre) + e, 0.0)
    if not stages.given:  # or D = sum P dP, whose P is covered by the error of out
        each = w.p * (1 + w.total)
        rounds = gamma(2 * seen.sum(-1, keepdims=True) + 2)
        row = np.maximum(row, _of_products(w, np.where(kept, found.centre - d.centre, 0.0), d))
        row = row + (each * e).sum(-1, keepdims=True)
        row = row + rounds * (each * size).sum(-1, keepdims=True)
    row = np.where(lost[..., None], 0.0, row)
    a = np.where(kept, found.centre - d.centre, 0.0)
    entry = np.where(kept, e + half_ulp(np.abs(a) + e + row), 0.0)
    large = (kept & ((np.abs(a) + e + row) * (1 + 2.0**-20) >= FLOAT32.largest)).any(-1)
    lost = lost | large
    own = np.where(kept, np.broadcast_to(found.own, a.shape) + d.own + U64 * np.abs(a), 0.0)
    apart = np.where(kept, size + np.abs(d.centre) + row, 0.0)
    return Upstream(a, row, entry, own, lost, apart)


def _of_products(w: Weights, a: Array, d: Scores) -> Array:
    """|sum P^ dP - D| = |sum P^ a + D (sum P^ - 1)|, P^ = P (1 + eta') (1 + eps')."""
    more = 1 + w.common
    total = w.p.sum(-1, keepdims=True)
    off = (w.p * w.eps).sum(-1, keepdims=True)
    moved = np.abs((w.p * a).sum(-1, keepdims=True))
    moved = more * (moved + (w.p * w.eps * np.abs(a)).sum(-1, keepdims=True))
    return moved + np.abs(d.centre) * (np.abs(total - 1) + w.common * total + more * off)


def _row_sums(b: Backward, stages: Stages) -> Scores:
    """D = sum dout out, no tensor core: (groups, rows, 1)."""
    plain = replace(stages.forward, mma=False, addition=1, scores=None)
    dout, out = (x.reshape(-1, 1, x.shape[-1]) for x in (b.dout, b.out))
    found, shape = scores(dout, out, plain), (*b.lse.shape, 1)
    centre, error = found.centre.reshape(shape), found.error.reshape(shape)
    return Scores(centre, error, np.broadcast_to(found.own, found.centre.shape).reshape(shape))


def slope_of(b: Backward, w: Weights, stages: Stages) -> Slope | None:
    """tanh is off by at most what it moved the logit by, e_t / (softcap log2 e)."""
    cap = b.forward.softcap
    if cap is None:
        return None
    g = np.broadcast_to(slope(b.forward), w.p.shape)
    th = np.sqrt(np.maximum(1 - g, 0.0)) + 2.0**-26
    e_th = w.t_error / (LOG2E * cap) + (0.0 if stages.scaled else 3 * U)
    e_th = np.minimum(e_th, 2.0)
    square = 2 * th * e_th + e_th * e_th
    error = square + half_ulp(np.minimum(th * th + square, 9.0))
    error = error + half_ulp(g + error)
    return Slope(g, error, g * (growth(np.minimum(3 * w.y_own, 1.0)) + 16 * U64))
