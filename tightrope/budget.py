"""Budgets: what a right kernel may be off, as a sum of named terms, and who is inside.

A result in format f is right iff RN_f(x - e) <= out <= RN_f(x + e), x the exact value and e the
sum of the terms. Rounding is monotone, so this is exact set membership and the last rounding
costs no slack. Where an arithmetic prescribes its roundings, the replayed value must be met as
well (T1); the intersection decides. Derivations: docs/error-budgets.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from tightrope.formats import FORMATS, Array, Format, widen

Exact = Callable[[Sequence[int]], Sequence[Fraction]]
SETTLE = 4096  # at most so many undecided elements of one output go to ball arithmetic


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
    right, declared = budget.inside(actual, -1.0), budget.replayed(actual)
    share, settled = budget.share(actual).ravel(), 0
    undecided = np.flatnonzero(~right & budget.inside(actual, 1.0))
    if undecided.size and exact is not None:
        settled = min(undecided.size, SETTLE)
        right = right.ravel().copy()
        for index, value in zip(
            undecided[:settled], exact(undecided[:settled].tolist()), strict=True
        ):
            right[index], share[index] = _settle(actual, budget, int(index), value)
        right[undecided[settled:]] = True
    right = right.ravel() & declared.ravel()
    worst = int(np.argmax(np.where(right, share, np.inf) if not right.all() else share))
    if not right.all():
        wrong = np.flatnonzero(~right)
        worst = int(wrong[np.argmax(share[wrong])])
        truth = None if exact is None else exact([worst])[0]
        if truth is not None and declared.ravel()[worst]:
            confirmed, share[worst] = _settle(actual, budget, worst, truth)
            if confirmed and wrong.size == 1:
                return Verdict(True, float(share[worst]), worst, 0, settled + 1)
        return _verdict(name, actual, budget, worst, share, wrong.size, settled, truth)
    return Verdict(True, float(share[worst]), worst, 0, settled)


def _settle(actual: Array, budget: Budget, index: int, value: Fraction) -> tuple[bool, float]:
    """Decide one element in rational arithmetic; returns (right, share)."""
    out = float(widen(actual).ravel()[index])
    if np.isnan(out):
        return False, float("inf")
    e, fmt = Fraction(float(budget.bound.ravel()[index])), budget.format
    right = fmt.round_fraction(value - e) <= out <= fmt.round_fraction(value + e)
    share = _share_of(out, value, e, fmt)
    return right, min(share, 1.0) if right else max(share, 1.0)


def _share_of(out: float, value: Fraction, e: Fraction, fmt: Format) -> float:
    if fmt.round_fraction(value) == out:
        return 0.0
    if e == 0 or np.isinf(out):
        return float("inf") if e == 0 else float((Fraction(fmt.largest) - abs(value)) / e)
    below, above = (float(v) for v in fmt.neighbours(np.float64(out)))
    edge = below if value < Fraction(out) else above
    limit = Fraction(edge) if np.isfinite(edge) else Fraction(out) + Fraction(float(fmt.ulp(out)))
    return float(abs((Fraction(out) + limit) / 2 - value) / e)


def _verdict(
    name: str, actual: Array, budget: Budget, worst: int, share: Array, wrong: int, settled: int,
    value: Fraction | None,
) -> Verdict:  # fmt: skip
    """The story of a failure, in words and as data."""
    index = [int(i) for i in np.unravel_index(worst, budget.expected.shape)]
    out, x = float(widen(actual).ravel()[worst]), float(budget.expected.ravel()[worst])
    bound = float(budget.bound.ravel()[worst])
    terms = {k: _at(t, budget.expected.shape, worst) for k, t in budget.terms.items()}
    digits = f"{x:.17g} (float64)" if value is None else decimal(value)
    lines = [
        f"{name}[{', '.join(map(str, index))}] = {out:.9g} ({budget.dtype}), exact value {digits}",
    ]
    if share[worst] > 1 or not np.isfinite(share[worst]):
        lines.append(
            f"error {abs(out - x):.3e} is {share[worst]:.3g}x the budget of {bound:.3e} "
            f"before the last rounding, to {budget.dtype}"
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


def _at(term: Array | float, shape: tuple[int, ...], flat: int) -> float:
    return float(np.broadcast_to(np.asarray(term, np.float64), shape).ravel()[flat])


def decimal(value: Fraction, digits: int = 25) -> str:
    """A rational as a decimal string of `digits` significant digits (truncated)."""
    import mpmath

    with mpmath.workdps(digits + 10):
        return mpmath.nstr(mpmath.mpf(value.numerator) / value.denominator, digits)
