"""What adding up P^T dout, dS k and dS^T q may cost: any order, or the Hopper tensor core's.

Derived in docs/error-budgets.md, attention_backward, section sums.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tightrope.formats import Array
from tightrope.oracles.attention_backward_stages import Stages
from tightrope.oracles.attention_dots import KEPT, STEP, TRUNCATED, largest_product
from tightrope.oracles.attention_numbers import FLOAT32, NORMAL, gamma, power


def joined(x: Array, group: int, axis: int) -> Array:
    """The heads of a group one behind the other along `axis`, each padded to whole steps."""
    short = -x.shape[axis] % STEP
    pad = [(0, 0)] * x.ndim
    pad[axis] = (0, short)
    x = np.pad(x, pad)
    heads = x.reshape(len(x) // group, group, *x.shape[1:])
    return np.concatenate([heads[:, i] for i in range(group)], axis=axis)


def added(
    centre: Array, radius: Array, right: Array, group: int, stages: Stages,
    off: Array | float = 0.0,
) -> Array:  # fmt: skip
    """A bound on the rounding of (centre +- radius) @ (right +- off), summed over a group's heads.

    centre, radius (groups, m, n); right, off (groups, n, w). Infinite where the sum may overflow.
    """
    off = joined(np.broadcast_to(off, right.shape), group, 1)
    left, reach, right = joined(centre, group, 2), joined(radius, group, 2), joined(right, group, 1)
    largest = np.abs(left) + reach
    size = largest @ (np.abs(right) + off)
    if stages.forward.mma:
        error = _chained(left, reach, right, off, stages)
    else:
        count = (largest > 0).sum(-1)[..., None]
        rounds = stages.forward.addition * count
        widened = stages.forward.p is None or stages.ds is None  # products of a float32 are rounded
        if stages.forward.io is not FLOAT32:
            rounds = rounds * ((count > 1) | widened)
        least = 2 * (count + 1) * NORMAL if stages.forward.flush and not stages.scaled else 0.0
        error = gamma(rounds) * size + count * FLOAT32.tiny + least * (count > 0)
    return np.where(size * (1 + 2.0**-10) < FLOAT32.largest, error, np.inf)


def _chained(left: Array, reach: Array, right: Array, off: Array, stages: Stages) -> Array:
    """(F3) of attention: 16 products a step, cut at 25 bits below the largest, then truncated."""
    shape = (*left.shape[:-1], right.shape[-1])
    total, radius, error = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    used: Any = np.zeros((*left.shape[:-1], 1), bool)
    size = np.abs(left) + reach
    for start in range(0, left.shape[-1], STEP):
        at, some = slice(start, start + STEP), size[..., start : start + STEP]
        count = (some > 0).sum(-1)[..., None]
        apart = np.abs(right[:, at]) + off[:, at]
        largest = largest_product(some, apart, stages.forward.io)
        largest = np.maximum(largest, power(np.abs(total) + radius + error) * used)
        error = error + (count > 0) * (count + used) * KEPT * largest
        total = total + left[..., at] @ right[:, at]
        radius = radius + reach[..., at] @ apart + np.abs(left[..., at]) @ off[:, at]
        after = np.maximum(power(np.abs(total) + radius + error) * TRUNCATED, FLOAT32.tiny)
        error = error + (count > 0) * after
        used = used | (count > 0)
    return error
