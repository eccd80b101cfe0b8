"""Polar features simulated with explicit roundings; formats alone are shared with the budget.

Exact angles are Python's, by `reduced` of the float64 layer; everything else is written here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from simulated_attention import LOG2E, Rounding

from tightrope.formats import FORMATS, widen
from tightrope.oracles.pope_attention_angles import reduced

FLOAT32 = FORMATS["float32"]


@dataclass
class Moved(Rounding):
    """Nearest, but functions end a random whole number of ulps away, within their promise."""

    def function(self, y, ulps):
        if ulps < 1.5:
            return FLOAT32.round(y)
        steps = self.rng.integers(-int(ulps - 0.5), int(ulps - 0.5) + 1, np.shape(y))
        return FLOAT32.round(FLOAT32.round(y) + np.where(y == 0, 0, steps) * FLOAT32.ulp(y))


def times(to, a, b):
    """A product in float32; with 0 or 1 it is exact."""
    exact = [np.isin(x, (0, 1)) for x in (a, b)]
    return np.where(exact[0] | exact[1], a * b, to(a * b))


def cast(x, name, dtype):
    """To a 16-bit format, to nearest; "input" is dtype. What is in float32 stands there already."""
    name = dtype if name == "input" else name
    return x if name == "float32" else FORMATS[name].round(x)


@dataclass
class Features:
    """How a kernel makes mu cos and mu sin. Stages are those of the contract; form: of softplus;
    fused: sums take a product unrounded; double: the product is rounded to float32 before the cast.
    """

    dtype: str = "float16"
    to: Rounding = field(default_factory=Rounding)
    angle: str = "float32"
    trig_ulp: float = 0.5
    table: str = "float32"
    phase: str = "key"
    softplus_ulp: float = 0.5
    form: str = "exact"
    magnitude: str = "float32"
    features: str = "input"
    fused: bool = False
    double: bool = True
    turns: int | None = None  # bits of a turn, of angles in fixed point

    def __call__(self, x, positions, inv_freq, delta=None, keys=False):
        """X and Y of x (.., length, rotary_dim); positions (.., length, 1), delta (.., 1, R)."""
        mu = cast(self.softplus(x), self.magnitude, self.dtype)
        c, s = self.turning(positions, inv_freq, delta, keys)
        return tuple(self.feature(mu, t) for t in (c, s))

    def feature(self, mu, t):
        single = "float32" in (self.features, self.dtype)
        product = times(self.to, mu, t) if self.double or single else mu * t
        return cast(product, self.features, self.dtype)

    def turning(self, positions, inv_freq, delta, keys):
        if self.phase != "key":
            delta, keys = (None if keys or delta is None else -delta), True
        if delta is None or not keys:
            return self.tables(positions, inv_freq, np.zeros((1, 1)))
        if self.phase != "query":
            return self.tables(positions, inv_freq, delta)
        c, s = self.tables(positions, inv_freq, np.zeros((1, 1)))
        cd, sd = (self.function(f(-delta), delta) for f in (np.cos, np.sin))
        return self.added(c, cd, s, sd), self.added(s, cd, c, -sd)

    def added(self, a, b, c, d):
        first, second = times(self.to, a, b), times(self.to, c, d)
        whole = self.to(a * b + second) if self.fused else self.to.add(first, second)
        return np.where(second == 0, first, whole)

    def tables(self, positions, inv_freq, delta):
        a = self.angles(positions, inv_freq, delta)
        still = np.where((positions == 0) & (delta == 0), 0.0, 1.0) * np.ones(a.shape)
        return tuple(
            cast(self.function(f(a), still), self.table, self.dtype) for f in (np.cos, np.sin)
        )

    def function(self, y, angle):
        return np.where(angle == 0, np.round(y), self.to.function(y, self.trig_ulp))

    def angles(self, positions, inv_freq, delta):
        if self.angle == "exact":
            a = reduced(positions, inv_freq, delta)
            if self.turns is None:
                return a
            step = 2 * np.pi / 2**self.turns
            return np.round(a / step) * step
        fmt = FORMATS[self.angle]
        m = positions.astype(fmt.dtype).astype(np.float64)
        product = m * fmt.round(inv_freq)
        p = product if self.fused else self.to(product, fmt)
        return np.where((delta == 0) | (m == 0), p + delta, self.to(p + delta, fmt))

    def softplus(self, x):
        to, size = self.to, np.abs(x)
        if self.form == "exact":
            return to.function(np.maximum(x, 0) + np.log1p(np.exp(-size)), self.softplus_ulp)
        wide = self.form == "B"
        t = self.exp(np.where(wide, -size, np.minimum(x, 21.0)))
        if wide:
            return to.add(np.maximum(x, 0.0), to.function(np.log1p(t), 1.5))
        below = np.log1p(t) if self.form == "A" else np.log(to(1 + t))
        return np.where(x > 20, x, to.function(below, 1.5))

    def exp(self, x):
        """As Triton's tl.exp: one product, then exp2 within 2.5 ulp."""
        argument = self.to(x * LOG2E)
        value = self.to.function(np.exp2(argument), 2.5)
        return np.where(value < 2.0**-126, 0.0, value)


def problem_with(p, case, inputs, kernel, order="joined", wrong=None):
    """The problem that attention sees after a kernel has made its features.

    wrong: what it takes in place of some inputs.
    """
    given = {**inputs, **(wrong or {})}
    group = case.num_heads // case.num_kv_heads
    delta = given.get("delta")
    if delta is not None:
        delta = np.repeat(widen(delta), case.num_heads // delta.shape[0], 0)[:, None]
    sides = []
    for name in ("q", "k"):
        x = widen(given[name])
        x = np.repeat(x, 1 if name == "q" else group, 1)
        places = np.atleast_2d(given[f"{name}_positions"])[:, None, :, None]
        width = case.rotary_dim
        polar = kernel(x[..., :width], places, widen(given["inv_freq"]), delta, name == "k")
        sides.append(arranged(*polar, x[..., width:], order))
    return replace(p, q=sides[0], k=sides[1])


def arranged(x, y, rest, order):
    """(groups, length, features) in the order that a kernel multiplies them."""
    x, y, rest = (z.reshape(len(z) * z.shape[1], *z.shape[2:]) for z in (x, y, rest))
    if order == "interleaved":
        return np.concatenate([np.stack([x, y], -1).reshape(*x.shape[:-1], -1), rest], -1)
    if order == "blocks":
        short = [(0, 0), (0, 0)]
        x, y, rest = (np.pad(z, [*short, (0, -z.shape[-1] % 16)]) for z in (x, y, rest))
    return np.concatenate([x, y, rest], -1)
