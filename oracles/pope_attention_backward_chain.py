"""From gradients of points to those of features and phases, and what every step may lose.

Derived in docs/error-budgets.md, section pope_attention_backward, the way back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tightrope.formats import Array
from tightrope.oracles.attention_backward_budget import Terms
from tightrope.oracles.attention_numbers import FLOAT32, NORMAL, U64, gamma, half_ulp
from tightrope.oracles.pope_attention_backward_problem import (
    SIGMOID_ERROR,
    SIGMOID_LEAST,
    sigmoid,
)
from tightrope.oracles.pope_attention_backward_stages import Way
from tightrope.oracles.pope_attention_backward_sums import Sum
from tightrope.oracles.pope_features_held import Held


@dataclass(frozen=True)
class Number:
    """A factor as the kernel holds it: within error of value; own: of float64."""

    value: Array
    error: Array
    own: Array | float = 0.0

    def __neg__(self) -> Number:
        return replace(self, value=-self.value)

    @property
    def size(self) -> Array:
        return np.abs(self.value) + self.error

    def first(self, group: int) -> Number:
        """That of the first query head of every group."""
        return Number(*(np.broadcast_to(x, self.value.shape)[::group] for x in vars(self).values()))


@dataclass(frozen=True)
class Side:
    """Factors of q or k, (groups, length, rotary_dim): cos and sin of angles, as they are and as
    prescribed roundings leave them; sigmoid; softplus."""

    cos: Number
    sin: Number
    cos_again: Number
    sin_again: Number
    sigmoid: Number
    mu: Number

    @classmethod
    def of(cls, x: Array, mu: Held, turned: tuple[Held, Held], way: Way) -> Side:
        """x (batch, num_heads, length, rotary_dim), features; others as `parts` has them."""

        def flat(y: Array | float) -> Array:
            return np.broadcast_to(y, x.shape).reshape(len(x) * x.shape[1], *x.shape[2:])

        def number(h: Held) -> Number:
            return Number(flat(h.value), flat(h.error), flat(h.own))

        def again(h: Held) -> Number:
            return Number(flat((h.low + h.high) / 2), flat((h.high - h.low) / 2))

        cos, sin = turned
        return cls(
            number(cos), number(sin), again(cos), again(sin), _sigmoid(flat(x), way), number(mu)
        )

    def first(self, group: int) -> Side:
        return Side(*(number.first(group) for number in vars(self).values()))


def _sigmoid(x: Array, way: Way) -> Number:
    y = sigmoid(x)
    ulps = way.sigmoid_ulp * FLOAT32.ulp(y + way.sigmoid_ulp * FLOAT32.ulp(y))
    lost = np.where(y * (1 + 2.0**-10) < way.grant.lost, y, 0.0)
    return Number(y, ulps + way.sigmoid_error + lost, SIGMOID_ERROR * y + SIGMOID_LEAST)


@dataclass(frozen=True)
class Back:
    """factor (a x + b y) of gradients (x, y) of points, before the scale; fields as in Sum."""

    centre: Array
    terms: Terms
    size: Array
    own: Array
    lost: Array
    near: Array | None
    open: Array | None


def along(
    x: Sum, y: Sum, a: tuple[Number, Number], b: tuple[Number, Number], factor: Number,
    names: tuple[str, str], way: Way, scale: float,
) -> Back:  # fmt: skip
    """a, b: as they are, and as prescribed roundings leave them; names: of the terms of the last
    two steps."""
    inner, size = a[0].value * x.centre + b[0].value * y.centre, np.abs(factor.value)
    terms = {
        name: size * (np.abs(a[0].value) * x.terms[name] + np.abs(b[0].value) * y.terms[name])
        for name in x.terms
    }
    whole = factor.size * (a[0].size * x.size + b[0].size * y.size)
    far = [sum(part.terms.values(), np.zeros(inner.shape)) for part in (x, y)]
    step = Step(a[0], b[0], factor, way, scale)
    terms |= dict(zip(("cos, sin", "gradients of points rounded", *names),
                      step(x.centre, y.centre, *far), strict=True))  # fmt: skip
    if not way.stages.scaled:
        terms[names[1]] = terms[names[1]] + _any_order(whole, inner, factor, way, scale)
    own = size * (np.abs(a[0].value) * x.own + np.abs(b[0].value) * y.own + _own(a[0], b[0], x, y))
    own = own + np.asarray(factor.own) * np.abs(inner) + 8 * U64 * whole
    near, open_ = _replayed(x, y, step, a[1], b[1])
    return Back(factor.value * inner, terms, whole, own, x.lost | y.lost, near, open_)


def _own(a: Number, b: Number, x: Sum, y: Sum) -> Array:
    return np.asarray(a.own) * np.abs(x.centre) + np.asarray(b.own) * np.abs(y.centre)


def _replayed(
    x: Sum, y: Sum, step: Step, a: Number, b: Number
) -> tuple[Array | None, Array | None]:
    if x.near is None or y.near is None or x.open is None or y.open is None:
        return None, None
    inner = a.value * x.near + b.value * y.near
    spread = np.abs(a.value) * x.open + np.abs(b.value) * y.open
    lost = replace(step, a=a, b=b)(x.near, y.near, x.open, y.open)
    size = np.abs(step.factor.value)
    return step.factor.value * inner, size * spread + sum(lost, np.zeros(inner.shape))


@dataclass(frozen=True)
class Step:
    """What factor (a x + b y) loses beside what x and y are off; the scale is last."""

    a: Number
    b: Number
    factor: Number
    way: Way
    scale: float

    def __call__(self, x: Array, y: Array, off_x: Array, off_y: Array) -> tuple[Array, ...]:
        """By a and b; by a cast of x and y; by the factor; by products and the sum."""
        a, b, size = self.a, self.b, np.abs(self.factor.value)
        top_x, top_y = np.abs(x) + off_x, np.abs(y) + off_y
        moved = a.error * top_x + b.error * top_y
        kept_x, kept_y = self._kept(top_x), self._kept(top_y)
        kept = a.size * kept_x + b.size * kept_y
        inner = np.abs(a.value * x + b.value * y) + np.abs(a.value) * off_x
        inner = inner + np.abs(b.value) * off_y + moved + kept
        products = rounding(a.size * (top_x + kept_x)) + rounding(b.size * (top_y + kept_y))
        products = products + rounding(inner + products)
        whole = self.factor.size * (inner + products)
        last = self.factor.size * products + rounding(whole)
        return size * moved, size * kept, self.factor.error * (inner + products), last

    def _kept(self, size: Array) -> Array:
        """The cast of a gradient of points, scaled or not yet."""
        fmt = self.way.kept
        if fmt is None:
            return np.zeros(size.shape)
        s = abs(self.scale)
        cast = np.maximum(half_ulp(size, fmt), half_ulp(size * s, fmt) / s)
        lost = size * max(s, 1.0) * (1 + 2.0**-20) >= fmt.largest
        return np.where(size > 0, np.where(lost, np.inf, cast), 0.0)


def rounding(size: Array) -> Array:
    """To float32; of 0 nothing."""
    return np.where(size > 0, half_ulp(size), 0.0)


def _any_order(whole: Array, inner: Array, factor: Number, way: Way, scale: float) -> Array:
    """The scale on any factor, heads one by one, products in any order, which may be flushed."""
    least = NORMAL if way.stages.forward.flush else FLOAT32.tiny
    flushed = least * (8 * np.maximum(factor.size, 1.0) / min(abs(scale), 1.0) + np.abs(inner))
    return np.where(whole > 0, gamma(12) * whole + flushed, 0.0)
