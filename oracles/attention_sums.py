"""What is summed over the keys of a row: weights, values, and what both may be off.

Derived in docs/error-budgets.md, attention, section identity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tightrope.formats import Array
from tightrope.oracles.attention_softmax_budget import Weights


class Moments(NamedTuple):
    """sum a, a |v|, a v, a v^2 over keys: what the spread of v around any centre needs."""

    zeroth: Array
    size: Array
    first: Array
    second: Array

    @classmethod
    def of(cls, a: Array, v: Array) -> Moments:
        return cls(a.sum(-1), a @ np.abs(v), a @ v, a @ (v * v))

    def plus(self, other: Moments) -> Moments:
        return Moments(*(x + y for x, y in zip(self, other, strict=True)))

    def spread(self, centre: Array, keys: int) -> Array:
        """At least sum a |v - centre|: by Cauchy and Schwarz, or by the triangle inequality."""
        a = self.zeroth[..., None]
        second = self.second - 2 * centre * self.first + centre * centre * a
        lost = (keys + 16) * 2.0**-52 * (self.second + centre * centre * a)
        return np.minimum(
            np.sqrt(a * np.maximum(second + lost, 0.0)), self.size + np.abs(centre) * a
        )


@dataclass(frozen=True)
class Sums:
    """Over the keys, relative to 2**top: weights, weights v, weights |v|, and what is off."""

    total: Array
    value: Array
    size: Array
    exp: Moments
    flush: Moments | None
    rounding: Array | None

    @classmethod
    def of(cls, found: Weights, v: Array) -> Sums:
        off = found.p * found.eps
        flush = None
        if found.lost.any():
            flush = Moments.of(np.where(found.lost, off, 0.0), v)
            off = np.where(found.lost, 0.0, off)
        size = np.abs(v)
        rounding = None
        if found.rho is not None:
            rounding = (found.p * found.rho * (1 + found.eps)) @ size
        return cls(
            found.p.sum(-1), found.p @ v, found.p @ size, Moments.of(off, v), flush, rounding
        )

    def plus(self, other: Sums) -> Sums:
        def both(a: Any, b: Any) -> Any:
            if a is None or b is None:
                return b if a is None else a
            return a.plus(b) if isinstance(a, Moments) else a + b

        return Sums(*(both(getattr(self, f), getattr(other, f)) for f in self.__dataclass_fields__))
