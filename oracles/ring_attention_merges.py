"""The arithmetic of one merge, and merges in any order; docs/error-budgets.md, ring_attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tightrope.formats import FORMATS, Array, Format
from tightrope.oracles.attention_numbers import LN2, OUTWARD, U, gamma, half_ulp
from tightrope.oracles.merge_attention_budget import FROM_LOG2E, Rounding, logarithm, overflow
from tightrope.oracles.ring_attention_states import (
    MERGES,
    STORED,
    WEIGHTS,
    Given,
    State,
    added,
    merged,
)

GONE = 125.9 * LN2  # nats below the larger state from which a weight may be lost whole


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


def _smaller(gap: Array) -> Array:
    """The smaller of two shares whose logarithms are `gap` apart."""
    return np.asarray(1 / (1 + np.exp(np.minimum(gap, 700.0))))


def weights_off(gap: Array, given: Array, angle: Array) -> Array:
    """What a share is off whose logarithmic odds, +-(gap up to `given` less or more), are off by
    `angle`; the share whole if lost."""
    share, grown = _smaller(gap), np.exp(np.minimum(given, 700.0))
    near = np.minimum(angle, 1.0)
    off = np.where(angle < 1, share * (1 - share) * grown * np.expm1(near), 1.0)
    lost = gap + given + angle > GONE
    return np.where(lost, np.maximum(off, np.minimum(share * grown, 1.0)), off)


def of_lse(gap: Array, moved: Array, angle: Array, how: Merging) -> Array:
    """What ln(1 + exp(-gap)) is off, gap up to `moved` less or more: the weight, the sum's
    rounding, the logarithm."""
    smaller = _smaller(np.maximum(gap - moved, 0.0))
    flushed = LN2 * (gap + moved > GONE - angle)
    off = smaller * np.expm1(np.maximum(np.minimum(angle, 700.0), flushed))
    off = off - np.log1p(-U)
    return off + logarithm(-np.log1p(-smaller) + off, how.rounding)


def in_any_order(states: Sequence[State], how: Merging) -> State:
    """The states merged in any chain or tree, by sums, by differences, or by a lse taken first,
    whose error moves all weights alike: hence |out|, where it is more than the spread.
    """
    at, whole = Given.of(states), merged(states)
    merges = np.maximum(at.live.sum(0) - 1.0, 0.0)
    given, top = at.moved.max(0), np.where(at.live.any(0), at.lse, 0.0)
    apart = at.gap.max(0) + np.log(at.total)
    own = how.angle(apart + 2 * given) + 2 * (1 + 2 * how.rounding.division) * U
    stored = half_ulp(np.abs(top) + given + apart)
    node = of_lse(np.zeros(own.shape), np.zeros(own.shape), own, how)
    node = node + 2 * half_ulp(apart + 2 * given) + stored
    angle = merges * (2 * merges * node + own)
    most, moves = at.most(), np.minimum(angle, 700.0)
    off = most * np.expm1(moves)
    off = np.where(at.gap + 2 * given + angle > GONE, np.maximum(off, most), off)[..., None]
    size = np.abs(at.outs) + at.bounds
    spread = at.spread + at.bounds + whole.total()
    many, largest = (merges > 0)[..., None], size.max(0)
    rounds = merges[..., None] * (2 * how.summed() * 2 * largest + 8 * how.rounding.least)
    rounds = np.where(overflow(2 * largest) & many, np.inf, rounds)
    turned = np.where(many, (off * np.maximum(spread, size)).sum(0), 0.0)
    e_out = added(added(whole.e_out, WEIGHTS, turned), MERGES, rounds)
    kept = (1 + 2 * merges[..., None]) * how.kept(largest * (1 + 2.0**-6))
    return State(
        whole.out, whole.lse, added(e_out, STORED, kept), added(whole.e_lse, MERGES, merges * node)
    )
