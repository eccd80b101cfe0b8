"""The named terms of `lse`. Derived in docs/error-budgets.md, attention, section lse."""

from __future__ import annotations

import numpy as np

from tightrope.formats import Array
from tightrope.oracles.attention_numbers import LN2, LN2_32, U64, U, half_ulp
from tightrope.oracles.attention_stages import Stages
from tightrope.oracles.attention_terms import Parts

FROM_LN2 = abs(LN2_32 / LN2 - 1) + 2 * U64


def lse_terms(parts: Parts, total: Array, own: Array, stages: Stages
              ) -> tuple[Array, dict[str, Array], Array]:  # fmt: skip
    """(lse, terms, bound on the float64 error), all (groups, rows)."""
    log2 = np.log2(total)
    lse = LN2 * (parts.top + log2)
    weights = parts.eps_sum(total)
    off = weights + parts.denominator
    with np.errstate(divide="ignore", invalid="ignore"):
        moved = np.where(off < 1, -np.log1p(-np.minimum(off, 1.0)), np.inf)
        summed = np.where(parts.denominator < 1, -np.log1p(-parts.denominator), np.inf)
        summed = np.minimum(summed, moved)
        before = np.where(np.isfinite(moved), moved - summed, np.inf)
    shift = parts.shift_error + half_ulp(parts.top)  # the kernel's l is relative to RN(M)
    log_size = np.abs(log2) + shift + moved / LN2
    args = (np.abs(parts.top) + parts.shift_error, log_size, np.abs(lse), moved, stages)
    forms = [f(*args) for name, f in FORMS.items() if stages.lse in (name, "any")]
    terms = {"weights": before, "denominator": summed}
    for name in forms[0]:
        terms[name] = np.max([form[name] for form in forms], axis=0)
    mine = own / np.maximum(1 - own, 0.5)
    mine = mine + 4 * U64 * (np.abs(parts.top) + np.abs(log2) + np.abs(lse)) + 8 * U64
    return lse, terms, mine


def _base2(top: Array, log_size: Array, lse: Array, moved: Array, stages: Stages
           ) -> dict[str, Array]:  # fmt: skip
    """fl(fl(m + log2 l) ln 2), the last rounding being that of lse."""
    log = 2 * stages.log * half_ulp(log_size)
    inner = (lse + moved) / LN2 + log
    add = half_ulp(inner)
    return {"logarithm": LN2 * log, "sum": LN2 * (add + FROM_LN2 * (inner + add))}


def _natural(top: Array, log_size: Array, lse: Array, moved: Array, stages: Stages
             ) -> dict[str, Array]:  # fmt: skip
    """fl(fl(max scale) + ln l): the exponent was shifted by another rounding of the maximum."""
    shift = 2 * U * top + half_ulp(top)
    return {
        "logarithm": 2 * stages.log * half_ulp(LN2 * log_size),
        "sum": LN2 * (shift + U * top) + half_ulp(LN2 * top),
    }


FORMS = {"base2": _base2, "natural": _natural}
