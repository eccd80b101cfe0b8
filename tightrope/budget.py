"""Budgets: what a right kernel may be off, as a sum of named terms, and who is inside.

A result in format f is right iff RN_f(x - e) <= out <= RN_f(x + e), x the exact value and e the
sum of the terms. Rounding is monotone, so this is exact set membership and the last rounding
costs no slack. Where an arithmetic prescribes its roundings, the replayed value must be met as
well (T1); the intersection decides. Derivations: docs/error-budgets.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from tightrope.formats import FORMATS, Array, Format, widen
from tightrope.rational import decimal, settle

Exact = Callable[[Sequence[int]], Sequence[Fraction]]


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
    """

    expected: Array
    terms: Mapping[str, Array | float]
    dtype: str
    oracle: Array | float = 0.0
    replay: Replay | None = None
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
        return Budget(self.expected, kept, self.dtype, self.oracle, self.replay)

    def scaled(self, name: str, factor: float) -> Budget:
        """The same budget with one term multiplied."""
        terms = {k: t * factor if k == name else t for k, t in self.terms.items()}
        return Budget(self.expected, terms, self.dtype, self.oracle, self.replay)

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

    def settle(self, actual: Array, index: int, value: Fraction) -> tuple[bool, float]:
        """(right, share) of the element at a flat index, whose exact value is given."""
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
    return np.maximum(0.0, np.maximum(low - x, x - high))


def _ratio(distance: Array, bound: Array, out: Array) -> Array:
    with np.errstate(all="ignore"):
        ratio = np.where(distance == 0, 0.0, distance / bound)
    return np.where(np.isnan(out) | np.isnan(ratio), np.inf, ratio)


@dataclass(frozen=True)
class Verdict:
    """What one comparison found. `worst` is a flat index, None for an empty output."""

    ok: bool
    share: float
    worst: int | None = None
    wrong: int = 0
    settled: int = 0
    message: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)


def judge(name: str, actual: Array, budget: Budget, exact: Exact | None = None) -> Verdict:
    """Compare one output with its budget.

    float64 decides what it can; ball arithmetic (`exact`, flat indices -> rationals) settles the
    rest and confirms the element that is reported. Raises Violation for a wrong shape or dtype.
    """
    if actual.shape != budget.expected.shape or actual.dtype.name != budget.dtype:
        raise Violation(
            f"{name} is {actual.dtype.name}{list(actual.shape)}, "
            f"expected {budget.dtype}{list(budget.expected.shape)}"
        )
    if actual.size == 0:
        return Verdict(True, 0.0)
    right, share = budget.inside(actual, -1.0).ravel(), budget.share(actual).ravel()
    declared, possible = budget.replayed(actual).ravel(), budget.inside(actual, 1.0).ravel()
    undecided, settled = np.flatnonzero(~right & possible), 0
    if exact is None:  # what is not proved wrong is not called wrong
        right = possible
    elif undecided.size:
        settled = undecided.size
        for index, value in zip(undecided, exact(undecided.tolist()), strict=True):
            right[index], share[index] = budget.settle(actual, int(index), value)
    share = np.where(right, np.minimum(share, 1.0), share)  # float64 rounds a share of 1 either way
    wrong = np.flatnonzero(~(right & declared))
    for done, index in enumerate(wrong[np.argsort(-share[wrong], kind="stable")]):
        truth = None if exact is None else exact([int(index)])[0]
        if truth is not None and not right[index]:  # told only if ball arithmetic confirms it
            right[index], share[index] = budget.settle(actual, int(index), truth)
            settled += 1
        if not (right[index] and declared[index]):
            count = wrong.size - done
            return _verdict(
                name, actual, budget, int(index), share, count, settled, truth, bool(right[index])
            )
    worst = int(np.argmax(share))
    return Verdict(True, float(share[worst]), worst, 0, settled)


def _verdict(
    name: str, actual: Array, budget: Budget, worst: int, share: Array, wrong: int, settled: int,
    value: Fraction | None, within: bool,
) -> Verdict:  # fmt: skip
    """The story of a failure, in words and as data."""
    index = [int(i) for i in np.unravel_index(worst, budget.expected.shape)]
    out, x = float(widen(actual).ravel()[worst]), float(budget.expected.ravel()[worst])
    bound = float(budget.bound.ravel()[worst])
    terms = {k: _at(t, budget.expected.shape, worst) for k, t in budget.terms.items()}
    digits = f"{x:.17g} (float64)" if value is None else decimal(value)
    lines = [
        f"{element(name, index)} = {out:.9g} ({budget.dtype}), exact value {digits}",
    ]
    if not within and bound == 0 and np.isfinite(x):
        lines.append(_not_the_only_one(budget.format, out, Fraction(x) if value is None else value))
    elif not within:
        error = "not a number, outside" if np.isnan(out) else f"error {abs(out - x):.3e} is"
        times = "" if np.isnan(out) else f" {share[worst]:.3g}x"
        lines.append(
            f"{error}{times} the budget of {bound:.3e} before the last rounding, to {budget.dtype}"
        )
    elif budget.replay is not None:
        centre = float(budget.format.round(budget.replay.centre).ravel()[worst])
        lines.append(
            f"within the worst case, but not the declared arithmetic, which gives {centre:.9g}"
        )
    lines += [f"  {bound:.3e}  {term}" for term, bound in terms.items()]
    lines.append(f"{wrong} of {budget.expected.size} elements are wrong")
    detail = {
        "output": name, "index": index, "actual": out, "exact": digits,
        "share": float(share[worst]), "bound": bound, "terms": terms,
        "wrong": int(wrong), "size": int(budget.expected.size),
    }  # fmt: skip
    return Verdict(False, float(share[worst]), worst, int(wrong), settled, "\n".join(lines), detail)


def element(name: str, index: Iterable[int]) -> str:
    """`q[0, 0, 64]`, and `score` for a scalar."""
    at = ", ".join(str(int(i)) for i in index)
    return f"{name}[{at}]" if at else name


def _not_the_only_one(fmt: Format, out: float, value: Fraction) -> str:
    """The story of an output where nothing but the exact value, rounded once, is right."""
    right = fmt.round_fraction(value)
    told = (
        f"the value before the last rounding, to {fmt.name}, is exact here: "
        f"only {right:.9g} is right"
    )
    if np.isfinite([out, right]).all():
        ulps = abs(out - right) / float(fmt.ulp(np.float64(right)))
        told += f", the output is off by {ulps:.3g} ulp of {fmt.name}"
    return told


def _at(term: Array | float, shape: tuple[int, ...], flat: int) -> float:
    return float(np.broadcast_to(np.asarray(term, np.float64), shape).ravel()[flat])
