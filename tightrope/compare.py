"""How laws compare two calls of one kernel: bitwise, or within what both budgets allow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tightrope import ledger
from tightrope.budget import Budget, Replay, Violation
from tightrope.device import current
from tightrope.formats import Array, widen


def budgets(impl: Any, case: Any, inputs: Mapping[str, Array]) -> dict[str, Budget]:
    """The budgets of a call under what the implementation promises."""
    found: dict[str, Budget] = impl.budgets(case, inputs, current())
    return found


def reach(budget: Budget) -> Array:
    """A bound on |out - exact|, the last rounding included; inf where out may overflow.

    0 where the exact value is -inf: nothing else is right.
    """
    largest = np.abs(budget.expected) + budget.bound + budget.oracle
    far = budget.bound + budget.oracle + budget.format.half_ulp(largest)
    far = np.where(largest >= budget.format.largest, np.inf, far)
    return np.where(np.isneginf(budget.expected), 0.0, far)


def part(budget: Budget, index: Any) -> Budget:
    """The budget of some elements; `index` is a NumPy index that keeps them in an array."""
    shape = budget.expected.shape

    def cut(term: Any) -> Array:
        return np.broadcast_to(np.asarray(term, np.float64), shape)[index]

    replay = budget.replay and Replay(cut(budget.replay.centre), cut(budget.replay.radius))
    terms = {name: cut(term) for name, term in budget.terms.items()}
    centre, oracle = budget.expected[index], cut(budget.oracle)
    return Budget(centre, terms, budget.dtype, oracle, replay, budget.record)


def prescribed(budget: Budget) -> bool:
    """Whether the declared arithmetic leaves one possible value for every element."""
    return budget.replay is not None and not np.any(budget.replay.radius)


def same_bits(name: str, a: Array, b: Array, story: str) -> None:
    """Demand the same bits; raises Violation naming the first element that differs."""
    __tracebackhide__ = True
    if a.shape != b.shape or a.dtype != b.dtype:
        raise Violation(
            f"{name}: {a.dtype}{list(a.shape)} against {b.dtype}{list(b.shape)}: {story}"
        )
    bits = np.uint8 if a.size == 0 else np.dtype(f"u{a.dtype.itemsize}")
    x, y = np.ascontiguousarray(a).view(bits), np.ascontiguousarray(b).view(bits)
    differ = np.flatnonzero(x != y)
    if differ.size:
        at = np.unravel_index(int(differ[0]), a.shape)
        index = ", ".join(str(int(i)) for i in at)
        raise Violation(
            f"{name}[{index}] is {widen(a)[at]:.9g} and {widen(b)[at]:.9g}: {story}, bit for bit; "
            f"{differ.size} of {a.size} elements differ",
            output=name, wrong=int(differ.size), size=int(a.size),
        )  # fmt: skip


def within(name: str, difference: Array, limit: Array, story: str) -> None:
    """Demand |difference| <= limit elementwise; records the share of the limit that was used."""
    __tracebackhide__ = True
    limit = np.broadcast_to(np.asarray(limit, np.float64), difference.shape)
    if difference.size == 0:
        return
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(difference == 0, 0.0, np.abs(difference) / limit)
        share = np.where(np.isinf(limit), 0.0, np.where(np.isnan(share), np.inf, share))
    worst = int(np.argmax(share))
    ledger.spend(name, float(share.ravel()[worst]))
    if share.ravel()[worst] > 1:
        index = ", ".join(str(int(i)) for i in np.unravel_index(worst, share.shape))
        raise Violation(
            f"{name}[{index}]: {story}; off by {abs(difference.ravel()[worst]):.3e}, allowed "
            f"{limit.ravel()[worst]:.3e} (share {share.ravel()[worst]:.3g}); "
            f"{int((share > 1).sum())} of {share.size} elements",
            output=name, share=float(share.ravel()[worst]),
            wrong=int((share > 1).sum()), size=int(share.size),
        )  # fmt: skip


def same_value(
    name: str, a: Array, b: Array, budget: Budget, story: str, other: Budget | None = None
) -> None:
    """Demand that two calls with one exact result agree.

    budget: of a; other: of b, if it is not the same. Bit for bit where every rounding of both is
    declared; otherwise within the sum of what both may be off.
    """
    __tracebackhide__ = True
    other = other or budget
    if prescribed(budget) and prescribed(other):
        same_bits(name, a, b, story)
    else:
        difference = np.where(a == b, 0.0, widen(a) - widen(b))
        within(name, difference, reach(budget) + reach(other), story)
