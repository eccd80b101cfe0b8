"""Gradients of parts of a ring, and what they lose when they are added up.

Derived in docs/error-budgets.md, section ring_attention_backward.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from tightrope.budget import Budget, Replay
from tightrope.formats import Array, Format
from tightrope.oracles.attention_numbers import FLOAT32, U64, half_ulp

STORED, SUMS = "gradients of pairs stored", "sums"


@dataclass(frozen=True)
class Part:
    """A gradient of some rows or keys from some of the others; all arrays of one shape.

    terms: bounds on what a kernel's is off from the exact one, which is within `own` of expected;
    replay: where its declared roundings put it, or None. Where nothing is seen all is 0.
    """

    expected: Array
    terms: Mapping[str, Array]
    own: Array
    replay: Replay | None

    def size(self) -> Array:
        """What a kernel's may be at most."""
        return np.asarray(sum(self.terms.values(), np.abs(self.expected) + self.own))


@dataclass(frozen=True)
class Adding:
    """partial: the format of parts and of their sums, None for float32."""

    partial: Format | None

    def loss(self, size: Array) -> Array:
        """What one sum of at most this size rounds away; infinite where it may overflow."""
        fmt = self.partial or FLOAT32
        loss = half_ulp(size)
        if self.partial is not None:
            loss = loss + half_ulp(size + loss, self.partial)
        return np.where(size + loss < fmt.largest, loss, np.inf)

    def most(self, size: Array, count: Array) -> Array:
        """What sums of `count` numbers may be on their way, sizes adding up to `size`."""
        fmt = self.partial or FLOAT32
        return size * (1 + 2 * fmt.unit) ** (2 * count) + 2 * count * fmt.tiny

    def part(self, budget: Budget) -> Part:
        """A call's gradient as it is stored, in float32 or the format of partial results."""
        size = np.abs(budget.expected) + budget.bound + budget.oracle
        some = size > 0
        terms = {n: np.broadcast_to(np.asarray(t), size.shape) for n, t in budget.terms.items()}
        terms[STORED] = np.where(some, self._stored(size), 0.0)
        replay = budget.replay
        if replay is not None:
            size = np.abs(replay.centre) + replay.radius
            radius = replay.radius + np.where(some, self._stored(size), 0.0)
            replay = Replay(replay.centre, radius)
        own = np.broadcast_to(np.asarray(budget.oracle), size.shape)
        return Part(budget.expected, terms, own, replay)

    def _stored(self, size: Array) -> Array:
        fmt = self.partial or FLOAT32
        return np.where(size < fmt.largest, half_ulp(size, fmt), np.inf)


def together(a: Part, b: Part) -> Part:
    """Two parts as one, nothing rounded but by float64."""
    none = np.zeros(a.expected.shape)
    terms = {n: a.terms.get(n, none) + b.terms.get(n, none) for n in {**a.terms, **b.terms}}
    expected = a.expected + b.expected
    replay = None
    if a.replay is not None and b.replay is not None:
        centre = a.replay.centre + b.replay.centre
        replay = Replay(centre, a.replay.radius + b.replay.radius + 2 * U64 * np.abs(centre))
    return Part(expected, terms, a.own + b.own + U64 * np.abs(expected), replay)


def plus(a: Part, b: Part, how: Adding) -> Part:
    """Two parts added; with 0 it is exact."""
    both, found = (a.size() > 0) & (b.size() > 0), together(a, b)
    loss = np.where(both, how.loss(found.size()), 0.0)
    terms = {**found.terms, SUMS: found.terms.get(SUMS, 0.0) + loss}
    replay = found.replay
    if replay is not None:
        again = how.loss(np.abs(replay.centre) + replay.radius)
        replay = Replay(replay.centre, replay.radius + np.where(both, again, 0.0))
    return Part(found.expected, terms, found.own, replay)


def chained(parts: Sequence[Part], how: Adding) -> Part:
    """Parts added one after the other, in their order."""
    return reduce(lambda a, b: plus(a, b, how), parts)


def in_any_order(parts: Sequence[Part], how: Adding) -> Part:
    """Parts added in any chain or tree: every sum is at most the sum of all sizes, grown."""
    whole, sizes = reduce(together, parts), np.stack([part.size() for part in parts])
    count = (sizes > 0).sum(0)
    loss = how.loss(how.most(sizes.sum(0), count))
    sums = np.where(count > 1, (count - 1) * loss, 0.0)
    return Part(whole.expected, {**whole.terms, SUMS: sums}, whole.own, None)


def beside(parts: Iterable[tuple[tuple[int, int], Part]]) -> Part:
    """Parts of consecutive rows, given with their places, as one of them all (axis 1)."""
    each = [part for _, part in sorted(parts, key=lambda x: x[0])]
    names = dict.fromkeys(name for part in each for name in part.terms)

    def joined(arrays: Iterable[Array]) -> Array:
        return np.concatenate(list(arrays), axis=1)

    terms = {n: joined(p.terms.get(n, np.zeros(p.expected.shape)) for p in each) for n in names}
    replays = [p.replay for p in each if p.replay is not None]
    replay = None
    if len(replays) == len(each):
        replay = Replay(
            joined(r.centre for r in replays), joined(np.asarray(r.radius) for r in replays)
        )
    return Part(joined(p.expected for p in each), terms, joined(p.own for p in each), replay)
