"""What the exponentials of an attention row may be off, for a known schedule and for any.

The shift cancels between numerator and denominator, so no error of the running maximum enters a
weight; what enters is derived in docs/error-budgets.md, attention, sections weights and flush.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from tightrope.formats import Array
from tightrope.oracles.attention_numbers import FLOAT32, NORMAL, U, growth, half_ulp, rounded
from tightrope.oracles.attention_stages import Stages

ZERO = 2.0**-300  # an exponential below this is 0, flushed or not
ALPHA_NORMAL = 125.9  # exp2 of less than minus this may be below 2**-126


@dataclass(frozen=True)
class Start:
    """A state before the first key, (groups, rows): the sink's exact logit t and the error of it.

    shift: the maximum that the kernel starts from, slack: how far it may be from that.
    """

    t: Array
    error: Array
    shift: Array
    slack: Array


@dataclass(frozen=True)
class Schedule:
    """Running maxima of all rows; arrays (groups, rows, blocks).

    shift: the maximum as float32, -inf before the first visible key; error: how far the kernel's
    own may be. changed: whether it may have risen, alpha its rescale, alpha_error relative.
    later: argument errors of the rescales after a block; rescales: how many; gone: whether one of
    them may flush; underflow: like later, of exponentials that do not flush. start_eps (groups,
    rows): relative error of the state before the first key, None if there is none.
    """

    shift: Array
    error: Array
    changed: Array
    alpha: Array
    alpha_error: Array
    later: Array
    rescales: Array
    gone: Array
    underflow: Array
    start_eps: Array | None

    def part(self, blocks: slice) -> Schedule:
        cut = {
            f: getattr(self, f)[..., blocks] for f in self.__dataclass_fields__ if f[:5] != "start"
        }
        return replace(self, **cut)


def _nearest(x: Array, stages: Stages, outward: float) -> Array:
    """The float32 that a maximum is rounded to; for unknown logits, moved outward instead."""
    finite = np.isfinite(x)
    x0 = np.where(finite, x, 0.0)
    moved = rounded(x0) if stages.scaled else x0 + outward * 2 * U * np.abs(x0)
    return np.where(finite, moved, x)


def argument_error(size: Array, stages: Stages) -> Array:
    """Rounding of x = t - m; in base e the product with log2(e) is rounded as well."""
    return half_ulp(size) if stages.scaled else 2.5 * U * size + FLOAT32.tiny


def schedule(block_max: tuple[Array, Array, Array], stages: Stages, start: Start | None
             ) -> Schedule:  # fmt: skip
    """block_max: the maxima of t - e, t and t + e in each block, (groups, rows, blocks)."""
    low, middle, high = (
        _nearest(x, stages, side) for x, side in zip(block_max, (-1.0, 0.0, 1.0), strict=True)
    )
    nothing = np.full(low.shape[:2], -np.inf)
    shift, slack = (nothing, 0.0) if start is None else (start.shift, start.slack)
    lows, middles, highs = (
        np.maximum.accumulate(np.concatenate([first[..., None], x], -1), -1)
        for first, x in ((shift - slack, low), (shift, middle), (shift + slack, high))
    )
    with np.errstate(invalid="ignore"):
        errors = np.where(np.isfinite(middles), np.maximum(highs - middles, middles - lows), 0.0)
        changed = np.isfinite(lows[..., :-1]) & (high > lows[..., :-1])
        rise = np.where(changed, middles[..., 1:] - middles[..., :-1], 0.0)
    both = np.where(changed, errors[..., 1:] + errors[..., :-1], 0.0)
    far = rise + both
    moved = np.where(changed, argument_error(far, stages), 0.0)
    flushed = changed & (far > ALPHA_NORMAL) & stages.flush
    under = np.zeros(far.shape)
    if not stages.flush:  # subnormal results are off by ulps of the smallest of them
        under = np.where(far > ALPHA_NORMAL - 1, stages.exp_ulp * FLOAT32.tiny, 0.0)
        under = np.log1p(under * np.exp2(np.minimum(far, -math.log2(ZERO))))
    start_eps = None
    if start is not None:
        start_eps = growth(
            start.error + moved.sum(-1), changed.sum(-1) * math.log1p(stages.exp) + under.sum(-1)
        )
        start_eps = np.where(flushed.any(-1), np.maximum(start_eps, 1.0), start_eps)
    error = growth(both + moved, np.where(changed, np.log1p(stages.exp), 0.0) + under)
    return Schedule(
        shift=middles[..., 1:],
        error=errors[..., 1:],
        changed=changed,
        alpha=np.exp2(-rise),
        alpha_error=np.where(flushed, np.maximum(error, 1.0), error),
        later=_after(moved),
        rescales=_after(changed),
        gone=_after(flushed) > 0,
        underflow=_after(under),
        start_eps=start_eps,
    )


def _after(x: Array) -> Array:
    """Sums over all later blocks."""
    total = np.cumsum(np.asarray(x, np.float64)[..., ::-1], -1)[..., ::-1]
    return np.concatenate([total[..., 1:], np.zeros((*x.shape[:-1], 1))], -1)


@dataclass(frozen=True)
class Weights:
    """Of some keys, (groups, rows, keys): p = 2**(t - M), relative error eps, rounding rho of P.

    lost: the whole weight may be flushed to 0 (then eps >= 1). middle, radius: where the kernel's
    P lies, relative to its own shift; of a known schedule only.
    """

    p: Array
    eps: Array
    lost: Array
    rho: Array | None
    middle: Array
    radius: Array
    size: Array


def weights(t: Array, e: Array, top: Array, plan: Schedule, width: int, stages: Stages
            ) -> Weights:  # fmt: skip
    """Of t, e (groups, rows, blocks * width); top (groups, rows): the exact maximum, finite."""
    groups, rows, keys = t.shape
    tiles = t.reshape(groups, rows, -1, width)
    seen = tiles > -np.inf
    e = e.reshape(tiles.shape)
    shift, moved, later, rescales, gone, under = (
        x[..., None] for x in
        (plan.shift, plan.error, plan.later, plan.rescales, plan.gone, plan.underflow)
    )  # fmt: skip
    with np.errstate(invalid="ignore"):
        x = np.where(seen, tiles - shift, 0.0)
    argument = e + argument_error(np.abs(x) + e + moved, stages)
    once = math.log1p(stages.exp)
    eps = growth(argument + later, (1 + rescales) * once + under)
    here = growth(argument + moved, once)
    value = np.where(seen, np.exp2(x), 0.0)
    flushed, lost = seen & False, seen & gone
    if stages.flush:
        flushed = seen & (value * (1 - here) < NORMAL)
        lost = lost | flushed
    else:
        tiny = value < 4 * NORMAL  # off by ulps of the smallest number, not of the value
        small = np.where(tiny, stages.exp_ulp * FLOAT32.tiny / np.maximum(value, ZERO), 0.0)
        eps, here = eps + small * (1 + eps), here + small * (1 + here)
    eps = np.where(lost, np.maximum(eps, 1.0), eps)
    high = value * (1 + here)
    rho, middle, radius = _rounded_p(value, here, high, flushed, stages)
    with np.errstate(invalid="ignore"):
        p = np.where(seen, np.exp2(tiles - top[..., None, None]), 0.0)
    flat = (groups, rows, keys)
    return Weights(
        p.reshape(flat), eps.reshape(flat), lost.reshape(flat),
        None if rho is None else rho.reshape(flat),
        middle.reshape(flat), radius.reshape(flat), high.reshape(flat),
    )  # fmt: skip


def _rounded_p(value: Array, error: Array, high: Array, flushed: Array, stages: Stages
               ) -> tuple[Array | None, Array, Array]:  # fmt: skip
    """(rho, middle, radius): P as it enters the second product."""
    low = np.where(flushed, 0.0, value * np.maximum(1 - error, 0.0))
    if stages.p is None:
        return None, 0.5 * (low + high), 0.5 * (high - low)
    factor = 2.0 if stages.truncated else 1.0
    rho = factor * half_ulp(high, stages.p) / np.maximum(value, 1e-300)
    rho = np.minimum(rho, 1 + error)
    low, high = (rounded(x, stages.p, stages.truncated) for x in (low, high))
    return rho, 0.5 * (low + high), 0.5 * (high - low)
