"""What a wrong kernel seems to compute instead: the known mistake that its outputs agree with.

Three strengths, told apart in words. A mistake is *computed* if every element equals its outputs,
or lies within the budget that the same promise has of that mistake (`Mistake.budgets`; without one,
within an ulp and twice the right result's budget). It *explains* a part of the error if it leaves
less than `LEFT` of it. And where the wrong elements lie is told by `tightrope.diagnosis_places`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tightrope.formats import FORMATS, Array, widen

MOST = 3  # mistakes that a message names
TRIED = 24  # of those that come closest, their budgets are asked
MOST_LEFT = 0.5  # of the error, that a mistake may leave whose budgets are asked
LEFT = 0.1  # of the error, that an explanation may leave
ALIKE = 1.5  # explanations that leave so many times what the best one leaves are named beside it
COMPUTED = "It computes what this would"
Outputs = Mapping[str, Array]


class Mistake(dict[str, Array]):
    """Outputs of a mistake, by name, and the budgets that a promise has of them.

    budgets: arithmetic -> output -> Budget of the call as the mistake understands it.
    """

    def __init__(self, outputs: Outputs, budgets: Callable[[Any], Mapping[str, Any]]) -> None:
        super().__init__(outputs)
        self.budgets = budgets


@dataclass(frozen=True, eq=False)
class Guess:
    """A mistake beside the outputs. left: of the error, 1 for all; differ: elements not equal."""

    sentence: str
    outputs: Outputs
    left: float
    differ: int
    near: bool


def diagnose(
    alternatives: Iterable[tuple[str, Outputs]], outputs: Outputs, budgets: Mapping[str, Any],
    arithmetic: Any = None,
) -> str:  # fmt: skip
    """The known mistakes that explain every output, as a sentence; empty if none does.

    Equal in every element wins; else, of the mistakes that these outputs are a right result of,
    those with the fewest elements that differ at all; else those that leave the least of the error.
    A small case may not tell two mistakes apart: up to three are named, the likeliest first.
    arithmetic: the promise, for the mistakes' own budgets.
    """
    wrong = {n: wrong_at(outputs[n], b) for n, b in budgets.items() if n in outputs}
    known = list(alternatives)
    if arithmetic is not None and worst_case_holds(outputs, budgets):
        replayed = [s for s, others in known if _replayed(others, outputs, arithmetic)]
        if replayed:
            return f"{COMPUTED}: {'; or '.join([*dict.fromkeys(replayed)][:MOST])}."
    found = [
        guess for sentence, others in known
        if (guess := _guessed(sentence, others, outputs, budgets)) is not None
        and explains(others, outputs, budgets, wrong)
    ]  # fmt: skip
    closest = sorted(found, key=lambda guess: guess.left)
    tried = closest[:TRIED] if arithmetic is not None else []
    right = [g for g in found if g.near or (g in tried and _within(g, outputs, arithmetic))]
    if right:
        least = min(g.differ for g in right)
        return f"{COMPUTED}: {_named(g for g in right if g.differ == least)}."
    if not closest or closest[0].left > LEFT:
        return ""
    limit = min(LEFT, ALIKE * closest[0].left)
    share = np.floor(1000 * (1 - closest[0].left)) / 10
    told = _named(g for g in closest if g.left <= limit)
    return f"{share:g} % of the error is explained by this: {told}."


def _named(guesses: Iterable[Guess]) -> str:
    return "; or ".join([*dict.fromkeys(guess.sentence for guess in guesses)][:MOST])


def differing(actual: Array, other: Array, bound: Array | float = 0.0) -> int | None:
    """How many elements differ; None if one does by more than an ulp and twice `bound`."""
    a, b = widen(actual), widen(other)
    if a.shape != b.shape:
        return None
    fmt, same = FORMATS[actual.dtype.name], (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        near = same | (np.abs(a - b) <= fmt.ulp(np.maximum(np.abs(a), np.abs(b))) + 2 * bound)
    return int((~same).sum()) if near.all() else None


def _guessed(
    sentence: str, others: Outputs, outputs: Outputs, budgets: Mapping[str, Any]
) -> Guess | None:
    names = [n for n in others if n in outputs]
    if not names or any(others[n].shape != outputs[n].shape for n in names):
        return None
    counts = [differing(outputs[n], others[n], budgets[n].bound) for n in names]
    left = max(_left(outputs[n], others[n], budgets[n]) for n in names)
    count = sum(int((widen(outputs[n]) != widen(others[n])).sum()) for n in names)
    return Guess(sentence, others, left, count, None not in counts)


def wrong_at(actual: Array, budget: Any) -> Array:
    """Which elements are not right; all of an output that cannot be compared."""
    if actual.shape != budget.expected.shape:
        return np.ones(actual.shape, bool)
    with np.errstate(all="ignore"):
        return np.asarray(~(budget.inside(actual, 1.0) & budget.replayed(actual)))


def worst_case_holds(outputs: Outputs, budgets: Mapping[str, Any]) -> bool:
    """Whether only prescribed roundings are missed."""
    with np.errstate(all="ignore"):
        return all(
            b.expected.shape == outputs[n].shape and bool(b.inside(outputs[n], 1.0).all())
            for n, b in budgets.items() if n in outputs
        )  # fmt: skip


def _replayed(others: Outputs, outputs: Outputs, arithmetic: Any) -> bool:
    """Whether the outputs are what the roundings that are prescribed make of a mistake."""
    if not isinstance(others, Mistake):
        return False
    with np.errstate(all="ignore"):
        found = {n: b for n, b in others.budgets(arithmetic).items() if n in outputs}
    sharp = any(b.replay is not None and np.isfinite(b.replay.radius).all() for b in found.values())
    return sharp and all(_accepted(outputs, n, b) for n, b in found.items())


def explains(others: Outputs, outputs: Outputs, budgets: Mapping[str, Any], wrong: Outputs) -> bool:
    """Whether a mistake lies nearer to what is wrong than the right result does: half as far.

    Else it is the right result but for roundings, and agreement with it says nothing.
    """
    with np.errstate(all="ignore"):
        for name, at in wrong.items():
            if name in others and at.any():
                a, x = widen(outputs[name])[at], budgets[name].expected[at]
                replay, rounded = budgets[name].replay, budgets[name].format.round
                right = [x] if replay is None else [x, replay.centre[at]]
                far = min(np.mean(_apart(a, rounded(value))) for value in right)
                near = np.mean(_apart(a, widen(others[name])[at]))
                if not (near <= far / 2 or np.isinf(far)):
                    return False
    return True


def _left(actual: Array, other: Array, budget: Any) -> float:
    """How much of an output's error a mistake leaves; what roundings may do counts as error."""
    a, b, x = widen(actual), widen(other), budget.expected
    if not a.size:
        return 0.0
    with np.errstate(all="ignore"):
        noise = np.mean(_finite(budget.bound) + budget.format.ulp(x))
        left = np.mean(_apart(a, b)) / (np.mean(_apart(a, x)) + noise)
        return float("inf") if np.isnan(left) else float(left)


def _apart(a: Array, b: Array) -> Array:
    """Elementwise distance, 0 for equal infinities and for NaN beside NaN, else infinite there."""
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    far = np.abs(a - b)
    return np.where(same, 0.0, np.where(np.isnan(far), np.inf, far))


def _finite(bound: Array) -> Array:
    return np.where(np.isfinite(bound), bound, 0.0)


def _within(guess: Guess, outputs: Outputs, arithmetic: Any) -> bool:
    """Whether the outputs are a right result of the mistake."""
    if not isinstance(guess.outputs, Mistake) or not guess.left < MOST_LEFT:
        return False
    with np.errstate(all="ignore"):
        found = guess.outputs.budgets(arithmetic)
        return all(map(partial(_accepted, outputs), *zip(*found.items(), strict=True)))


def _accepted(outputs: Outputs, name: str, budget: Any) -> bool:
    if name not in outputs:
        return True
    actual = outputs[name]
    if budget.expected.shape != actual.shape or not np.isfinite(budget.bound).all():
        return False
    inside = budget.inside(actual, 1.0) & budget.replayed(actual)
    return bool((inside | (np.isnan(budget.expected) & np.isnan(widen(actual)))).all())
