"""Budgets: what a right kernel may be off, as a sum of named terms, and who is inside.

A result in format f is right iff RN_f(x - e) <= out <= RN_f(x + e), x the exact value and e the
sum of the terms. Rounding is monotone, so this is exact set membership and the last rounding
costs no slack. Where an arithmetic prescribes its roundings, the replayed value must be met as
well (T1); the intersection decides. Derivations: docs/error-budgets.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from tightrope.formats import FORMATS, Array, Format, widen
from tightrope.rational import settle


class Violation(AssertionError):
    """A law does not hold; `detail` is the same story as data, for the report."""

    def __init__(self, message: str, **detail: Any) -> None:
        super().__init__(message)
        self.detail = detail


@dataclass(frozen=True)
class Replay:
    """T1: the value before the last rounding as the declared roundings give it, and a radius."""

    centre: Array
    radius: Array | float = 0.0


@dataclass(frozen=True)
class Budget:
    """An elementwise bound on the error before the last rounding.

    expected: float64 oracle, any shape. terms: name -> bound, broadcastable to it, >= 0.
    dtype: the format that the result is rounded to last. oracle: bound on |expected - exact|.
    record: id of the device's record that constants were taken from, "" for none.
    """

    expected: Array
    terms: Mapping[str, Array | float]
    dtype: str
    oracle: Array | float = 0.0
    replay: Replay | None = None
    record: str = ""
    _cache: dict[str, Array] = field(default_factory=dict, repr=False, compare=False)

    @property
    def format(self) -> Format:
        return FORMATS[self.dtype]

    @property
    def bound(self) -> Array:
        """The sum of the terms, nudged outward by its own rounding."""
        if "bound" not in self._cache:
            total = np.zeros(self.expected.shape)
            for term in self.terms.values():
                total = total + term
            self._cache["bound"] = total * (1 + 2.0**-50)
        return self._cache["bound"]

    def without(self, *names: str) -> Budget:
        """The same budget with terms deleted (tests use it to show that a term is needed)."""
        kept = {name: term for name, term in self.terms.items() if name not in names}
        return Budget(self.expected, kept, self.dtype, self.oracle, self.replay, self.record)

    def scaled(self, name: str, factor: float) -> Budget:
        """The same budget with one term multiplied."""
        terms = {k: t * factor if k == name else t for k, t in self.terms.items()}
        return Budget(self.expected, terms, self.dtype, self.oracle, self.replay, self.record)

    def reshape(self, shape: tuple[int, ...]) -> Budget:
        """The same budget with its elements arranged as `shape`, in C order."""
        before = self.expected.shape

        def arranged(term: Array | float) -> Array:
            return np.broadcast_to(np.asarray(term, np.float64), before).reshape(shape)

        replay = self.replay and Replay(arranged(self.replay.centre), arranged(self.replay.radius))
        terms = {name: arranged(term) for name, term in self.terms.items()}
        centre, oracle = arranged(self.expected), arranged(self.oracle)
        return Budget(centre, terms, self.dtype, oracle, replay, self.record)

    def inside(self, actual: Array, slack: float = 0.0) -> Array:
        """Elementwise membership in T0; slack 1 widens, -1 narrows by the oracle's own error."""
        with np.errstate(invalid="ignore"):  # inf - inf: not decided
            out, e = widen(actual), self.bound + slack * np.asarray(self.oracle)
        low, high = self.format.round(self.expected - e), self.format.round(self.expected + e)
        return (e >= 0) & (low <= out) & (out <= high)

    def replayed(self, actual: Array) -> Array:
        """Elementwise membership in T1; all true where nothing is prescribed."""
        if self.replay is None:
            return np.ones(self.expected.shape, bool)
        c, r = self.replay.centre, self.replay.radius
        out = widen(actual)
        return (self.format.round(c - r) <= out) & (out <= self.format.round(c + r))

    def accepts(self, actual: Array) -> bool:
        """Whether float64 alone lets every element pass (for null models, not verdicts)."""
        return bool((self.inside(actual, 1.0) & self.replayed(actual)).all())

    def share(self, actual: Array) -> Array:
        """The smallest l >= 0 with RN(x - l e) <= out <= RN(x + l e); inf for NaN. Elementwise."""
        out = widen(actual)
        with np.errstate(all="ignore"):
            return _ratio(_distance(self.expected, out, self.format), self.bound, out)

    def settle(self, actual: Array, index: int, value: Fraction | None) -> tuple[bool, float]:
        """(right, share) of the element at a flat index, whose exact value is given; None: -inf."""
        if value is None:
            right = bool(np.isneginf(widen(actual).ravel()[index]))
            return right, 0.0 if right else float("inf")
        out, bound = float(widen(actual).ravel()[index]), float(self.bound.ravel()[index])
        return settle(out, bound, value, self.format)

    def tightness(self, actual: Array) -> Array:
        """|out - x| / (bound + the last rounding): how sharp the budget is. Elementwise."""
        out = widen(actual)
        total = self.bound + self.format.half_ulp(np.abs(self.expected) + self.bound)
        return _ratio(np.abs(out - self.expected), total, out)


def _distance(x: Array, out: Array, fmt: Format) -> Array:
    """How far x lies outside the interval of reals that round to `out`."""
    below, above = fmt.neighbours(np.where(np.isnan(out), 0.0, out))
    finite_below = np.where(np.isinf(below), -fmt.largest - fmt.ulp(fmt.largest), below)
    finite_above = np.where(np.isinf(above), fmt.largest + fmt.ulp(fmt.largest), above)
    centre = np.clip(np.where(np.isnan(out), 0.0, out), finite_below, finite_above)
    low = np.where(np.isneginf(out), -np.inf, (centre + finite_below) / 2)
    high = np.where(np.isposinf(out), np.inf, (centre + finite_above) / 2)
    low = np.where(np.isposinf(out), fmt.largest + fmt.ulp(fmt.largest) / 2, low)
    high = np.where(np.isneginf(out), -fmt.largest - fmt.ulp(fmt.largest) / 2, high)
    with np.errstate(invalid="ignore"):  # x may be infinite, as lse is where nothing is visible
        return np.where(x == out, 0.0, np.maximum(0.0, np.maximum(low - x, x - high)))


def _ratio(distance: Array, bound: Array, out: Array) -> Array:
    with np.errstate(all="ignore"):
        ratio = np.where(distance == 0, 0.0, distance / bound)
    return np.where(np.isnan(out) | np.isnan(ratio), np.inf, ratio)
