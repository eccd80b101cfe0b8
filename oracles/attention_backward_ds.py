"""What dS and P may be off, before and after they are rounded for the last products.

Derived in docs/error-budgets.md, attention_backward, sections dS and T1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tightrope.formats import Array, Format
from tightrope.oracles.attention_backward_stages import Stages
from tightrope.oracles.attention_backward_weights import Slope, Upstream, Weights
from tightrope.oracles.attention_numbers import (
    FLOAT32,
    NORMAL,
    U64,
    U,
    half_ulp,
    rounded,
)

DECIDED = 2.0**-50  # relative; more than float64 loses in the ends of an interval


@dataclass(frozen=True)
class Rounded:
    """P or dS as it is multiplied, (groups, m, n): within radius of centre; or, as the declared
    cast of float32 leaves it, within `open` of `near` (None where nothing is cast). lost: entries
    that may overflow."""

    centre: Array
    radius: Array
    near: Array | None
    open: Array
    lost: Array

    def turned(self) -> Rounded:
        near = None if self.near is None else self.near.swapaxes(-1, -2)
        rest = (self.centre, self.radius, self.open, self.lost)
        centre, radius, open_, lost = (x.swapaxes(-1, -2) for x in rest)
        return Rounded(centre, radius, near, open_, lost)


@dataclass(frozen=True)
class Gradient:
    """dS (groups, rows, keys). common: errors that all keys of a row share, as factors of k; alone:
    errors of single entries, >= 0; cast: dS as it is multiplied; own: of float64."""

    ds: Array
    common: dict[str, Array]
    alone: dict[str, Array]
    cast: Rounded
    own: Array
    lost_rows: Array


def gradient_of(w: Weights, up: Upstream, slope: Slope | None, stages: Stages, scale: float
                ) -> Gradient:  # fmt: skip
    """dS = P a g; the parts that a row shares leave the absolute value (B4)."""
    g = np.ones(()) if slope is None else slope.g
    e_g = np.zeros(()) if slope is None else slope.error
    size, more = np.abs(g) + e_g, 1 + w.common
    plain = w.p * up.a
    before = w.p * ((1 + w.total) * (up.entry + up.row) + w.total * np.abs(up.a))
    product = _product(np.abs(plain) + before, stages)
    if not stages.scaled:  # or P dP - P D
        product = product + 2 * _product(w.p * (1 + w.total) * up.apart / 2, stages)
    ds = plain * g
    whole = (before + product) * size + np.abs(plain) * e_g
    sloped = np.zeros(ds.shape) if slope is None else _product(np.abs(ds) + whole, stages)
    whole = whole + sloped
    cast, lost = _cast(np.abs(ds) + whole, stages, scale)
    lost = lost | ((np.abs(plain) + before) * (1 + 2.0**-20) >= FLOAT32.largest)
    common = {"lse": w.common * ds, "D": more * up.row * w.p * g}
    alone = {
        "exponentials": more * w.p * w.eps * (np.abs(up.a) + up.row) * size,
        "dP": more * w.p * (1 + w.eps) * up.entry * size,
        "dS": product * size + sloped,
    }
    if slope is not None:
        alone["softcap"] = (np.abs(plain) + more * up.row * w.p + before) * e_g
    if stages.ds is not None:
        alone[f"dS rounded to {stages.ds.name}"] = cast
    own = w.p * (w.own * np.abs(up.a) + (1 + w.own) * up.own) * np.abs(g) + 4 * U64 * np.abs(ds)
    own = own + (0.0 if slope is None else np.abs(plain) * slope.own)
    near, open_ = _replayed(ds, whole + 2 * own, stages.ds)
    return Gradient(
        ds, common, alone, Rounded(ds, whole + cast, near, open_, lost), own, w.lost | up.lost
    )


def _product(size: Array, stages: Stages) -> Array:
    """One product in float32, exactly 0 in a masked entry; a stranger may multiply in another
    order, and flush."""
    if stages.scaled:
        return np.where(size > 0, half_ulp(size), 0.0)
    least = NORMAL if stages.forward.flush else FLOAT32.tiny
    return np.where(size > 0, U * size + least, 0.0)


def _cast(size: Array, stages: Stages, scale: float) -> tuple[Array, Array]:
    """Rounding of dS, or of scale dS, and where it may overflow."""
    if stages.ds is None:
        return np.zeros(size.shape), np.zeros(size.shape, bool)
    lost = size * (1 + 2.0**-20) >= stages.ds.largest
    cast = half_ulp(size, stages.ds)
    if not stages.scaled and scale:
        lost = lost | (size * abs(scale) * (1 + 2.0**-20) >= stages.ds.largest)
        cast = np.maximum(cast, half_ulp(size * abs(scale), stages.ds) / abs(scale))
    return np.where(size > 0, np.where(lost, 0.0, np.minimum(cast, size)), 0.0), lost


def _replayed(x: Array, error: Array, fmt: Format | None) -> tuple[Array | None, Array]:
    """(middle, half the width) of what the cast of [x - error, x + error] may be."""
    if fmt is None:
        return None, np.zeros(x.shape)
    slack = error + DECIDED * np.abs(x)
    low, high = (np.clip(x + side * slack, -fmt.largest, fmt.largest) for side in (-1, 1))
    low, high = rounded(low, fmt), rounded(high, fmt)
    return (low + high) / 2, (high - low) / 2


def rounded_p(w: Weights, stages: Stages) -> tuple[Rounded, Array | None]:
    """P as dv has it, and what its cast may lose."""
    fmt, error = stages.forward.p, w.p * w.total
    if fmt is None:
        none = np.zeros(w.p.shape, bool)
        return Rounded(w.p, error, None, np.zeros(w.p.shape), none), None
    high = w.p + error
    lost = high * (1 + 2.0**-20) >= fmt.largest
    cast = np.where(high > 0, np.minimum(half_ulp(high, fmt), high), 0.0)
    slack = w.p * (w.total + 2 * w.own + DECIDED)
    low = np.where(w.flushed, 0.0, np.clip(w.p - slack, 0.0, fmt.largest))
    low = rounded(low, fmt)
    top = rounded(np.minimum(w.p + slack, fmt.largest), fmt)
    return Rounded(w.p, error + cast, (low + top) / 2, (top - low) / 2, lost), cast
