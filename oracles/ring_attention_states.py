"""Partial states of a ring, and what their exact merge is off if they are; float64 throughout.

A state's out is (groups, rows, head_dim_v), its lse (groups, rows), -inf where it saw no key.
Derived in docs/error-budgets.md, section ring_attention, given states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tightrope.formats import Array

Terms = dict[str, Array]
BLOCKS, WEIGHTS, MERGES, STORED = "partial states", "their lse", "merges", "states stored"
FAR = 700.0  # exp of more leaves float64


def added(terms: Terms, name: str, more: Array) -> Terms:
    """Terms with one of them grown."""
    return {**terms, name: terms.get(name, np.zeros(())) + more}


@dataclass(frozen=True)
class State:
    """out and lse, exact or as a model has them, and bounds on what a kernel's are off."""

    out: Array
    lse: Array
    e_out: Terms
    e_lse: Terms

    @property
    def live(self) -> Array:
        return self.lse > -np.inf

    def total(self) -> Array:
        return np.asarray(sum(self.e_out.values(), np.zeros(self.out.shape)))

    def total_lse(self) -> Array:
        return np.asarray(sum(self.e_lse.values(), np.zeros(self.lse.shape)))

    def kept(self, rounding: Callable[[Array], Array]) -> State:
        """Its out rounded; rounding: what storing an out of a size loses."""
        size = np.abs(self.out) + self.total()
        return replace(self, e_out=added(self.e_out, STORED, rounding(size)))


@dataclass(frozen=True)
class Given:
    """States side by side, axis 0. Their outs and bounds are 0 where a state is empty.

    gap: nats below the largest lse; total: sum of exp(-gap), 1 if none is live; share:
    exp(lse_i - lse); moved: what their lses are off.
    """

    live: Array
    gap: Array
    total: Array
    share: Array
    moved: Array
    outs: Array
    bounds: Array
    out: Array
    lse: Array

    @classmethod
    def of(cls, states: Sequence[State]) -> Given:
        live = np.stack([s.live for s in states])
        lses = np.stack([s.lse for s in states])
        top = np.where(live.any(0), lses.max(0), 0.0)
        gap = np.where(live, top - np.where(live, lses, 0.0), 0.0)
        weight = np.where(live, np.exp(-gap), 0.0)
        total = np.where(live.any(0), weight.sum(0), 1.0)
        moved = np.where(live, np.stack([s.total_lse() for s in states]), 0.0)
        shown, share = live[..., None], weight / total
        outs = np.where(shown, np.stack([s.out for s in states]), 0.0)
        bounds = np.where(shown, np.stack([s.total() for s in states]), 0.0)
        lse = np.where(live.any(0), top + np.log(total), -np.inf)
        out = (share[..., None] * outs).sum(0)
        return cls(live, gap, total, share, moved, outs, bounds, out, lse)

    @property
    def spread(self) -> Array:
        return np.abs(self.outs - self.out)

    def most(self) -> Array:
        """What each share may be: its own lse all up, the others' all down."""
        low = self.share * np.exp(-self.moved)
        high = self.share * np.exp(np.minimum(self.moved, FAR))
        others = np.maximum(low.sum(0) - low, 0.0)
        share = np.minimum(high / np.where(high > 0, high + others, 1.0), 1.0)
        return np.where(self.moved < FAR, share, self.live)

    def turned(self) -> Array:
        """What lses that are off move the merged out by; sum w_i (o_i - out) is 0."""
        any_shares = (self.most()[..., None] * self.spread).sum(0)
        low = (self.share * np.exp(-self.moved)).sum(0)
        off = self.share * np.expm1(np.minimum(self.moved, FAR))
        with np.errstate(divide="ignore", invalid="ignore"):
            by_sum = (off[..., None] * self.spread).sum(0) / low[..., None]
        near = (self.moved.max(0) < FAR)[..., None]
        return np.where(near, np.fmin(by_sum, any_shares), any_shares)

    def turned_lse(self) -> Array:
        """What they move the merged lse by: ln of sum w_i exp(moved_i), all of them upward."""
        off = (self.share * np.expm1(np.minimum(self.moved, FAR))).sum(0)
        most = self.moved.max(0)
        return np.where(most < FAR, np.minimum(np.log1p(off), most), most)


def merged(states: Sequence[State]) -> State:
    """The exact merge, and what it moves by if the states are off by all that they may be."""
    given = Given.of(states)
    e_out: Terms = {}
    for state, most in zip(states, given.most()[..., None], strict=True):
        for name, term in state.e_out.items():
            e_out = added(e_out, name, np.where(state.live[..., None], most * term, 0.0))
    e_out = added(e_out, WEIGHTS, given.turned())
    return State(given.out, given.lse, e_out, {BLOCKS: given.turned_lse()})
