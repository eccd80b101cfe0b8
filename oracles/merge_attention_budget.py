"""The error budget of `merge_attention`; derived in docs/error-budgets.md, section merge_attention.

Weights are those of the largest state's: a_i = exp(lse_i - max). `off` bounds what a computed
weight is off, so that a weight below 2**-126 may be lost whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tightrope.arithmetic import Arithmetic
from tightrope.budget import Budget
from tightrope.formats import Array
from tightrope.oracles.attention_numbers import (
    FLOAT32,
    LN2,
    LN2_32,
    LOG2E,
    LOG2E_32,
    NORMAL,
    OUTWARD,
    U64,
    U,
    gamma,
    half_ulp,
    rounded,
)
from tightrope.oracles.merge_attention_pairs import pairwise
from tightrope.oracles.merge_attention_states import States

STAGES: dict[str, Any] = {
    "form": "any",
    "order": "any",
    "exp_ulp": 2.5,
    "exp_flush": True,
    "division_ulp": 2.5,
    "log_ulp": 1.0,
}
"""What a stranger is granted. form: "division" (acc / sum), "normalised" (weights / sum first),
"direct" (weights exp(lse_i - lse)) or "any" of them; order: "once" (all states at a time) or "any"
(also two by two, in a chain or a tree). Ulps are of float32, the rounding included.
"""

FORMS = ("division", "normalised", "direct")
FROM_LOG2E = abs(LOG2E_32 / LOG2E - 1) + 2 * U64
FROM_LN2 = abs(LN2_32 / LN2 - 1) + 2 * U64
Terms = dict[str, Array]


@dataclass(frozen=True)
class Rounding:
    """Stages as numbers: exp is the relative error of one exponential."""

    forms: tuple[str, ...]
    once: bool
    exp: float
    flush: bool
    division: float
    log: float

    @classmethod
    def of(cls, arithmetic: Mapping[str, Any]) -> Rounding:
        """Raises ValueError, naming the stage, for a value that means nothing here."""
        given = {**STAGES, **arithmetic}
        choices = {"form": ("any", *FORMS), "order": ("any", "once"), "exp_flush": (True, False)}
        for stage, known in choices.items():
            if given[stage] not in known:
                told = ", ".join(map(repr, known))
                raise ValueError(f"merge_attention: {stage}={given[stage]!r}; known: {told}")
        for stage in ("exp_ulp", "division_ulp", "log_ulp"):
            if not 0.5 <= given[stage] < 2.0**20:
                raise ValueError(f"merge_attention: {stage}={given[stage]!r} must be at least 0.5")
        forms = FORMS if given["form"] == "any" else (given["form"],)
        return cls(
            forms, given["order"] == "once", 2 * given["exp_ulp"] * U, given["exp_flush"],
            given["division_ulp"], given["log_ulp"],
        )  # fmt: skip

    @property
    def least(self) -> float:
        """What one operation may lose by underflow."""
        return NORMAL if self.flush else FLOAT32.tiny


def budget(
    case: Any, inputs: Mapping[str, Array], arithmetic: Arithmetic
) -> dict[str, Budget]:  # fmt: skip
    """Budgets of out (rows, num_heads, head_dim) and lse (rows, num_heads).

    Raises ValueError for a stage value that has no budget.
    """
    at, how = States.of(inputs), Rounding.of(arithmetic)
    shape = inputs["lses"].shape[1:]
    found = list(_ways(at, how))
    single = at.count <= 1  # nothing to compute: one live state comes out as it is
    out, lse = ({n: np.max([w[i][n] for w in found], 0) for n in found[0][i]} for i in (0, 1))
    out = {n: np.where(single[:, None], 0.0, _certain(x)) for n, x in out.items()}
    lse = {n: np.where(single, 0.0, _certain(x)) for n, x in lse.items()}
    own_out, own_lse = at.own()
    wide = (*shape, at.out.shape[-1])
    return {
        "out": Budget(
            at.out.reshape(wide), {n: x.reshape(wide) for n, x in out.items()}, "float32",
            own_out.reshape(wide),
        ),
        "lse": Budget(
            at.lse.reshape(shape), {n: x.reshape(shape) for n, x in lse.items()}, "float32",
            own_lse.reshape(shape),
        ),
    }  # fmt: skip


def _certain(term: Array) -> Array:
    return np.where(np.isnan(term), np.inf, term * OUTWARD)


def _ways(at: States, how: Rounding) -> Iterator[tuple[Terms, Terms]]:
    """Terms of out and lse for every way that the arithmetic admits."""
    off, lost = weight_errors(at.gap, np.zeros(at.gap.shape), at.live, how)
    lse, error = _lse(at, off, lost, how)
    for form in how.forms:
        if form == "direct":
            yield _direct(at, error, how), lse
        else:
            yield _divided(at, off, lost, form == "normalised", how), lse
    if not how.once and (at.count > 2).any():
        yield pairwise(at, how, lse)


def weight_errors(gap: Array, moved: Array, live: Array, how: Rounding) -> tuple[Array, Array]:
    """(off, lost) of weights exp(-gap) from differences that are off by `moved` already.

    The difference is rounded, multiplied with log2(e), rounded again; lost: what may be flushed.
    """
    far = gap + moved
    exactly = (moved == 0) & (rounded(gap) == gap)
    apart = np.where(exactly, 0.0, half_ulp(far))
    x = (far + apart) * LOG2E
    argument = moved + apart + LN2 * (FROM_LOG2E * x + half_ulp(x * (1 + FROM_LOG2E)))
    argument = argument + np.log1p(how.exp)
    weight = np.exp(-gap)
    with np.errstate(over="ignore"):
        off = np.where(
            argument < 1, weight * np.expm1(np.minimum(argument, 1.0)),
            np.exp(np.minimum(argument - gap, 700.0)),
        )  # fmt: skip
    off = np.where(far == 0, 0.0, off)  # exp(0) is 1
    if how.flush:
        lost = np.where(weight - off < NORMAL, np.maximum(weight, off), 0.0)
    else:
        lost = np.zeros(gap.shape)
        off = off + np.where(weight < 4 * NORMAL, how.exp / U * FLOAT32.tiny, 0.0)
    return np.where(live & (lost == 0), off, 0.0), np.where(live, lost, 0.0)


def overflow(size: Array) -> Array:
    """Where a sum of products whose magnitudes add up to `size` may leave float32."""
    return ~(size * (1 + 2.0**-10) < FLOAT32.largest)


def _denominator(at: States, off: Array, lost: Array) -> tuple[Array, Array]:
    """(what its weights are off, what its additions lose), relative to the exact one."""
    weights = (off + lost).sum(0) / at.total
    ones = (at.gap == 0).all(0)  # a sum of ones is exact
    return weights, np.where(ones, 0.0, gamma(at.count - 1.0) * (1 + weights))


def _divided(
    at: States, off: Array, lost: Array, normalised: bool, how: Rounding
) -> Terms:  # fmt: skip
    """sum a_i out_i / sum a_i, or sum (a_i / sum a_i) out_i."""
    weights, summed = _denominator(at, off, lost)
    left = 1 - weights - summed
    with np.errstate(divide="ignore"):
        per = np.where(left > 0, 1 / np.maximum(left, 1e-300), np.inf)[:, None]
    share = (at.weight + off + lost) / at.total
    size = np.abs(at.out)
    beyond = overflow(at.weighed(share if normalised else at.weight + off + lost))
    rounds = gamma(np.where(at.gap == 0, at.count - 1.0, at.count) + normalised)
    with np.errstate(invalid="ignore"):
        terms = {
            "weights": at.around(off / at.total) * per,
            "flush": at.around(lost / at.total) * per,
            "sum": (at.weighed(share * rounds) + 2 * len(share) * how.least) * per,
            "denominator": size * summed[:, None] * per,
        }
        if normalised:
            terms["division"] = 2 * how.division * U * at.weighed(share) * per
            terms["division"] = terms["division"] + at.weighed(how.least * at.live)
        else:
            before = sum(terms.values(), np.zeros(size.shape))
            terms["division"] = 2 * how.division * half_ulp(size + before)
    return {name: np.where(beyond, np.inf, term) for name, term in terms.items()}


def _direct(at: States, error: Array, how: Rounding) -> Terms:
    """sum exp(lse_i - lse) out_i, with an lse that is off by `error`."""
    moved = np.broadcast_to(error, at.gap.shape)
    log = np.log(at.total)
    off, lost = weight_errors(at.gap + log, moved, at.live, how)
    share = at.weight / at.total + off + lost
    count = at.count.astype(np.float64)
    with np.errstate(invalid="ignore"):
        total = at.weighed(share * gamma(count)) + 2 * len(share) * how.least
        return {
            "weights": at.weighed(off),
            "flush": at.weighed(lost),
            "sum": np.where(overflow(at.weighed(share)), np.inf, total),
            "denominator": np.zeros(at.out.shape),
            "division": np.zeros(at.out.shape),
        }


def _lse(at: States, off: Array, lost: Array, how: Rounding) -> tuple[Terms, Array]:
    """Terms of lse before its last rounding, and how far the rounded lse may be off."""
    weights, summed = _denominator(at, off, lost)
    log = np.log(at.total)
    with np.errstate(divide="ignore", invalid="ignore"):
        moved = np.where(weights + summed < 1, -np.log1p(-(weights + summed)), np.inf)
        alone = np.where(summed < 1, -np.log1p(-np.minimum(summed, 1.0)), np.inf)
        before = np.where(np.isfinite(moved), moved - np.minimum(alone, moved), np.inf)
    terms = {"weights": before, "denominator": alone, "logarithm": logarithm(log + moved, how)}
    error = sum(terms.values(), np.zeros(log.shape))
    return terms, _stored(at, log, error)


def logarithm(size: Array, how: Rounding) -> Array:
    """ln of a sum, or log2 of it times ln 2."""
    size = np.where(np.isfinite(size), size, 0.0)
    natural = 2 * how.log * half_ulp(size)
    two = 2 * how.log * half_ulp(size / LN2)
    two = LN2 * two + FROM_LN2 * (size + LN2 * two)
    return np.maximum(natural, two + half_ulp(size + two))


def _stored(at: States, log: Array, error: Array) -> Array:
    """What lse is off after its rounding: to float32 the computed one lies between two numbers.

    A sum far below half an ulp of the largest lse vanishes in it, and that is no error of h(lse).
    """
    sure = np.where(np.isfinite(error), error, 0.0)
    ends = [rounded(at.top + (log + side * sure)) - at.top - log for side in (-1.0, 1.0)]
    far = np.max(np.abs(ends), axis=0) + 4 * U64 * (np.abs(at.top) + log)
    far = np.where(at.top + (log + sure) == at.top, log, far)
    return np.where(np.isfinite(error), np.where(at.count > 1, far, 0.0), np.inf)
