"""Gradients of points: dS times points that are off themselves, added up, before the scale.

Derived in docs/error-budgets.md, section pope_attention_backward, gradients of points.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tightrope.formats import Array
from tightrope.oracles.attention_backward_budget import Product, Terms, underflow
from tightrope.oracles.attention_backward_problem import over_the_group
from tightrope.oracles.attention_backward_sums import added
from tightrope.oracles.attention_features import Features
from tightrope.oracles.attention_numbers import U64, U, half_ulp
from tightrope.oracles.pope_attention_backward_stages import Way


@dataclass(frozen=True)
class Sum:
    """Gradients of points, (groups, length, 2 rotary_dim + plain). size: what the absolute products
    add up to; own: of float64; near, open: where prescribed roundings leave it, None if nothing is
    prescribed; lost: elements of which nothing is promised."""

    centre: Array
    terms: Terms
    size: Array
    own: Array
    lost: Array
    near: Array | None = None
    open: Array | None = None

    def at(self, index: slice) -> Sum:
        """Some of the features."""
        terms = {name: x[..., index] for name, x in self.terms.items()}
        rest = (self.centre, self.size, self.own, self.lost, self.near, self.open)
        centre, size, own, lost, near, open_ = (None if x is None else x[..., index] for x in rest)
        return Sum(centre, terms, size, own, lost, near, open_)  # type: ignore[arg-type]


def known(p: Product) -> Product:
    """The same; what no cast decides lies anywhere within its error."""
    if p.left.near is not None:
        return p
    return replace(p, left=replace(p.left, near=p.left.centre, open=p.left.radius))


def summed(p: Product, again: Product | None, points: Features, way: Way, scale: float) -> Sum:
    """The sums of a product; again: the product replayed; points: what dS is multiplied with."""
    left, group, stages = p.left, p.group, way.products
    size = np.abs(left.centre) + left.radius
    whole = size @ (np.abs(p.right) + points.error)
    terms = {**p.terms, "points": over_the_group(size @ points.error, group)}
    terms["accumulation"] = added(left.centre, left.radius, p.right, group, stages, points.error)
    if not stages.scaled:
        lost = over_the_group(underflow(p, stages), group) / abs(scale)
        terms["accumulation"] = terms["accumulation"] + lost
    apart = stages.apart and group > 1
    if apart:
        before = sum(terms.values(), np.zeros(p.centre.shape))
        stored = half_ulp(abs(scale) * whole * (1 + 2.0**-10), way.stages.forward.io) / abs(scale)
        terms["heads apart"] = over_the_group(stored, group) + group * U * before
    own = p.own + over_the_group(np.abs(left.centre) @ points.own, group)
    whole = over_the_group(whole, group)
    found = Sum(p.centre, terms, whole, own + 4 * U64 * whole, p.lost)
    if again is None or apart:
        return found
    near, open_ = _replayed(again, points, way)
    return replace(found, near=near, open=open_)


def _replayed(p: Product, points: Features, way: Way) -> tuple[Array, Array]:
    """The product of what the declared casts leave of dS, and of points."""
    near, open_ = p.left.near, p.left.open
    assert near is not None
    off = open_ @ np.abs(p.right) + (np.abs(near) + open_) @ points.open
    off = over_the_group(off, p.group)
    off = off + added(near, open_, p.right, p.group, way.products, points.open)
    centre = over_the_group(near @ p.right, p.group)
    return centre, np.where(p.lost, np.inf, off)
