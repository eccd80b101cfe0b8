"""Kinds of data that find bugs. A case names a kind; tensors follow from it and the seed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tightrope.formats import FORMATS, Array, Format, stored

Shape = tuple[int, ...]


def _normal(rng: np.random.Generator, shape: Shape, fmt: Format) -> Array:
    return rng.standard_normal(shape)


def _times_3(rng: np.random.Generator, shape: Shape, fmt: Format) -> Array:
    return 3.0 * rng.standard_normal(shape)


def _times_30(rng: np.random.Generator, shape: Shape, fmt: Format) -> Array:
    return 30.0 * rng.standard_normal(shape)


def _outliers(rng: np.random.Generator, shape: Shape, fmt: Format) -> Array:
    """A few feature channels a thousand times larger, as in trained models."""
    x = rng.standard_normal(shape)
    features = shape[-1] if shape else 1
    if features:
        x[..., rng.choice(features, size=max(1, features // 16), replace=False)] *= 1000.0
    return x


def _mixed_scales(rng: np.random.Generator, shape: Shape, fmt: Format) -> Array:
    return rng.standard_normal(shape) * 2.0 ** rng.integers(-10, 6, shape)


def _few_bits(rng: np.random.Generator, shape: Shape, fmt: Format) -> Array:
    """Small multiples of 1/4: products and short sums are exact in every format."""
    return rng.integers(-8, 9, shape) / 4.0


def _constant(rng: np.random.Generator, shape: Shape, fmt: Format) -> Array:
    return np.full(shape, rng.choice([1.0, -1.0, 1.5, 3.1]))


def _subnormal(rng: np.random.Generator, shape: Shape, fmt: Format) -> Array:
    """Values around the smallest normal number, subnormals and zeros of both signs among them."""
    return rng.integers(-64, 65, shape) * (2.0 ** (fmt.emin - min(fmt.precision - 1, 5)))


KINDS: dict[str, Callable[[np.random.Generator, Shape, Format], Array]] = {
    "normal": _normal,
    "times_3": _times_3,
    "times_30": _times_30,
    "outliers": _outliers,
    "mixed_scales": _mixed_scales,
    "few_bits": _few_bits,
    "constant": _constant,
    "subnormal": _subnormal,
}


def values(kind: str, shape: Shape, dtype: str, rng: np.random.Generator) -> Array:
    """An array of this kind, each value rounded once to `dtype` and stored in it.

    Raises KeyError for an unknown kind or dtype.
    """
    return stored(KINDS[kind](rng, shape, FORMATS[dtype]), dtype)
