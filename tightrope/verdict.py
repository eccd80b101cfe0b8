"""Comparing an output with its budget, and the story of a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from tightrope.budget import Budget, Violation
from tightrope.formats import Array, Format, widen
from tightrope.rational import decimal

Exact = Callable[[Sequence[int]], Sequence[Fraction | None]]  # None: -inf


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
    terms = terms_at(budget, worst)
    digits = f"{x:.17g} (float64)" if value is None else decimal(value)
    lines = [
        f"{element(name, index)} = {out:.9g} ({budget.dtype}), exact value {digits}",
    ]
    if not within and np.isneginf(x):
        lines.append("only -inf is right: no key is visible")
    elif not within and bound == 0 and np.isfinite(x):
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
    lines += [f"  constants of record {budget.record}"] if budget.record else []
    lines.append(f"{wrong} of {budget.expected.size} elements are wrong")
    detail = {
        "output": name, "index": index, "actual": out, "exact": digits,
        "share": float(share[worst]), "bound": bound, "terms": terms,
        "wrong": int(wrong), "size": int(budget.expected.size),
    }  # fmt: skip
    return Verdict(False, float(share[worst]), worst, int(wrong), settled, "\n".join(lines), detail)


def terms_at(budget: Budget, flat: int | None) -> dict[str, float]:
    """The budget of one element, term by term; nothing for None."""
    if flat is None:
        return {}
    return {k: _at(t, budget.expected.shape, flat) for k, t in budget.terms.items()}


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
