"""Sums of gradients over heads and, of phases, over places; the scale; budgets.

Derived in docs/error-budgets.md, section pope_attention_backward.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tightrope.budget import Budget, Replay
from tightrope.formats import Array
from tightrope.oracles.attention_backward_budget import Terms, scaled
from tightrope.oracles.attention_backward_problem import over_the_group
from tightrope.oracles.attention_numbers import OUTWARD, U64, U, gamma
from tightrope.oracles.pope_attention_backward_chain import Back
from tightrope.oracles.pope_attention_backward_stages import Way
from tightrope.oracles.pope_attention_backward_sums import Sum


def total(terms: Terms, like: Array) -> Array:
    return sum(terms.values(), np.zeros(like.shape))


def plain(x: Sum, way: Way) -> Back:
    """Plain features: nothing is between them and the scale, which may come before the sum."""
    terms = dict(x.terms)
    if not way.stages.scaled:
        terms["way back"] = 4 * U * x.size
    return Back(x.centre, terms, x.size, x.own, x.lost, x.near, x.open)


def joined(x: Back, y: Back) -> Back:
    """Features side by side."""

    def both(a: Array, b: Array) -> Array:
        return np.concatenate([a, b], axis=-1)

    names = {**x.terms, **y.terms}
    none = np.zeros(x.centre.shape), np.zeros(y.centre.shape)
    terms = {n: both(x.terms.get(n, none[0]), y.terms.get(n, none[1])) for n in names}
    again = [
        None if a is None or b is None else both(a, b)
        for a, b in ((x.near, y.near), (x.open, y.open))
    ]
    whole = (both(a, b) for a, b in ((x.size, y.size), (x.own, y.own), (x.lost, y.lost)))
    return Back(both(x.centre, y.centre), terms, *whole, *again)


def of_heads(x: Back, group: int, way: Way, scale: float, shared: bool) -> Back:
    """Gradients of keys that several query heads read.

    shared: x is the sum over them already; another kernel may still have had each head's.
    """
    if group == 1:
        return x
    found = x if shared else _added(x, group)
    if way.stages.apart:
        io, s = way.stages.forward.io, abs(scale)
        stored = io.unit * found.size * (1 + 2.0**-10) + group * io.tiny / s
        lost = found.size * s * (1 + 2.0**-10) >= io.largest
        stored = np.where(found.size > 0, np.where(lost, np.inf, stored), 0.0)
        terms = {**found.terms, "heads stored": stored + group * U * total(found.terms, stored)}
        found = replace(found, terms=terms, near=None, open=None)
    return found


def _added(x: Back, group: int) -> Back:
    rounds, near, open_ = (group + 1) * U, x.near, x.open
    terms = {**x.terms, "heads added": rounds * (np.abs(x.centre) + total(x.terms, x.centre))}
    if near is not None and open_ is not None:
        open_ = over_the_group(open_ + rounds * (np.abs(near) + open_), group)
        near = over_the_group(near, group)
    return Back(
        over_the_group(x.centre, group), {n: over_the_group(t, group) for n, t in terms.items()},
        over_the_group(x.size, group), over_the_group(x.own, group),
        over_the_group(x.lost, group) > 0, near, open_,
    )  # fmt: skip


def of_phases(x: Back, batch: int, phases: int) -> Back:
    """Summed over sequences, places and heads that share a phase: (phases, rotary_dim)."""
    width = x.centre.shape[-1]
    count = x.centre.size // max(phases * width, 1)

    def over(y: Array) -> Array:
        heads = len(y) // max(batch * phases, 1)
        parts = y.reshape(batch, phases, heads, y.shape[-2], width)
        return np.asarray(parts.sum(axis=(0, 2, 3)))

    rounds, near, open_ = gamma(count), x.near, x.open
    terms = {n: over(np.broadcast_to(t, x.centre.shape)) for n, t in x.terms.items()}
    terms["phases added"] = rounds * over(np.abs(x.centre) + total(x.terms, x.centre))
    if near is not None and open_ is not None:
        open_ = over(open_ + rounds * (np.abs(near) + open_))
        near = over(near)
    own = over(x.own + count * U64 * np.abs(x.centre))
    return Back(over(x.centre), terms, over(x.size), own, over(x.lost) > 0, near, open_)


def either(x: Back, y: Back) -> Back:
    """Both of two ways must be allowed: the larger of each term, and nothing replayed."""
    none = np.zeros(x.centre.shape)
    terms = {
        n: np.maximum(x.terms.get(n, none), y.terms.get(n, none)) for n in {**x.terms, **y.terms}
    }
    return Back(
        x.centre, terms, np.maximum(x.size, y.size), np.maximum(x.own, y.own), x.lost | y.lost,
        None, None,
    )  # fmt: skip


def finish(x: Back, scale: float, dtype: str) -> Budget:
    """The scale, and what is known of the result."""
    factor, expected = abs(scale), scale * x.centre
    with np.errstate(invalid="ignore"):
        terms = {name: factor * t for name, t in x.terms.items()}
        terms["scale"] = scaled(np.abs(expected), total(terms, expected), scale)
        terms = {n: _certain(t, x.lost) for n, t in terms.items()}
        own = (factor * x.own + 2 * U64 * np.abs(expected)) * OUTWARD
        own = np.where(np.isfinite(total(terms, expected)), own, 0.0)
    replay = None
    if x.near is not None and x.open is not None:
        near, radius = scale * x.near, factor * x.open
        radius = _certain(radius + scaled(np.abs(near), radius, scale) + 2 * own, x.lost)
        replay = Replay(near, radius)
    return Budget(expected, terms, dtype, own, replay)


def _certain(term: Array, lost: Array) -> Array:
    """Infinite where nothing is promised."""
    return np.where(lost | np.isnan(term), np.inf, term * OUTWARD)
