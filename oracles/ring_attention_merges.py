"""What partial states lose when they are merged two by two; docs/error-budgets.md, ring_attention.

All arrays are float64. A state's out is (groups, rows, head_dim_v), its lse (groups, rows), -inf
where it saw no key; bounds are of what a kernel holds in its place, as named terms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tightrope.formats import FORMATS, Array, Format
from tightrope.oracles.attention_numbers import LN2, OUTWARD, U, gamma, half_ulp
from tightrope.oracles.merge_attention_budget import FROM_LOG2E, Rounding, logarithm, overflow

Terms = dict[str, Array]
GONE = 125.9 * LN2  # nats below the larger state from which a weight may be lost whole
BLOCKS, WEIGHTS, MERGES, STORED = "partial states", "their lse", "merges", "states stored"


@dataclass(frozen=True)
class Merging:
    """rounding: of one merge; partial: the format states are stored in, None for float32."""

    rounding: Rounding
    partial: Format | None

    @classmethod
    def of(cls, stages: Mapping[str, Any], dtype: str) -> Merging:
        """Raises ValueError, naming the stage, for a value that means nothing here."""
        name = dtype if stages["partial"] == "input" else stages["partial"]
        if name not in ("float16", "bfloat16", "float32"):
            raise ValueError(f"ring_attention: partial={stages['partial']!r} is no format")
        names = ("exp_ulp", "exp_flush", "division_ulp", "log_ulp")
        return cls(
            Rounding.of({n: stages[n] for n in names}),
            None if name == "float32" else FORMATS[name],
        )

    def angle(self, gap: Array) -> Array:
        """What the logarithm of a weight exp(-gap) is off, gap known to the kernel: two roundings,
        log2(e) as a float32 and the exponential."""
        rounding = half_ulp(gap) + LN2 * half_ulp((gap + half_ulp(gap)) / LN2 * (1 + FROM_LOG2E))
        return rounding + FROM_LOG2E * gap * (1 + 4 * U) - np.log1p(-self.rounding.exp)

    def summed(self) -> float:
        """Relative to sums of |weight x out|: product, sum, denominator, quotient."""
        quotient = 2 * self.rounding.division * U
        return float((1 + gamma(2)) * (1 + quotient) / (1 - U) - 1) * OUTWARD

    def kept(self, size: Array) -> Array:
        """What storing an out of this size rounds away."""
        return np.zeros(size.shape) if self.partial is None else half_ulp(size, self.partial)


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

    def kept(self, how: Merging) -> State:
        """Its out rounded to the format that partial states are kept in."""
        size = np.abs(self.out) + self.total()
        before = self.e_out.get(STORED, np.zeros(()))
        e_out: Terms = {**self.e_out, STORED: before + how.kept(size)}
        return replace(self, e_out=e_out)

    def stored(self) -> State:
        """A merged state as the next merge reads its lse: rounded to float32."""
        size = np.where(self.live, np.abs(self.lse), 0.0) + self.total_lse()
        e_lse = {**self.e_lse, MERGES: self.e_lse.get(MERGES, 0.0) + half_ulp(size)}
        return replace(self, e_lse=e_lse)


def chained(states: Sequence[State], how: Merging) -> State:
    """The states merged one after the other, in their order.

    A merged out is rounded when the next state comes, also where that one saw no key.
    """
    found, *rest = (state.kept(how) for state in states)
    merged = fresh = np.zeros(found.lse.shape, bool)
    for other in rest:
        both = found.live & other.live
        found = _chosen(fresh, found.kept(how), found)
        one = _chosen(merged, found.stored(), found)
        alone = _chosen(found.live, found, other)
        found = _chosen(both, _merged(one, other, how), alone)
        merged, fresh = merged | both, both
    return found


def _chosen(where: Array, one: State, other: State) -> State:
    """Of each row the one state, or the other."""

    def terms(where: Array, a: Terms, b: Terms) -> Terms:
        return {n: np.where(where, a.get(n, 0.0), b.get(n, 0.0)) for n in {**a, **b}}

    wide = where[..., None]
    return State(
        np.where(wide, one.out, other.out), np.where(where, one.lse, other.lse),
        terms(wide, one.e_out, other.e_out), terms(where, one.e_lse, other.e_lse),
    )  # fmt: skip


def _merged(a: State, b: State, how: Merging) -> State:
    """Two states as one, where both are live; elsewhere whatever."""
    both = a.live & b.live
    x, y = np.where(both, a.lse, 0.0), np.where(both, b.lse, 0.0)
    gap, lse = np.abs(x - y), np.logaddexp(x, y)
    moved = a.total_lse() + b.total_lse()
    own = how.angle(gap + moved)
    off = _weights_off(gap, own + moved)[..., None]
    shares = [np.exp(z - lse)[..., None] for z in (x, y)]
    w, w_b = (np.minimum(1.0, share + off) for share in shares)
    out = shares[0] * a.out + shares[1] * b.out
    names = {**a.e_out, **b.e_out}
    e_out: Terms = {n: w * a.e_out.get(n, 0.0) + w_b * b.e_out.get(n, 0.0) for n in names}
    e_out[WEIGHTS] = e_out.get(WEIGHTS, 0.0) + off * np.abs(a.out - b.out)
    ends = [np.abs(s.out) + s.total() for s in (a, b)]
    rounds = how.summed() * (w * ends[0] + w_b * ends[1]) + 4 * how.rounding.least
    rounds = np.where(overflow(2 * np.maximum(*ends)), np.inf, rounds)
    e_out[MERGES] = e_out.get(MERGES, 0.0) + rounds
    e_lse = {
        BLOCKS: np.maximum(a.e_lse.get(BLOCKS, 0.0), b.e_lse.get(BLOCKS, 0.0)),
        MERGES: a.e_lse.get(MERGES, 0.0) + b.e_lse.get(MERGES, 0.0)
        + _of_lse(gap, own, how),
    }  # fmt: skip
    return State(out, lse, e_out, e_lse)


def _smaller(gap: Array) -> Array:
    """The smaller of two shares whose logarithms are `gap` apart."""
    return np.asarray(1 / (1 + np.exp(np.minimum(gap, 700.0))))


def _weights_off(gap: Array, angle: Array) -> Array:
    """What a share is off whose logarithmic odds are off by `angle`; the share whole if lost."""
    share = _smaller(gap)
    near = np.minimum(angle, 1.0)
    off = np.where(angle < 1, share * (1 - share) * np.expm1(near), 1.0)
    return np.where(gap + angle > GONE, np.maximum(off, share), off)


def _of_lse(gap: Array, angle: Array, how: Merging) -> Array:
    """What ln(1 + exp(-gap)) is off: the weight, the sum's rounding, the logarithm."""
    smaller = _smaller(gap)
    moved = smaller * np.expm1(np.maximum(np.minimum(angle, 700.0), LN2 * (gap > GONE - angle)))
    moved = moved - np.log1p(-U)
    return moved + logarithm(-np.log1p(-smaller) + moved, how.rounding)


def in_any_order(states: Sequence[State], how: Merging) -> State:
    """The states merged in any chain or tree, by sums, by differences, or by a lse taken first,
    whose error moves all weights alike: hence |out|, where it is more than the spread.
    """
    live = np.stack([s.live for s in states])
    lses = np.stack([np.where(s.live, s.lse, 0.0) for s in states])
    top = np.where(live, lses, -np.inf).max(0)
    top = np.where(live.any(0), top, 0.0)
    gap = np.where(live, top - lses, 0.0)
    weights = np.where(live, np.exp(-gap), 0.0)
    total = np.where(live.any(0), weights.sum(0), 1.0)
    merges = np.maximum(live.sum(0) - 1.0, 0.0)
    given = np.where(live, np.stack([s.total_lse() for s in states]), 0.0).max(0)
    apart = gap.max(0) + np.log(total)
    own = how.angle(apart + 2 * given) + 2 * (1 + 2 * how.rounding.division) * U
    stored = half_ulp(np.abs(top) + np.log(total) + given + apart)
    node = _of_lse(np.zeros(own.shape), own, how) + 2 * half_ulp(apart + 2 * given) + stored
    angle = 2 * given + merges * (2 * merges * node + own)
    share = (weights / total)[..., None]
    outs = np.stack([np.where(s.live[..., None], s.out, 0.0) for s in states])
    bounds = np.stack([np.where(s.live[..., None], s.total(), 0.0) for s in states])
    off = share * np.expm1(np.minimum(angle, 700.0))[..., None]
    off = np.where((gap + angle > GONE)[..., None], np.maximum(off, share), off)
    out = (share * outs).sum(0)
    size, w = (np.abs(outs) + bounds).max(0), np.minimum(share + off, 1.0)
    many = (merges > 0)[..., None]
    rounds = merges[..., None] * (2 * how.summed() * 2 * size + 8 * how.rounding.least)
    e_out: Terms = {
        BLOCKS: np.where(many, (w * bounds).sum(0), bounds.sum(0)),
        WEIGHTS: np.where(many, (off * np.maximum(np.abs(outs - out), np.abs(outs))).sum(0), 0.0),
        MERGES: np.where(overflow(2 * size) & many, np.inf, rounds),
        STORED: (1 + 2 * merges[..., None]) * how.kept(size * (1 + 2.0**-6)),
    }
    lse = np.where(live.any(0), top + np.log(total), -np.inf)
    return State(out, lse, e_out, {BLOCKS: given, MERGES: merges * node})
