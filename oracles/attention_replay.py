"""The accumulators of a known schedule: their replayed value, and what their roundings may cost.

acc is followed block by block as A +- R +- E: A from the P that the declared rounding gives, R what
is undecided about P and the rescales, E the roundings of the products, sums and rescales.
Derived in docs/error-budgets.md, attention, section accumulators.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tightrope.formats import Array
from tightrope.oracles.attention_dots import KEPT, STEP, TRUNCATED, largest_product
from tightrope.oracles.attention_numbers import FLOAT32, TF32, U, gamma, half_ulp, power
from tightrope.oracles.attention_softmax_budget import Schedule, Weights
from tightrope.oracles.attention_stages import Stages


@dataclass(frozen=True)
class Products:
    """P V of some blocks, in steps that a kernel adds at once; arrays (groups, steps, rows, ..).

    value: middle @ v; radius: radius @ |v|; size: (middle + radius) @ |v| or None; largest: bounds
    on the largest product, a power of two, or None; count: visible keys. sums: of P in each block,
    (groups, rows, blocks), and keys: visible ones. under: of `tf32x3`, what the small parts of P
    and V lose where they are subnormal.
    """

    value: Array
    radius: Array
    size: Array | None
    largest: Array | None
    count: Array
    sums: Array
    keys: Array
    under: Array | None


def products(found: Weights, seen: Array, v: Array, width: int, stages: Stages) -> Products:
    """Of keys in blocks of `width` (a multiple of 16 for the tensor-core model)."""
    groups, rows, keys = seen.shape
    step = STEP if stages.mma else width

    def tiles(x: Array) -> Array:
        return np.ascontiguousarray(x.reshape(groups, rows, -1, step).swapaxes(1, 2))

    middle, radius = tiles(found.middle), tiles(found.radius)
    right = v.reshape(groups, keys // step, step, v.shape[-1])
    away = radius @ np.abs(right)
    size = None if stages.mma else middle @ np.abs(right) + away
    largest = largest_product(middle + radius, right, stages.io) if stages.mma else None
    under = None
    if stages.precision == "tf32x3":
        some = middle + radius  # a P that is certainly 0 is split exactly
        under = 2 * TF32.tiny * (((some > 0) * 1.0) @ np.abs(right) + some.sum(-1)[..., None])
    blocks = (groups, rows, keys // width, width)
    return Products(
        middle @ right, away, size, largest, tiles(seen).sum(-1)[..., None],
        found.size.reshape(blocks).sum(-1), seen.reshape(blocks).sum(-1), under,
    )  # fmt: skip


@dataclass
class Accumulators:
    """acc and l after some blocks: centre, radius, error (groups, rows, head_dim_v); l, l_error.

    l is a bound on the denominator, l_error on its own roundings; used: whether a key was seen.
    """

    stages: Stages
    centre: Array
    radius: Array
    error: Array
    l: Array
    l_error: Array
    used: Array = field(init=False)

    def __post_init__(self) -> None:
        self.used = np.zeros((*self.l.shape, 1), bool)

    @classmethod
    def empty(cls, shape: tuple[int, ...], begun: bool, stages: Stages) -> Accumulators:
        """shape (groups, rows, head_dim_v); begun: l is 1, as a sink at the start leaves it."""
        one, two, three = (np.zeros(shape) for _ in range(3))
        return cls(stages, one, two, three, np.full(shape[:2], float(begun)), np.zeros(shape[:2]))

    @property
    def size(self) -> Array:
        """A bound on |acc| as the kernel holds it."""
        return np.abs(self.centre) + self.radius + self.error

    def run(self, plan: Schedule, part: slice, work: Products) -> None:
        """Blocks `part` of the schedule, whose products are `work`."""
        steps = work.value.shape[1] // (part.stop - part.start)
        last = plan.changed.shape[-1] - 1
        moves: list[bool] = np.any(plan.changed[..., part], axis=(0, 1)).tolist()
        for i, block in enumerate(range(part.start, part.stop)):
            if moves[i]:
                self._rescale(plan, block)
            if self.stages.normalised:
                self.error += self.used * half_ulp(self.size)
            for step in range(i * steps, (i + 1) * steps):
                self._add(work, step)
            self._sum(work.sums[..., i], work.keys[..., i])
            if self.stages.normalised and block != last:
                self.error += self.used * (2 * self.stages.division * U) * self.size
                self.error += self.used * (self.stages.division * FLOAT32.tiny) * self.l[..., None]

    def _rescale(self, plan: Schedule, block: int) -> None:
        changed = plan.changed[..., block]
        alpha, off = plan.alpha[..., block], plan.alpha_error[..., block]
        grown, before = alpha * (1 + off), self.size
        self.radius = (
            self.radius * grown[..., None] + np.abs(self.centre) * (alpha * off)[..., None]
        )
        self.error = self.error * grown[..., None]
        self.centre = self.centre * alpha[..., None]
        lost = half_ulp(self.size)
        if self.stages.normalised:  # fl(l alpha) is a factor of acc: relative, up to u
            lost = U * self.size + FLOAT32.tiny * before
        self.error += (changed[..., None] & self.used) * lost
        self.l, self.l_error = self.l * grown, self.l_error * grown
        one = np.where(changed & (self.l > 0), half_ulp(self.l), 0.0)
        self.l, self.l_error = self.l + one, self.l_error + one

    def _add(self, work: Products, step: int) -> None:
        count = work.count[:, step]
        before = self.size
        if work.largest is not None:
            largest = np.maximum(work.largest[:, step], power(before))
            lost: Any = (count > 0) * ((count + self.used) * KEPT) * largest
        else:
            assert work.size is not None
            under = None if work.under is None else work.under[:, step]
            lost = self._added(count, before, work.size[:, step], under)
        self.centre = self.centre + work.value[:, step]
        self.radius = self.radius + work.radius[:, step]
        self.error = self.error + lost
        if work.largest is not None:
            after = np.maximum(power(self.size) * TRUNCATED, FLOAT32.tiny)
            self.error += (count > 0) * after
        self.used = self.used | (count > 0)

    def _added(self, count: Array, before: Array, size: Array, under: Array | None
               ) -> Array:  # fmt: skip
        """Any order of `count` products and the accumulator."""
        terms = count + self.used
        rounds = self.stages.addition * (terms + 2 * (under is not None) * count)
        if self.stages.io is not FLOAT32:
            rounds = rounds * (terms > 1)
        lost = gamma(rounds) * (before + size) + count * FLOAT32.tiny
        if under is not None:
            lost = lost + 1.25 * 2.0**-20 * size + count * 2.0**-130 + under
        return np.where(count > 0, lost, 0.0)

    def _sum(self, total: Array, keys: Array) -> None:
        """l = fl(l + sum P): the sum in any order, then one addition."""
        inner = gamma(np.maximum(keys - 1, 0)) * total
        total = total + inner
        both = (self.l > 0) & (keys > 0)
        outer = np.where(both, half_ulp(self.l + total), 0.0)
        self.l, self.l_error = self.l + total + outer, self.l_error + inner + outer
