"""Merging two states at a time, in any order: a bound for every chain and every tree.

Derived in docs/error-budgets.md, section merge_attention, pairs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tightrope.formats import Array
from tightrope.oracles.attention_numbers import LN2, LOG2E, LOG2E_32, NORMAL, U, half_ulp
from tightrope.oracles.merge_attention_states import States

if TYPE_CHECKING:
    from tightrope.oracles.merge_attention_budget import Rounding, Terms

SLOPE = (2 * U + abs(LOG2E_32 / LOG2E - 1)) * (1 + 2.0**-20)  # of an exponent, per nat of gap


def pairwise(at: States, how: Rounding, once: Terms) -> tuple[Terms, Terms]:
    """Terms of out and lse; once: the terms of lse for all states at a time, whose names it uses.

    A state passes at most n - 1 merges on its way into the result; its gaps there add up to no more
    than lse - lse_i, and an lse that is merged is off by what its own merges lost.
    """
    from tightrope.oracles.merge_attention_budget import logarithm, overflow

    merges = np.maximum(at.count - 1.0, 0.0)
    log = np.log(at.total)
    smaller = how.exp + SLOPE + 2 * NORMAL  # share times error of the smaller of two states
    inner = -np.log1p(-(smaller + U)) + logarithm(np.full(log.shape, LN2), how)
    top = np.where(at.live, np.abs(at.top - at.gap), 0.0).max(0) + log
    rho = inner + half_ulp(top + merges * inner)
    passed = merges * (merges - 1) / 2 * rho
    passed = np.where(passed < 0.5, passed, np.inf)  # `smaller` holds for less than ln 2
    reach = at.gap + log + passed
    moved = SLOPE * reach + merges * (np.log1p(how.exp) + smaller) + passed
    share = at.weight / at.total
    with np.errstate(over="ignore"):
        off = np.where(
            moved < 1, share * np.expm1(np.minimum(moved, 1.0)),
            np.exp(np.minimum(moved - at.gap - log, 700.0)),
        )  # fmt: skip
    gone = at.live & ((reach + moved > 125.9 * LN2) | (share < NORMAL))
    lost = np.where(gone, np.maximum(share, off), 0.0)
    off = np.where(at.live & ~gone, off, 0.0)
    lse = _of_lse(once, merges, inner, rho)
    terms = _of_out(at, share + off + lost, off, lost, merges, rho, how)
    # two states, each with a weight of up to 1 before a node divides, or two shares of 1
    beyond = overflow((1 if how.forms == ("direct",) else 2) * np.abs(at.outs).max(0, initial=0.0))
    terms["sum"] = np.where(beyond, np.inf, terms["sum"])
    return terms, lse


def _of_lse(once: Terms, merges: Array, inner: Array, rho: Array) -> Terms:
    terms = {name: np.zeros(rho.shape) for name in once}
    terms["weights"] = np.maximum(merges - 1, 0.0) * rho + inner
    return terms


def _of_out(
    at: States, share: Array, off: Array, lost: Array, merges: Array, rho: Array, how: Rounding
) -> Terms:
    """Each merge rounds two products, their sum, the denominator and the quotient."""
    quotient = 2 * how.division * U if set(how.forms) != {"direct"} else 0.0
    through = 3 * U + np.maximum(quotient, rho if "direct" in how.forms else 0.0)
    grown = np.expm1(np.minimum(merges * through, 700.0))
    zero = np.zeros(at.out.shape)

    def moved(a: Array) -> Array:
        """Errors of weights that are divided by their sum cancel for equal outs, others do not."""
        ways = [at.weighed(a)] if "direct" in how.forms else []
        return np.max([*ways, at.around(a)] if how.forms != ("direct",) else ways, 0)

    with np.errstate(invalid="ignore", over="ignore"):
        return {
            "weights": moved(off),
            "flush": moved(lost),
            "sum": at.weighed(share * grown) + 6 * len(share) * how.least,
            "denominator": zero,
            "division": zero,
        }
