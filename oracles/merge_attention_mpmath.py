"""`merge_attention` in mpmath: states folded in one after the other. For tests only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mpmath

from tightrope.formats import Array
from tightrope.oracles.attention_mpmath import DIGITS, numbers


def merge_attention(case: Any, inputs: Mapping[str, Array]) -> dict[str, list[Any]]:
    """ "out" (..., head_dim) and "lse" (...), flat in C order; 0 and -inf where no state is live.

    Two states a, b give lse = a + ln(1 + e^(b - a)) and out = out_a + (out_b - out_a) e^(b - lse):
    no sum over all states ever stands there.
    """
    outs, lses = inputs["outs"], inputs["lses"]
    splits, head_dim = outs.shape[0], outs.shape[-1]
    outs, lses = outs.reshape(splits, -1, head_dim), lses.reshape(splits, -1)
    result: dict[str, list[Any]] = {"out": [], "lse": []}
    with mpmath.workdps(DIGITS):
        for place in range(lses.shape[1]):
            out, lse = [mpmath.mpf(0)] * head_dim, -mpmath.inf
            for split in range(splits):
                if float(lses[split, place]) != -float("inf"):
                    other = mpmath.mpf(float(lses[split, place]))
                    out, lse = _folded(out, lse, numbers(outs[split, place]), other)
            result["out"] += out
            result["lse"].append(lse)
    return result


def _folded(out: list[Any], lse: Any, more: list[Any], other: Any) -> tuple[list[Any], Any]:
    if lse == -mpmath.inf:
        return more, other
    total = max(lse, other) + mpmath.log1p(mpmath.exp(-abs(other - lse)))
    share = mpmath.exp(other - total)
    return [x + (y - x) * share for x, y in zip(out, more, strict=True)], total
