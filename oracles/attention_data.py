"""What q, k and v of attention cases hold, by how the logits behave along the keys.

Keys whose logits follow a curve g(j) (rising, spiking, ...) are k_j = g(j) d / sqrt(head_dim) plus
noise, and queries are d plus noise, d a vector of signs: the default scale then gives logits near
g(j), in nats.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tightrope.data import KINDS
from tightrope.formats import FORMATS, Array, Format, stored

EDGES = (16, 32, 64, 128)  # block sizes whose edges get the spikes
FAR = (0.0, -60.0, -100.0, -140.0)  # nats between groups of keys; exp(-87) is the least normal one

Curve = Callable[[int, np.random.Generator], Array]


def _rising(keys: int, rng: np.random.Generator) -> Array:
    return np.linspace(-12.0, 12.0, keys)


def _falling(keys: int, rng: np.random.Generator) -> Array:
    return np.linspace(12.0, -12.0, keys)


def _spiking(keys: int, rng: np.random.Generator) -> Array:
    """Each first or last key of a block may be the largest so far."""
    j, edge = np.arange(keys), int(rng.choice(EDGES))
    spikes = ((j % edge == 0) | (j % edge == edge - 1)) & (rng.random(keys) < 0.7)
    return np.where(spikes, 4.0 + 12.0 * rng.random(keys) + 0.05 * j, 0.0)


def _far_groups(keys: int, rng: np.random.Generator) -> Array:
    """Blocks of keys so far apart that a weight, or a rescaling, may underflow; at times all of
    them so low that exp without a maximum would.
    """
    edge = int(rng.choice((1, *EDGES[:2])))
    level = rng.choice(FAR, size=keys // edge + 1) - rng.choice((0.0, 0.0, 160.0))
    return level[np.arange(keys) // edge]


CURVES: dict[str, Curve] = {
    "rising": _rising,
    "falling": _falling,
    "spiking": _spiking,
    "far_groups": _far_groups,
}


def keys_and_queries(case: Any, rng: np.random.Generator) -> tuple[Array, Array]:
    """q (batch, num_heads, seqlen_q, head_dim) and k (batch, num_kv_heads, seqlen_k, head_dim)."""
    shape_q = (case.batch, case.num_heads, case.seqlen_q, case.head_dim)
    shape_k = (case.batch, case.num_kv_heads, case.seqlen_k, case.head_dim)
    q, k = drawn(case.data, shape_q, shape_k, FORMATS[case.dtype], rng)
    return stored(q, case.dtype), stored(k, case.dtype)


def drawn(
    kind: str, shape_q: tuple[int, ...], shape_k: tuple[int, ...], fmt: Format,
    rng: np.random.Generator,
) -> tuple[Array, Array]:  # fmt: skip
    """q and k of a kind before they are rounded to `fmt`; the last two axes are (length, features).

    Raises KeyError for an unknown kind.
    """
    q, k = rng.standard_normal(shape_q), rng.standard_normal(shape_k)
    if kind in CURVES:
        signs = np.where(rng.random(shape_k[-1]) < 0.5, -1.0, 1.0)
        curve = CURVES[kind](shape_k[-2], rng)[:, None]
        return signs + 0.1 * q, curve * signs / np.sqrt(shape_k[-1]) + 0.25 * k
    if kind == "normal":
        return q, k
    if kind in ("times_3", "times_30"):
        return float(kind.removeprefix("times_")) * q, k
    if kind == "all_negative":
        return np.abs(q), -np.abs(k)
    if kind == "outliers":  # a few channels of k thirty times larger, as in trained models
        channels = rng.choice(shape_k[-1], size=max(1, shape_k[-1] // 16), replace=False)
        k[..., channels] *= 30.0
        return q, k
    if kind == "repeated_keys":
        return q, np.broadcast_to(k[..., :1, :], shape_k).copy() if shape_k[-2] else k
    if kind == "near_ties":  # keys a few units in the last place apart
        base = k[..., :1, :] if shape_k[-2] else k
        return q, base * (1 + rng.integers(-2, 3, shape_k) * 2.0 ** (1 - fmt.precision))
    if kind == "cancellation":
        half = shape_k[-1] // 2
        q[..., half : 2 * half], k[..., half : 2 * half] = q[..., :half], -k[..., :half]
        return 8.0 * q, k + 2.0**-6 * rng.standard_normal(shape_k)
    if kind == "subnormal":  # queries; keys so large that logits are ordinary numbers
        return KINDS[kind](rng, shape_q, fmt), k * 2.0 ** (-fmt.emin - 1)
    return KINDS[kind](rng, shape_q, fmt), KINDS[kind](rng, shape_k, fmt)


def values_of(case: Any, rng: np.random.Generator) -> Array:
    """v (batch, num_kv_heads, seqlen_k, head_dim_v) in the case's dtype."""
    shape = (case.batch, case.num_kv_heads, case.seqlen_k, case.head_dim_v)
    v = drawn_values(case.data_v, shape, rng)
    if case.data == "far_groups":  # what a weight near 0 is multiplied with must be able to show
        v = v * rng.choice([1.0, 500.0], size=(*shape[:-1], 1))
    return stored(np.clip(v, -6e4, 6e4), case.dtype)


def drawn_values(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """v of a kind, before it is rounded. Raises KeyError for an unknown kind."""
    v = rng.standard_normal(shape)
    if kind == "constant":
        return np.broadcast_to(v[..., :1, :], shape).copy() if shape[-2] else v
    if kind == "one_hot":
        hot = rng.integers(0, max(shape[-2], 1), (*shape[:-2], 1, shape[-1]))
        return np.where(np.arange(shape[-2])[:, None] == hot, 1.0, 0.0)
    if kind == "alternating":
        return np.abs(v) * np.where(np.arange(shape[-2]) % 2, -1.0, 1.0)[:, None]
    if kind == "large":
        return 1000.0 * v
    if kind == "few_bits":
        return rng.integers(-8, 9, shape) / 4.0
    return {"normal": v}[kind]
