"""The named terms of `out`, from what was summed over the keys."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tightrope.formats import Array
from tightrope.oracles.attention_numbers import TF32, half_ulp
from tightrope.oracles.attention_stages import Stages
from tightrope.oracles.attention_sums import Sums


@dataclass(frozen=True)
class Parts:
    """top, total, sink, sink_eps, shift_error (groups, rows): the exact maximum, the denominator
    relative to 2**top, the sink's weight in it and its relative error, how far the kernel's last
    shift may be off. accumulation, denominator: rounding errors of acc and l, divided by the
    denominator. quotient: the division's error where it is not one rounding of the result.
    """

    top: Array
    total: Array
    sums: Sums
    sink: Array
    sink_eps: Array
    shift_error: Array
    accumulation: Array
    denominator: Array
    quotient: Array | None

    def eps_sum(self, total: Array) -> Array:
        """sum w eps, the sink included."""
        eps = self.sums.exp.zeroth + self.sink * self.sink_eps
        if self.sums.flush is not None:
            eps = eps + self.sums.flush.zeroth
        return eps / total


def out_terms(parts: Parts, out: Array, total: Array, keys: int, stages: Stages
              ) -> dict[str, Array]:  # fmt: skip
    """Terms of out; total is the denominator with 1 for an empty row."""
    per = total[..., None]
    size = np.abs(out)
    terms = {"exponentials": parts.sums.exp.spread(out, keys) / per}
    if parts.sums.flush is not None:
        terms["flush"] = parts.sums.flush.spread(out, keys) / per
    if stages.p is not None:
        assert parts.sums.rounding is not None
        terms[f"P rounded to {stages.p.name}"] = parts.sums.rounding / per
    if stages.truncated:
        terms["V truncated to tf32"] = (2.0**-10 * parts.sums.size / per + TF32.tiny) * (
            1 + 2.0**-8
        )
    terms["accumulation"] = parts.accumulation
    terms["denominator"] = size * parts.denominator[..., None]
    if stages.sink != "none":
        terms["sink"] = size * (parts.sink * parts.sink_eps)[..., None] / per
    off = parts.eps_sum(total) + parts.denominator
    with np.errstate(invalid="ignore"):
        wider = np.where(off < 1, 1 / np.maximum(1 - off, 1e-300), np.inf)[..., None]
        terms = {name: np.where(term > 0, term * wider, 0.0) for name, term in terms.items()}
        before = sum(terms.values(), np.zeros(out.shape))
        last = 2 * stages.division * half_ulp(size + before)
    terms["division"] = last if parts.quotient is None else np.maximum(last, parts.quotient)
    return terms
