"""A merge of states in float64 with pluggable roundings.

A pushed rounding is off by all that its stage admits, except where the result is exact.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tightrope.formats import FORMATS

FLOAT32 = FORMATS["float32"]
NORMAL = 2.0**-126
LOG2E, LN2 = (float(np.float32(x)) for x in (1 / np.log(2.0), np.log(2.0)))
PATTERNS = ("up", "down", "random", "by split", "outward")


@dataclass
class Kernel:
    """A merge with roundings of one pattern; None: to nearest. Ulps as in the stages."""

    pattern: str | None = None
    exp_ulp: float = 2.5
    division_ulp: float = 2.5
    log_ulp: float = 1.0
    flush: bool = True
    seed: int = 0
    rng: np.random.Generator = field(init=False)

    def __post_init__(self):
        self.rng = np.random.default_rng(self.seed)

    def _sign(self, x, side):
        if self.pattern == "random":
            return self.rng.choice([-1.0, 1.0], np.shape(x))
        if self.pattern == "by split":
            split = np.arange(len(x)) if np.ndim(x) else 0
            return side * np.where(split % 2, -1.0, 1.0).reshape(-1, *[1] * (np.ndim(x) - 1))
        signs = {"up": 1.0, "down": -1.0, "outward": np.where(x < 0, -1.0, 1.0)}
        return side * signs[self.pattern]

    def step(self, x, ulps=0.5, side=1.0):
        """One operation whose exact result is x; side -1: pushed the other way."""
        near = FLOAT32.round(x)
        if self.pattern is None:
            return near
        return np.where(near == x, x, x + self._sign(x, side) * ulps * FLOAT32.ulp(x))

    def exp(self, x):
        y = np.exp2(self.step(x * LOG2E))
        y = np.where(x == 0, 1.0, self.step(y, self.exp_ulp))
        return np.where(y < NORMAL, 0.0, y) if self.flush else y

    def sum(self, terms, side=1.0):
        total = terms[0]
        for term in terms[1:]:
            exactly = (term == 0) | (total == 0)
            total = np.where(exactly, total + term, self.step(total + term, side=side))
        return total

    def once(self, outs, lses, form):
        """(out, lse before its last rounding) of all states at a time."""
        top = lses.max(0)
        live, shift = lses > -np.inf, np.where(np.isfinite(top), top, 0.0)
        weights = np.where(live, self.exp(self.step(np.where(live, lses - shift, 0.0))), 0.0)
        total = self.sum(weights, side=-1.0)
        safe = np.where(total == 0, 1.0, total)
        log = self.step(self.step(np.log2(safe), self.log_ulp) * LN2)
        lse = np.where(live.any(0), shift + log, -np.inf)
        if form == "direct":
            away = np.where(live, lses - FLOAT32.round(np.where(live.any(0), lse, 0.0)), 0.0)
            weights = np.where(live, self.exp(self.step(away)), 0.0)
        if form == "normalised":
            weights = np.where(safe == 1, weights, self.step(weights / safe, self.division_ulp))
        out = self.sum(self.step(weights[..., None] * outs))
        if form == "division":
            last = self.step(out / safe[..., None], self.division_ulp)
            out = np.where(safe[..., None] == 1, out, last)
        return out, lse

    def run(self, outs, lses, form, order):
        if order == "once":
            return self.once(outs, lses, form)
        states = [(o, l) for o, l in zip(outs, lses, strict=True)]
        while len(states) > 1:
            first, rest = states[:2], states[2:]
            out, lse = self.once(*(np.stack(x) for x in zip(*first, strict=True)), form)
            merged = (out, FLOAT32.round(lse) if rest else lse)
            states = [merged, *rest] if order == "chain" else [*rest, merged]
        return states[0]
