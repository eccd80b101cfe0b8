"""The states of a merge as numbers, and the float64 definition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tightrope.formats import Array, widen
from tightrope.oracles.attention_numbers import U64


@dataclass(frozen=True)
class States:
    """Of each place, which is a row of a head; float64.

    outs (splits, places, head_dim), 0 where a state is empty; live (splits, places); top (places,):
    the largest lse, 0 if no state is live; gap: top - lse, 0 where empty; weight: exp(-gap);
    total: their sum, 1 if no state is live; count: of live states; out, lse: the result.
    """

    outs: Array
    live: Array
    top: Array
    gap: Array
    weight: Array
    total: Array
    count: Array
    out: Array
    lse: Array

    @classmethod
    def of(cls, inputs: Mapping[str, Array]) -> States:
        lses = widen(inputs["lses"])
        splits, places = len(lses), lses[0].size
        lses = lses.reshape(splits, places)
        live = lses > -np.inf
        outs = widen(inputs["outs"]).reshape(splits, places, inputs["outs"].shape[-1])
        outs = np.where(live[..., None], outs, 0.0)
        top = np.where(live, lses, -np.inf).max(0)
        top = np.where(live.any(0), top, 0.0)
        gap = np.where(live, top - np.where(live, lses, 0.0), 0.0)
        weight = np.where(live, np.exp(-gap), 0.0)
        total = weight.sum(0)
        some = np.where(total > 0, total, 1.0)
        out = (weight[..., None] * outs).sum(0) / some[:, None]
        lse = np.where(total > 0, top + np.log(some), -np.inf)
        return cls(outs, live, top, gap, weight, some, live.sum(0), out, lse)

    def weighed(self, a: Array) -> Array:
        """sum of a |out| over splits; (places, head_dim)."""
        return np.einsum("sp,spd->pd", a, np.abs(self.outs))

    def around(self, a: Array) -> Array:
        """sum of a |out - result| over splits; (places, head_dim)."""
        return np.einsum("sp,spd->pd", a, np.abs(self.outs - self.out))

    def own(self) -> tuple[Array, Array]:
        """Bounds on the float64 errors of out and lse, exp and log within an ulp; 0 where one state
        is all there is.
        """
        w = self.weight / self.total
        off = w * (np.minimum(self.gap, 800.0) + 2.0)
        out = U64 * (2 * self.weighed(off + len(w) * w) + 6 * np.abs(self.out))
        lse = U64 * (2 * off.sum(0) + len(w) + 4 * np.abs(self.top) + 4 * np.log(self.total) + 4)
        some = self.count > 1
        return np.where(some[:, None], out, 0.0), np.where(some, lse, 0.0)
