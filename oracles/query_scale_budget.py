"""The error budget of query_scale, term by term. Derivation, equations: docs/error-budgets.md."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from tightrope.arithmetic import Arithmetic
from tightrope.budget import Budget
from tightrope.formats import FORMATS, Array, Format

# What an unknown kernel is granted: float32 throughout, as the models' own code has it, with logf
# within 1 ulp of correctly rounded and so 1.5 of exact (CUDA C++ Programming Guide, Mathematical
# Functions; log1pf the same).
STAGES: Mapping[str, Any] = {
    "position": "float32",  # of position, and of position + shift; "exact" or a format
    "quotient": "float32",  # of that and floor_scale, before the floor; "exact" or a format
    "log": "float32",  # 1 + floor, its logarithm, attn_scale, their product and the sum
    "log_ulp": 1.5,  # of the logarithm, in ulps of that format
}
EXPECTED = 2.0**-50  # relative, of the float64 expressions here


def budget(case: Any, inputs: Mapping[str, Array], arithmetic: Arithmetic) -> dict[str, Budget]:
    """The budget of scale, (tokens,)."""
    tokens = [int(m) + case.shift for m in inputs["positions"].ravel()]
    whole = [t // case.floor_scale for t in tokens]
    log = np.log(1 + np.array(whole, np.float64))
    x, work = 1 + case.attn_scale * log, FORMATS[arithmetic["log"]]
    terms, reach = {}, log
    if {arithmetic["position"], arithmetic["quotient"]} != {"exact"}:
        ends = np.array([_floors(t, case, arithmetic) for t in tokens], np.float64).reshape(-1, 2)
        moved = np.abs(np.log((1 + ends) / (1 + np.array(whole, np.float64))[:, None]))
        terms["floor of a rounded quotient"] = case.attn_scale * moved.max(1, initial=0.0)
        reach = np.log(1 + ends[:, 1])
    terms |= _logarithm(case, reach, work, arithmetic["log_ulp"])
    if work.name != case.dtype:
        largest = 1 + case.attn_scale * reach + sum(terms.values())
        rounded = np.where(reach == 0, 0.0, work.half_ulp(largest))
        terms[f"sum rounded to {work.name}"] = rounded
    own = np.where(log == 0, 0.0, EXPECTED * x)
    return {"scale": Budget(x, terms, case.dtype, oracle=own)}


def _logarithm(case: Any, log: Array, work: Format, ulps: float) -> dict[str, Array]:
    """Terms of attn_scale ln(1 + floor), 0 where the logarithm is that of 1."""
    a, some = case.attn_scale, log > 0
    argument = 2 * work.unit * (np.exp(log) > 1 / work.unit)  # 1 + floor is held below 2^p
    log_error = np.where(some, ulps * work.ulp(log + argument) + argument, 0.0)
    factor = float(abs(work.round_fraction(Fraction(a)) - a))
    product = work.half_ulp((a + factor) * (log + log_error))
    return {
        f"logarithm within {ulps:g} ulp of {work.name}": (a + factor) * log_error,
        f"attn_scale rounded to {work.name}": factor * log,
        f"product rounded to {work.name}": np.where(some, product, 0.0),
    }


def _floors(tokens: int, case: Any, arithmetic: Arithmetic) -> tuple[int, int]:
    """The smallest and the largest floor that the roundings before it may give."""
    off = _off(tokens, case.shift, arithmetic["position"])
    ends = []
    for near in (tokens - off, tokens + off):
        quotient = near / case.floor_scale
        if arithmetic["quotient"] != "exact":  # rounding is monotone, so that ends stay ends
            quotient = Fraction(FORMATS[arithmetic["quotient"]].round_fraction(quotient))
        ends.append(max(int(quotient // 1), 0))
    return ends[0], ends[1]


def _off(tokens: int, shift: int, position: str) -> Fraction:
    """A bound on the error of position + shift, both rounded."""
    if position == "exact":
        return Fraction(0)
    fmt, m = FORMATS[position], tokens - shift
    off = Fraction(0) if _holds(fmt, m) else Fraction(float(fmt.half_ulp(m)))
    if shift and (off or not _holds(fmt, tokens)):
        off += Fraction(float(fmt.half_ulp(tokens + float(off))))
    return off


def _holds(fmt: Format, whole: int) -> bool:
    return fmt.round_fraction(Fraction(whole)) == whole
