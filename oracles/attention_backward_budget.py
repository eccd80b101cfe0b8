"""The error budget of attention's backward pass: worst case (T0) and replayed casts (T1).

Derived in docs/error-budgets.md, section attention_backward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tightrope.budget import Budget, Replay
from tightrope.formats import Array, Format
from tightrope.oracles.attention_backward_ds import Gradient, Rounded, gradient_of, rounded_p
from tightrope.oracles.attention_backward_problem import Backward, over_the_group
from tightrope.oracles.attention_backward_stages import STAGES, Stages
from tightrope.oracles.attention_backward_sums import added
from tightrope.oracles.attention_backward_weights import (
    Weights,
    slope_of,
    state_of,
    upstream_of,
    weights_of,
)
from tightrope.oracles.attention_dots import Scores
from tightrope.oracles.attention_numbers import FLOAT32, NORMAL, OUTWARD, U64, U, half_ulp

__all__ = ["STAGES", "backward"]

Terms = dict[str, Array]


@dataclass(frozen=True)
class Product:
    """One of the three products before its budget: centre, named terms, what P or dS may be once
    rounded, the right operand, float64's own error, elements of which nothing is promised."""

    centre: Array
    terms: Terms
    left: Rounded
    right: Array
    group: int
    own: Array
    lost: Array


def backward(b: Backward, arithmetic: Mapping[str, Any]) -> dict[str, Budget]:
    """Budgets of dq (groups, seqlen_q, head_dim), dk, dv (kv groups, seqlen_k, ..).

    Raises ValueError, naming the stage, for a value that has no budget.
    """
    stages, scale = Stages.of(b.forward, arithmetic), b.forward.softmax_scale
    w, g = weighed(b, stages)
    each = (of_queries(b, g), scale), (of_keys(b, g), scale), (of_values(b, w, g, stages), None)
    found = (finished(p, b, stages, factor, p) for p, factor in each)
    return dict(zip(("dq", "dk", "dv"), found, strict=True))


def weighed(b: Backward, stages: Stages, scores: Scores | None = None
            ) -> tuple[Weights, Gradient]:  # fmt: skip
    """P and dS. scores: instead of those of q and k, for operations that form q and k."""
    state = state_of(b, stages, scores)
    w = weights_of(b, state, stages, scores)
    up, slope = upstream_of(b, w, state, stages), slope_of(b, w, stages)
    return w, gradient_of(w, up, slope, stages, b.forward.softmax_scale)


def of_queries(b: Backward, g: Gradient) -> Product:
    """dq before the scale."""
    k, size = b.forward.k, np.abs(b.forward.k)
    terms = {name: np.abs(x @ k) for name, x in g.common.items()}
    terms |= {name: x @ size for name, x in g.alone.items()}
    count = b.forward.visible.sum(-1, keepdims=True)
    own = (g.own + (count + 6) * U64 * np.abs(g.ds)) @ size
    lost = (g.lost_rows | g.cast.lost.any(-1))[..., None]
    return Product(g.ds @ k, terms, g.cast, k, 1, own, np.broadcast_to(lost, own.shape))


def of_keys(b: Backward, g: Gradient) -> Product:
    """dk before the scale."""
    q, size = b.forward.q, np.abs(b.forward.q)
    every = {name: np.abs(x) for name, x in g.common.items()}
    for name, x in g.alone.items():
        every[name] = every.get(name, 0.0) + x
    terms = {name: over_the_group(_t(x) @ size, b.group) for name, x in every.items()}
    count = b.group * b.forward.visible.sum(-2)[..., None] + 6
    own = over_the_group(_t(g.own) @ size + count * U64 * (_t(np.abs(g.ds)) @ size), b.group)
    lost = (b.forward.visible & g.lost_rows[..., None]) | g.cast.lost
    lost = over_the_group(lost.any(-2)[..., None], b.group) > 0
    centre = over_the_group(_t(g.ds) @ q, b.group)
    left = g.cast.turned()
    return Product(centre, terms, left, q, b.group, own, np.broadcast_to(lost, own.shape))


def of_values(b: Backward, w: Weights, g: Gradient, stages: Stages) -> Product:
    """dv, which is P^T dout."""
    size = np.abs(b.dout)
    left, cast = rounded_p(w, stages)
    errors = {
        "exponentials": np.where(w.flushed, 0.0, w.p * w.eps),
        "lse": np.where(w.flushed, 0.0, w.p * (w.total - w.eps)),
    }
    if w.flushed.any():
        errors["flush"] = np.where(w.flushed, w.p * w.total, 0.0)
    if cast is not None and stages.forward.p is not None:
        errors[f"P rounded to {stages.forward.p.name}"] = cast
    terms = {name: over_the_group(_t(x) @ size, b.group) for name, x in errors.items()}
    count = b.group * b.forward.visible.sum(-2)[..., None] + 6
    own = over_the_group(_t(w.p * w.own) @ size + count * U64 * (_t(w.p) @ size), b.group)
    lost = (b.forward.visible & g.lost_rows[..., None]) | left.lost
    lost = over_the_group(lost.any(-2)[..., None], b.group)
    centre = over_the_group(_t(w.p) @ b.dout, b.group)
    lost = np.broadcast_to(lost > 0, own.shape)
    return Product(centre, terms, left.turned(), b.dout, b.group, own, lost)


def finished(p: Product, b: Backward, stages: Stages, scale: float | None, again: Product | None
             ) -> Budget:  # fmt: skip
    """Sums, the scale and what is stored on the way; then T1 of `again`, where the casts are
    declared."""
    factor = 1.0 if scale is None else scale
    terms = {name: abs(factor) * x for name, x in p.terms.items()}
    terms["accumulation"] = abs(factor) * added(
        p.left.centre, p.left.radius, p.right, p.group, stages
    )
    expected = factor * p.centre
    terms |= _last(p, terms, expected, scale, stages)
    own = abs(factor) * p.own + 2 * U64 * np.abs(expected)
    terms = {name: np.where(p.lost, np.inf, x * OUTWARD) for name, x in terms.items()}
    replay = None if again is None else _replay(again, own, stages, scale)
    return Budget(expected, terms, b.forward.out_dtype, own * OUTWARD, replay)


def _last(p: Product, terms: Terms, expected: Array, scale: float | None, stages: Stages) -> Terms:
    """The scale's own rounding, its product, and gradients of heads that are stored apart."""
    found: Terms = {}
    before = sum(terms.values(), np.zeros(expected.shape))
    if scale is not None:
        found["scale"] = scaled(np.abs(expected), before, scale)
        if not stages.scaled:  # on q, k, dS or the sum, in base 2 or base e
            size = (np.abs(p.left.centre) + p.left.radius) @ np.abs(p.right)
            found["scale"] = found["scale"] + 4 * U * abs(scale) * over_the_group(size, p.group)
            found["scale"] = found["scale"] + over_the_group(underflow(p, stages), p.group)
    if stages.apart and p.group > 1:
        size = (np.abs(p.left.centre) + p.left.radius) @ np.abs(p.right)
        size = abs(scale or 1.0) * size * (1 + 2.0**-10)
        io: Format = stages.forward.io
        stored = np.where(size < io.largest, half_ulp(size, io), np.inf)
        found["heads apart"] = over_the_group(stored, p.group) + p.group * U * before
    return found


def underflow(p: Product, stages: Stages) -> Array:
    """Of a scaled dS, q or k, and of its products, which may be subnormal: (F2a)."""
    left = np.abs(p.left.centre) + p.left.radius
    count = (left > 0).sum(-1)[..., None]
    other = (left > 0) @ np.abs(p.right) + left.sum(-1)[..., None] + 2 * (count + 1)
    return (NORMAL if stages.forward.flush else FLOAT32.tiny) * other * (count > 0)


def scaled(size: Array, before: Array, scale: float) -> Array:
    """What a product with the scale, a float32, is off; 0 where nothing is scaled."""
    constant = abs(float(np.float32(scale)) / scale - 1) + 2 * U64
    size = size + before
    return np.where(size > 0, constant * size + half_ulp(size * (1 + constant)), 0.0)


def _replay(p: Product, own: Array, stages: Stages, scale: float | None) -> Replay | None:
    """T1: the product of P or dS as the declared cast leaves it."""
    if (
        not (stages.given and stages.scaled)
        or p.left.near is None
        or (stages.apart and p.group > 1)
    ):
        return None
    near, open_ = p.left.near, p.left.open
    factor = 1.0 if scale is None else scale
    centre = factor * over_the_group(near @ p.right, p.group)
    undecided = over_the_group(open_ @ np.abs(p.right), p.group)
    radius = abs(factor) * (undecided + added(near, open_, p.right, p.group, stages))
    if scale is not None:
        radius = radius + scaled(np.abs(centre), radius, scale)
    radius = np.where(np.isfinite(radius) & ~p.lost, radius, np.inf)
    return Replay(centre, (radius + 2 * own) * OUTWARD)


def _t(x: Array) -> Array:
    return x.swapaxes(-1, -2)
