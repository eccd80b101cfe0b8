"""What states lose that are merged one by one; docs/error-budgets.md, ring_attention, one merge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tightrope.formats import Array
from tightrope.oracles.attention_numbers import half_ulp
from tightrope.oracles.merge_attention_budget import overflow
from tightrope.oracles.ring_attention_merges import Merging, of_lse, weights_off
from tightrope.oracles.ring_attention_states import (
    BLOCKS,
    MERGES,
    STORED,
    WEIGHTS,
    State,
    added,
    merged,
)


@dataclass(frozen=True)
class Held:
    """A merged state: `own`, what a kernel's is off from the exact merge of the given ones, which
    is within `off` and `off_lse` of own.out and own.lse.
    """

    own: State
    off: Array
    off_lse: Array

    @classmethod
    def given(cls, state: State) -> Held:
        own = replace(state, e_out={}, e_lse={})
        return cls(own, state.total(), np.where(state.live, state.total_lse(), 0.0))

    def size(self) -> Array:
        """What the exact merge of the given states may be at most."""
        return np.abs(self.own.out) + self.off

    def kept(self, how: Merging) -> Held:
        """Its out rounded to the format that partial states are kept in."""
        loss = how.kept(self.size() + self.own.total())
        return replace(self, own=replace(self.own, e_out=added(self.own.e_out, STORED, loss)))

    def stored(self) -> Held:
        """As the next merge reads its lse: rounded to float32."""
        size = np.where(self.own.live, np.abs(self.own.lse), 0.0)
        loss = half_ulp(size + self.off_lse + self.own.total_lse())
        return replace(self, own=replace(self.own, e_lse=added(self.own.e_lse, MERGES, loss)))


def chained(states: Sequence[State], how: Merging) -> State:
    """The states merged one after the other, in their order.

    A merged out is rounded when the next state comes, also where that one saw no key.
    """
    given = [state.kept(how.kept) for state in states]
    found, *rest = map(Held.given, given)
    again = fresh = np.zeros(found.own.lse.shape, bool)
    for other in rest:
        both = found.own.live & other.own.live
        found = _chosen(fresh, found.kept(how), found)
        one = _chosen(again, found.stored(), found)
        alone = _chosen(found.own.live, found, other)
        found = _chosen(both, _merged(one, other, how), alone)
        again, fresh = again | both, both
    whole = merged(given)
    e_out, e_lse = whole.e_out, whole.e_lse
    for name, term in found.own.e_out.items():
        e_out = added(e_out, name, term)
    for name, term in found.own.e_lse.items():
        e_lse = added(e_lse, name, term)
    return State(whole.out, whole.lse, e_out, e_lse)


def _chosen(where: Array, one: Held, other: Held) -> Held:
    """Of each row the one state, or the other."""
    wide = where[..., None]

    def terms(where: Array, a: dict[str, Array], b: dict[str, Array]) -> dict[str, Array]:
        return {n: np.where(where, a.get(n, 0.0), b.get(n, 0.0)) for n in {**a, **b}}

    a, b = one.own, other.own
    own = State(
        np.where(wide, a.out, b.out), np.where(where, a.lse, b.lse),
        terms(wide, a.e_out, b.e_out), terms(where, a.e_lse, b.e_lse),
    )  # fmt: skip
    off_lse = np.where(where, one.off_lse, other.off_lse)
    return Held(own, np.where(wide, one.off, other.off), off_lse)


def _merged(a: Held, b: Held, how: Merging) -> Held:
    """Two states as one, where both are live; elsewhere whatever."""
    both = a.own.live & b.own.live
    pair = merged([_as_given(a, both), _as_given(b, both)])
    x, y = (np.where(both, s.own.lse, 0.0) for s in (a, b))
    given = a.off_lse + b.off_lse
    gap = np.abs(x - y)
    moved = a.own.total_lse() + b.own.total_lse()
    own = how.angle(gap + given + moved)
    off = weights_off(gap, given, own + moved)[..., None]
    least = np.logaddexp(x, y) - given
    w, w_b = (np.minimum(1.0, np.exp(z - least)[..., None] + off) for z in (x, y))
    e_out = {
        n: w * a.own.e_out.get(n, 0.0) + w_b * b.own.e_out.get(n, 0.0)
        for n in {**a.own.e_out, **b.own.e_out}
    }
    e_out = added(e_out, WEIGHTS, off * (np.abs(a.own.out - b.own.out) + a.off + b.off))
    ends = [s.size() + s.own.total() for s in (a, b)]
    rounds = how.summed() * (w * ends[0] + w_b * ends[1]) + 4 * how.rounding.least
    rounds = np.where(overflow(2 * np.maximum(*ends)), np.inf, rounds)
    e_lse = {MERGES: _carried(a, b, x, y, least) + of_lse(gap, given + moved, own, how)}
    found = State(pair.out, pair.lse, added(e_out, MERGES, rounds), e_lse)
    return Held(found, pair.total(), pair.total_lse())


def _as_given(held: Held, both: Array) -> State:
    """As one of two states whose exact merge is asked for."""
    own = held.own
    return State(own.out, np.where(both, own.lse, 0.0), {BLOCKS: held.off}, {BLOCKS: held.off_lse})


def _carried(a: Held, b: Held, x: Array, y: Array, least: Array) -> Array:
    """What a merged lse is off by errors of its two: ln(1 + w (e^A - 1) + w' (e^A' - 1))."""
    off = [s.own.total_lse() for s in (a, b)]
    shares = [np.minimum(1.0, np.exp(z - least)) for z in (x, y)]
    grown = sum(w * np.expm1(np.minimum(e, 1.0)) for w, e in zip(shares, off, strict=True))
    most = np.maximum(*off)
    return np.where(most < 1, np.minimum(np.log1p(grown), most), most)
