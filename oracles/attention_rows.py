"""Sums over the keys of attention rows, chunk by chunk, so that memory stays linear in rows x keys.

What is summed, and why, is derived in docs/error-budgets.md, attention, section identity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from os import cpu_count
from typing import Any

import numpy as np

from tightrope.formats import Array
from tightrope.oracles.attention_dots import Scores, scores
from tightrope.oracles.attention_numbers import LN2, TF32, growth, rounded
from tightrope.oracles.attention_problem import Problem
from tightrope.oracles.attention_replay import Accumulators, Products, products
from tightrope.oracles.attention_scores_budget import logits, smallest_factor
from tightrope.oracles.attention_softmax_budget import Schedule, Start, schedule, weights
from tightrope.oracles.attention_stages import Stages
from tightrope.oracles.attention_sums import Sums

CHUNK = 2**17  # logits that are worked on at once
LARGEST, MOST = 2.0**28, 64.0  # a logit, its error: beyond, weights mean nothing in float32
THREADS = min(16, cpu_count() or 1)


@dataclass(frozen=True)
class Keys:
    """Logits of some keys, in blocks of `width`: t, error (groups, rows, keys), own (groups, rows).

    lost: rows of which nothing is promised, since a score may overflow or a logit be off by 64; t
    is cut there. replay: t and error after replaying conversions, or None.
    """

    t: Array
    error: Array
    own: Array
    lost: Array
    replay: tuple[Array, Array] | None


@dataclass(frozen=True)
class Rows:
    """All keys of a problem, and how they are cut: `block` as stored, `width` with padding."""

    problem: Problem
    stages: Stages
    block: int
    width: int
    cuts: Sequence[slice]
    parts: Sequence[Keys]

    def v(self, part: int) -> Array:
        """(groups, keys, head_dim_v), padded as the logits are; 0 for a sink."""
        if part == len(self.cuts):
            return np.zeros((self.problem.v.shape[0], self.width, self.problem.v.shape[-1]))
        return blocked(self.problem.v[:, self.cuts[part]].swapaxes(1, 2), self, 0.0).swapaxes(1, 2)

    def ending_with(self, sink: Start) -> Rows:
        """The sink as one more block that holds one key with v = 0."""
        t = np.full((*sink.t.shape, self.width), -np.inf)
        e = np.zeros(t.shape)
        t[..., 0], e[..., 0] = sink.t, sink.error
        nothing = np.zeros(sink.t.shape)
        again = (t, e) if self.parts[0].replay is not None else None
        last = Keys(t, e, nothing, nothing > 0, again)
        return replace(self, parts=[*self.parts, last])


def each(work: Callable[[int], Any], count: int) -> Iterator[Any]:
    """work(0), work(1), .. in order, some at a time in threads."""
    if count < 2 or THREADS < 2:
        yield from map(work, range(count))
        return
    with ThreadPoolExecutor(THREADS) as pool:
        for first in range(0, count, THREADS):
            yield from pool.map(work, range(first, min(first + THREADS, count)))


def blocked(x: Array, rows: Rows | tuple[int, int], fill: float) -> Array:
    """The last axis cut into blocks and every block padded; the blocks stay one axis."""
    block, width = (rows.block, rows.width) if isinstance(rows, Rows) else rows
    short = -x.shape[-1] % block if x.shape[-1] else block
    if not short and block == width:
        return x
    x = np.pad(x, [*[(0, 0)] * (x.ndim - 1), (0, short)], constant_values=fill)
    tiles = x.reshape(*x.shape[:-1], -1, block)
    pad = [*[(0, 0)] * (tiles.ndim - 1), (0, width - block)]
    return np.pad(tiles, pad, constant_values=fill).reshape(*x.shape[:-1], -1)


def rows_of(problem: Problem, stages: Stages, given: Scores | None) -> Rows:
    """Scores and logits of all keys; at least one block, be it empty."""
    groups, seqlen_q, keys = problem.visible.shape
    least = -(-max(keys, 1) // 16) * 16
    block = least if stages.block is None else min(stages.block, least)
    width = -(-block // 16) * 16 if stages.mma and stages.block is not None else block
    if stages.block is None:
        block = width = 16
    size = max(1, CHUNK // max(groups * seqlen_q * block, 1)) * block
    cuts = [slice(i, min(i + size, keys)) for i in range(0, max(keys, 1), size)]

    def one(i: int) -> Keys:
        return _keys(problem, stages, given, cuts[i], (block, width))

    return Rows(problem, stages, block, width, cuts, list(each(one, len(cuts))))


def _keys(problem: Problem, stages: Stages, given: Scores | None, cut: slice,
          shape: tuple[int, int]) -> Keys:  # fmt: skip
    found = given or scores(problem.q, problem.k[:, cut], stages, smallest_factor(problem))
    at = cut if given is not None else slice(None)
    seen = problem.visible[..., cut]
    bias = None if problem.bias is None else problem.bias[..., cut]

    def part(x: Array | float) -> Array:
        return np.broadcast_to(x, found.centre.shape)[..., at]

    error = part(found.error)
    lost = (seen & ~np.isfinite(error)).any(-1)
    ready = [(part(found.centre), error)]
    if found.replay_centre is not None:
        assert found.replay_error is not None
        ready.append((part(found.replay_centre), part(found.replay_error)))
    pairs, own = [], np.zeros(seen.shape[:2])
    for centre, e in ready:
        e = np.where(np.isfinite(e), e, 0.0)
        out = logits(problem, centre, e, part(found.own), stages, seen, bias)
        size = np.where(seen, np.abs(out.t), 0.0)
        lost = lost | ~((out.error <= MOST) & (size <= LARGEST)).all(-1)
        own = np.maximum(own, out.own.max(-1, initial=0.0))
        # a rounding counts as decided only if float64's own error leaves it so
        e = out.error + np.where(seen, 2 * own[..., None] + 2.0**-50, 0.0)
        e = np.where(lost[..., None], 0.0, e)
        t = np.where(seen, np.clip(out.t, -LARGEST, LARGEST), -np.inf)
        pairs.append((blocked(t, shape, -np.inf), blocked(e, shape, 0.0)))
    return Keys(*pairs[0], own, lost, pairs[1] if len(pairs) > 1 else None)


@dataclass(frozen=True)
class Known:
    """A known schedule worked through: sums relative to 2**top, the accumulators and the plan."""

    top: Array
    sums: Sums
    state: Accumulators
    plan: Schedule


def known(rows: Rows, replay: bool, start: Start | None) -> Known:
    """Blocks in ascending order. replay: from the replayed scores instead of the exact ones."""
    stages, width = rows.stages, rows.width
    pairs = [k.replay if replay and k.replay else (k.t, k.error) for k in rows.parts]
    maxima = each(lambda i: _block_maxima(*pairs[i], width), len(pairs))
    lows, middles, highs = (
        np.concatenate(x, -1) for x in zip(*maxima, strict=True)
    )  # fmt: skip
    plan = schedule((lows, middles, highs), stages, start)
    top = middles.max(-1)
    if start is not None:
        top = np.maximum(top, start.t)
    top = np.where(np.isfinite(top), top, 0.0)
    ends = np.cumsum([0, *(t.shape[-1] // width for t, _ in pairs)])

    def one(i: int) -> tuple[Sums, Products]:
        t, e = pairs[i]
        found = weights(t, e, top, plan.part(slice(ends[i], ends[i + 1])), width, stages)
        v = rows.v(i)
        used = rounded(v, TF32, True) if stages.truncated else v
        return Sums.of(found, v), products(found, t > -np.inf, used, width, stages)

    state = Accumulators.empty((*top.shape, rows.problem.v.shape[-1]), start is not None, stages)
    sums: Sums | None = None
    for i, (more, work) in enumerate(each(one, len(pairs))):
        sums = more if sums is None else sums.plus(more)
        state.run(plan, slice(int(ends[i]), int(ends[i + 1])), work)
    assert sums is not None
    return Known(top, sums, state, plan)


def _block_maxima(t: Array, e: Array, width: int) -> tuple[Array, Array, Array]:
    def best(x: Array) -> Array:
        return x.reshape(*x.shape[:2], -1, width).max(-1)

    return best(t - e), best(t), best(t + e)


def own_error(rows: Rows, top: Array, keys: int) -> Array:
    """Relative error of a float64 weight and of the sums: (groups, rows)."""
    own = np.max([k.own for k in rows.parts], axis=0)
    return growth(own + 2.0**-53 * (1100 + np.abs(top)), 4 * 2.0**-53) + (keys + 6) * 2.0**-53 * LN2
