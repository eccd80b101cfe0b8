"""Features of PoPE as they enter the scores: magnitudes times cos and sin, beside plain ones.

(P7) and (P8) of docs/error-budgets.md, section pope_attention.
"""

from __future__ import annotations

import numpy as np

from tightrope.formats import Array
from tightrope.oracles.attention_features import Features, held
from tightrope.oracles.attention_numbers import FLOAT32, OUTWARD
from tightrope.oracles.pope_attention_problem import MU_ERROR, MU_LEAST, softplus
from tightrope.oracles.pope_features_held import Held, Product, term
from tightrope.oracles.pope_features_stages import Grant

STEP = 16  # features that a tensor core multiplies at once


def magnitude(x: Array, grant: Grant) -> Held:
    """ln(1 + e^x) as the kernel holds it."""
    mu = softplus(x)
    own = MU_ERROR * mu + MU_LEAST
    ulps = grant.softplus_ulp * FLOAT32.ulp(mu + grant.softplus_ulp * FLOAT32.ulp(mu))
    beside = np.full(mu.shape, grant.softplus_error)
    error = term("softplus", ulps) + term("softplus, absolute", beside)
    flushed = np.where(mu * (1 + 2.0**-10) < grant.lost, mu, 0.0)
    error = (error + term("softplus, flushed", flushed)) * OUTWARD
    return Held.float32(mu, error, own).rounded(grant.magnitude, "magnitude")


def polar(mu: Held, turning: tuple[Held, Held], plain: Array, grant: Grant) -> Features:
    """[mu cos | mu sin | plain], (.., length, rotary_dim + head_dim), as they are multiplied."""
    x, y = (_feature(mu, t, grant) for t in turning)
    nothing = np.zeros(plain.shape)
    rest = Features(plain, nothing, nothing, plain, nothing)
    pairs = zip(*(vars(f).values() for f in (x, y, rest)), strict=True)
    return Features(*(_side_by_side(*parts) for parts in pairs))


def _side_by_side(x: Array, y: Array, rest: Array) -> Array:
    rest = np.broadcast_to(rest, (*x.shape[:-1], rest.shape[-1]))
    return np.concatenate([x, y, rest], -1)


def _feature(mu: Held, t: Held, grant: Grant) -> Features:
    """One product and its rounding to the format of the features."""
    p = Product.of(mu, t)
    rounding = term("product", p.rounding())
    flushed = np.where(t.simple & (t.value == 0), 0.0, grant.flushed)
    before = (p.moved + rounding) * OUTWARD + flushed
    fmt = grant.features
    if fmt is FLOAT32:  # the product's rounding is the only one
        return held(p.value, before, p.own, fmt, p.ends, np.ones(p.value.shape, bool))
    same = (before == 0) & (p.own == 0) & (fmt.round(p.value) == p.value)
    found = held(p.value, before, p.own, fmt, p.ends, same)
    last = term("features", found.error - before)
    return Features(found.exact, before + last, found.own, found.near, found.open)


def ordered(features: Features, rotary_dim: int, order: str) -> Features:
    """Features of `polar` as steps of 16 meet them; zeros where a block is filled up."""
    width = features.exact.shape[-1]
    places = _places(rotary_dim, width - 2 * rotary_dim, order)
    return features.each(lambda x: np.where(places < 0, 0.0, x[..., places]))


def _places(rotary_dim: int, rest: int, order: str) -> Array:
    """Where each feature of the order comes from; -1: a zero."""
    x = np.arange(rotary_dim)
    y, plain = x + rotary_dim, np.arange(rest) + 2 * rotary_dim
    if order == "interleaved":
        return np.concatenate([np.stack([x, y], -1).ravel(), plain])
    if order == "blocks":
        x, y, plain = (np.pad(z, (0, -len(z) % STEP), constant_values=-1) for z in (x, y, plain))
    return np.concatenate([x, y, plain])
