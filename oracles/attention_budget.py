"""The error budget of attention, out and lse: worst case (T0) and replayed roundings (T1).

`forward` serves every attention contract: it takes one `Problem` at a time. Derived in
docs/error-budgets.md, section attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tightrope.budget import Budget, Replay
from tightrope.formats import Array
from tightrope.oracles.attention_any_schedule import unknown
from tightrope.oracles.attention_dots import Scores
from tightrope.oracles.attention_lse_budget import lse_terms
from tightrope.oracles.attention_numbers import (
    FLOAT32,
    LOG2E_32,
    OUTWARD,
    U64,
    U,
    growth,
    half_ulp,
    rounded,
)
from tightrope.oracles.attention_problem import Problem
from tightrope.oracles.attention_rows import Known, Rows, known, own_error, rows_of
from tightrope.oracles.attention_scores_budget import sink_logit
from tightrope.oracles.attention_softmax_budget import Start
from tightrope.oracles.attention_stages import STAGES, Stages
from tightrope.oracles.attention_terms import Parts, out_terms

__all__ = ["STAGES", "Forward", "Scores", "forward"]


@dataclass(frozen=True)
class Forward:
    """Budgets of out (groups, seqlen_q, head_dim_v) and lse (groups, seqlen_q)."""

    out: Budget
    lse: Budget


def forward(problem: Problem, arithmetic: Mapping[str, Any], scores: Scores | None = None
            ) -> Forward:  # fmt: skip
    """Budgets of one problem. Raises ValueError, naming the stage, for an unknown value.

    scores: instead of those of q and k (which are not looked at then), for operations that form
    q and k themselves; error counts everything up to S as the kernel holds it.
    """
    stages = Stages.of(problem, arithmetic)
    groups, seqlen_q, keys = problem.visible.shape
    if not groups * seqlen_q:
        return _nothing(problem, stages)
    if not keys:
        problem, scores = _with_a_hidden_key(problem), None
    if stages.sink == "any" and stages.block is not None:
        both = (_forward(problem, replace(stages, sink=s), scores) for s in ("start", "end"))
        return _either(*both)
    return _forward(problem, stages, scores)


def _nothing(problem: Problem, stages: Stages) -> Forward:
    rows = problem.visible.shape[:2]
    out, lse = np.zeros((*rows, problem.v.shape[-1])), np.zeros(rows)
    return Forward(Budget(out, {}, stages.out.name), Budget(lse, {}, "float32"))


def _with_a_hidden_key(problem: Problem) -> Problem:
    """The same rows, all empty, with a key to look past."""

    def one(x: Array) -> Array:
        return np.zeros((x.shape[0], 1, x.shape[2]))

    hidden = np.zeros((*problem.visible.shape[:2], 1), bool)
    k, v = one(problem.k), one(problem.v)
    return replace(problem, k=k, v=v, visible=hidden, bias=None)


def _forward(problem: Problem, stages: Stages, scores: Scores | None) -> Forward:
    start = None
    if problem.sink is not None:
        t, e = sink_logit(problem.sink, stages)
        shift = rounded(problem.sink[:, None] * LOG2E_32)
        shape = problem.visible.shape[:2]
        t, e, shift = (np.broadcast_to(x, shape) for x in (t, e, shift))
        slack = np.zeros(shape) if stages.scaled else 2 * U * np.abs(t)
        start = Start(t, e, shift, slack)
    rows = rows_of(problem, stages, scores)
    if stages.block is None:
        parts = unknown(rows, start)
        return _budgets(rows, parts, None)
    first = start if stages.sink == "start" else None
    rows = rows if start is None or first is not None else rows.ending_with(start)
    done = known(rows, False, first)
    parts = _parts(done, first)
    replay = None
    if stages.p is not None or rows.parts[0].replay is not None:
        again = done if rows.parts[0].replay is None else known(rows, True, first)
        replay = _replay(rows, again, _parts(again, first))
    return _budgets(rows, parts, replay)


def _parts(done: Known, start: Start | None) -> Parts:
    """What the terms are made of, relative to the exact denominator."""
    total, plan = done.sums.total, done.plan
    weight, eps = np.zeros(total.shape), np.zeros(total.shape)
    if start is not None and plan.start_eps is not None:
        weight = np.exp2(start.t - done.top)
        total = total + weight
        eps = plan.start_eps
    shift = np.where(np.isfinite(plan.shift[..., -1]), plan.shift[..., -1], done.top)
    off = plan.error[..., -1]
    per = np.exp2(shift - done.top + off) / np.where(total > 0, total, 1.0)
    return Parts(
        top=done.top, total=total, sums=done.sums, sink=weight, sink_eps=eps, shift_error=off,
        accumulation=done.state.error * per[..., None], denominator=done.state.l_error * per,
        quotient=None,
    )  # fmt: skip


def _budgets(rows: Rows, parts: Parts, replay: Replay | None) -> Forward:
    problem, stages = rows.problem, rows.stages
    keys = problem.visible.sum(-1)
    live, seen = parts.total > 0, keys > 0
    total = np.where(live, parts.total, 1.0)
    out = parts.sums.value / total[..., None]
    terms = out_terms(parts, out, total, int(keys.max(initial=0)), stages)
    hopeless = np.max([k.lost for k in rows.parts], axis=0)
    overflow = _overflow(problem, keys) | hopeless[..., None]
    own = own_error(rows, parts.top, int(keys.max(initial=0)))
    mine = np.minimum(own / np.maximum(1 - own, 0.5), 1.0)[..., None]
    mine = mine * (parts.sums.size / total[..., None] + np.abs(out)) + 4 * U64 * np.abs(out)
    terms = {name: _certain(x, seen[..., None], overflow) for name, x in terms.items()}
    bounded = np.isfinite(sum(terms.values(), np.zeros(out.shape)))
    mine = np.where(seen[..., None] & bounded, mine, 0.0)
    if replay is not None:
        radius = np.where(
            seen[..., None], np.where(overflow, np.inf, replay.radius + 2 * mine), 0.0
        )
        replay = Replay(np.where(seen[..., None], replay.centre, 0.0), radius)
    lse, lse_bounds, lse_own = lse_terms(parts, total, own, stages)
    lse_bounds = {n: _certain(x, live, hopeless) for n, x in lse_bounds.items()}
    return Forward(
        Budget(out, terms, stages.out.name, mine, replay),
        Budget(np.where(live, lse, -np.inf), lse_bounds, "float32", np.where(live, lse_own, 0.0)),
    )


def _certain(term: Array, live: Array, hopeless: Array) -> Array:
    """0 where there is nothing to be off, infinite where nothing is promised."""
    term = np.where(np.isnan(term), np.inf, term * OUTWARD)
    return np.where(live, np.where(hopeless, np.inf, term), 0.0)


def _overflow(problem: Problem, keys: Array) -> Array:
    """Where acc may leave float32: (groups, rows, head_dim_v) or smaller."""
    size = np.abs(problem.v)
    near = keys[..., None] * 1.01 * size.max(-2, initial=0.0)[:, None, :] >= FLOAT32.largest
    for group, row in np.argwhere(near.any(-1)):  # keys that the row does not see do not count
        largest = size[group][problem.visible[group, row]].max(0, initial=0.0)
        near[group, row] = keys[group, row] * 1.01 * largest >= FLOAT32.largest
    return near


def _replay(rows: Rows, done: Known, parts: Parts) -> Replay:
    """T1: acc / l as the declared rounding of P gives them, and what stays undecided."""
    shift = done.plan.shift[..., -1]
    shift = np.where(np.isfinite(shift), shift, done.top)
    total = np.where(parts.total > 0, parts.total, 1.0)
    per = np.exp2(done.top - shift) * total
    centre = done.state.centre / per[..., None]
    eps = parts.eps_sum(total)
    off = (1 + eps) * (1 + growth(parts.shift_error)) - 1 + done.state.l_error / per
    moved = (done.state.radius + done.state.error) / per[..., None]
    moved = moved + np.abs(centre) * off[..., None]
    radius = np.where(off[..., None] < 1, moved / np.maximum(1 - off, 1e-300)[..., None], np.inf)
    last = 2 * rows.stages.division * half_ulp(np.abs(centre) + radius)
    return Replay(centre, (radius + last) * OUTWARD)


def _either(a: Forward, b: Forward) -> Forward:
    """Both of two schedules must be allowed: the larger of each term, and nothing replayed."""

    def larger(x: Budget, y: Budget) -> Budget:
        names = {**x.terms, **y.terms}  # not both may have a flush
        terms = {n: np.maximum(x.terms.get(n, 0.0), y.terms.get(n, 0.0)) for n in names}
        return Budget(x.expected, terms, x.dtype, np.maximum(x.oracle, y.oracle))

    return Forward(larger(a.out, b.out), larger(a.lse, b.lse))
