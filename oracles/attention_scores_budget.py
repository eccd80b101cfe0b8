"""From scores to base-2 logits: scale, softcap, bias and sink, and what each rounding costs.

A logit is t = log2(e) z, z the natural logit of the contract. Derived in docs/error-budgets.md,
attention, section logits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tightrope.formats import Array
from tightrope.oracles.attention_numbers import (
    FLOAT32,
    LN2,
    LOG2E,
    LOG2E_32,
    NORMAL,
    U64,
    U,
    growth,
    half_ulp,
)
from tightrope.oracles.attention_problem import Problem
from tightrope.oracles.attention_stages import Stages

FROM_LOG2E = abs(LOG2E_32 / LOG2E - 1) + 2 * U64
LARGE = 1e30  # stands for an error without bound where a formula needs a number


@dataclass(frozen=True)
class Logits:
    """Base-2 logits t, -inf where invisible, and errors, 0 where invisible.

    error: of the kernel's logit before the maximum is subtracted; own: of the float64 one.
    """

    t: Array
    error: Array
    own: Array


def logits(problem: Problem, centre: Array, error: Array, own: Array | float, stages: Stages,
           seen: Array, bias: Array | None) -> Logits:  # fmt: skip
    """Logits of some keys: centre, error, own of their scores; seen, bias as in Problem."""
    if problem.softcap is None and bias is None:
        t, e, mine = _plain(problem.softmax_scale, centre, error, own, stages)
    else:
        t, e, mine = _general(problem, centre, error, own, stages, bias)
    return Logits(np.where(seen, t, -np.inf), np.where(seen, e, 0.0), np.where(seen, mine, 0.0))


def smallest_factor(problem: Problem) -> float:
    """The least that `logits="any"` may multiply q or k with: the scale, or scale/softcap."""
    return abs(problem.softmax_scale) / max(problem.softcap or 1.0, 1.0)


def _plain(scale: float, s: Array, error: Array, own: Array | float, stages: Stages
           ) -> tuple[Array, Array, Array]:  # fmt: skip
    factor = scale * LOG2E
    constant = abs(float(np.float32(factor)) / factor - 1) + 4 * U64 if factor else 0.0
    t = s * factor
    size = np.abs(t)
    e = abs(factor) * (1 + 2 * U) * error + constant * size
    if not stages.scaled:  # a rounded constant, a rounded product, in base 2 or in base e
        e = e + 2.0 * U * (1 + 2 * U) * (size + abs(factor) * error) + FLOAT32.tiny
        e = e + _stored(size * LN2 + scale * error, stages)
    return t, e, abs(factor) * own + 4 * U64 * size


def _stored(size: Array, stages: Stages) -> Array | float:
    """A kernel that keeps scores in 16 bits may keep scaled scores in them too."""
    if stages.scores is None:
        return 0.0
    return np.where(size < stages.scores.largest, LOG2E * half_ulp(size, stages.scores), np.inf)


def _general(problem: Problem, s: Array, error: Array, own: Array | float, stages: Stages,
             bias: Array | None) -> tuple[Array, Array, Array]:  # fmt: skip
    if problem.softcap is None:
        z, e, mine = _times(s, problem.softmax_scale, error, own)
    else:
        z, e, mine = _capped(s, problem.softmax_scale, problem.softcap, error, own, stages)
    apart = np.abs(z)
    if bias is not None:
        z = z + bias
        e = e + half_ulp(np.abs(z) + e)
        mine = mine + U64 * np.abs(z)
        apart = apart + np.abs(bias)
    t = z * LOG2E
    size = np.abs(t)
    e2 = LOG2E * (1 + 2 * U) * e + FROM_LOG2E * size
    e2 = e2 + half_ulp(size * (1 + U) + 2 * e)
    if not stages.scaled:  # each part may be turned to base 2, and rounded there, before the sum
        e2 = e2 + 4 * U * (LOG2E * apart + 2 * e) + _stored(size * LN2 + e, stages)
        e2 = e2 + (_stored(apart + e, stages) if bias is not None else 0.0)
    return t, e2, LOG2E * mine + 4 * U64 * size


def _times(s: Array, scale: float, error: Array, own: Array | float
           ) -> tuple[Array, Array, Array]:  # fmt: skip
    """fl(S float32(scale)); a fused multiply-add with the bias loses less."""
    constant = abs(float(np.float32(scale)) / scale - 1) + 2 * U64 if scale else 0.0
    z = s * scale
    size = np.abs(z)
    e = abs(scale) * (1 + 2 * U) * error + constant * size
    e = e + half_ulp(size * (1 + constant) + abs(scale) * (1 + 2 * U) * error)
    return z, e, abs(scale) * own + 2 * U64 * size


def _capped(s: Array, scale: float, cap: float, error: Array, own: Array | float, stages: Stages
            ) -> tuple[Array, Array, Array]:  # fmt: skip
    """z = cap tanh(scale s / cap)."""
    y, e, mine = _times(s, scale / cap, error, own)
    tanh = np.tanh(y)
    moved = _tanh_by_exp(y, tanh, e, stages)
    if not stages.scaled:
        # or 2 sigmoid(2y) - 1, which is the same at -y; or the vendor's tanh, 2 ulp of RN(tanh)
        moved = np.maximum(moved, _tanh_by_exp(-y, tanh, e, stages))
        vendor = np.minimum((1 - tanh * tanh) * e + e * e, e)
        moved = np.maximum(moved, vendor + 5 * half_ulp(np.minimum(np.abs(tanh) + vendor, 2.0)))
    constant = abs(float(np.float32(cap)) / cap - 1) + 2 * U64
    moved = np.minimum(moved, 2.0)
    z = cap * tanh
    e = cap * (1 + constant) * moved + constant * np.abs(z)
    e = e + half_ulp(np.abs(z) + e)
    return z, e, cap * (np.minimum(mine, 2.0) + 8 * U64)


def _tanh_by_exp(y: Array, tanh: Array, error: Array, stages: Stages) -> Array:
    """tanh = 1 - 2/(exp2(2 log2(e) y) + 1): exponential, sum, quotient, difference."""
    x = np.clip(2 * LOG2E * y, -1000.0, 1000.0)
    e = 2 * LOG2E * error * (1 + 2 * U) + FROM_LOG2E * np.abs(x)
    e = e + half_ulp(np.abs(x) * (1 + U) + 3 * error)
    eps = growth(np.minimum(e, 900.0), np.log1p(stages.exp))
    value = np.exp2(x)
    one_more = 1 + value
    with np.errstate(over="ignore", invalid="ignore"):
        size = np.minimum(one_more * (1 + eps), LARGE)
        relative = (value * eps + half_ulp(size) + NORMAL) / one_more
    quotient = 2 / one_more
    lost = np.where(relative < 0.5, quotient * relative / (1 - np.minimum(relative, 0.5)), 2.0)
    lost = lost + 2 * stages.division * half_ulp(np.minimum(quotient + lost, 2.0))
    # the exponential may overflow and the quotient be 0, or the divisor be past 2**126
    lost = np.where(x + e > 125.9, np.maximum(lost, 2 * quotient + NORMAL), lost)
    return np.minimum(lost + half_ulp(np.minimum(np.abs(tanh) + lost, 1.0)), 2.0)


def sink_logit(sink: Array, stages: Stages) -> tuple[Array, Array]:
    """The sink's base-2 logit and the error of fl(sink log2(e)); shapes (groups, 1)."""
    t = (sink * LOG2E)[:, None]
    size = np.abs(t)
    error = FROM_LOG2E * size + half_ulp(size * (1 + U))
    return t, error + (0.0 if stages.scaled else 2 * U * size)
