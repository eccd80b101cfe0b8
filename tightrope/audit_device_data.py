"""Operands that show how a dot sums: spreads, zeros, subnormals, extremes, cancellation."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

Array = np.ndarray
Triple = tuple[Array, Array, Array]
SPREADS = (0, 4, 8, 16)


class Draw:
    """Draws a (trials, M, K), b (trials, K, N), c (trials, M, N) in float64 for one dtype."""

    def __init__(self, seed: int, trials: int, m: int, n: int, k: int, dtype: np.dtype) -> None:
        self.rng = np.random.default_rng(seed)
        self.a, self.b, self.c = (trials, m, k), (trials, k, n), (trials, m, n)
        info = ml_dtypes.finfo(dtype)
        self.tiny, self.top = float(info.smallest_normal), float(info.max)

    def normal(self, shape: tuple[int, ...], spread: int = 0, scale: float = 1.0) -> Array:
        power = self.rng.integers(-spread, spread + 1, shape)
        return self.rng.standard_normal(shape) * np.ldexp(scale, power)

    def plain(self, spread: int = 0) -> Triple:
        return self.normal(self.a, spread), self.normal(self.b), self.normal(self.c, spread)

    def some(self, shape: tuple[int, ...], share: float) -> Array:
        return self.rng.random(shape) < share


def _spread(spread: int) -> Callable[[Draw], Triple]:
    return lambda d: d.plain(spread)


def _zero_accumulator(d: Draw) -> Triple:
    a, b, c = d.plain(4)
    return a, b, 0 * c


def _zeros(d: Draw) -> Triple:
    """Whole rows, whole blocks of 8 and 16 along k, and single zeros."""
    a, b, c = d.plain(4)
    a[d.some(d.a, 0.2)] = 0
    a[:, ::5] = 0
    blocks = d.some((d.b[0], max(1, d.b[1] // 8), 1, d.b[2]), 0.5)
    b *= np.repeat(blocks, 8, 1).reshape(d.b[0], -1, d.b[2])[:, : d.b[1]]
    c[d.some(d.c, 0.5)] = 0
    return a, b, c


def _padded(d: Draw) -> Triple:
    """Features past 9/16 of the width are zero in both, as head_dim 72 padded to 128."""
    a, b, c = d.plain(2)
    used = d.a[2] * 9 // 16
    a[:, :, used:], b[:, used:] = 0, 0
    return a, b, 0 * c


def _signed_zeros(d: Draw) -> Triple:
    a, b, c = (d.rng.choice([-0.0, 0.0], s) for s in (d.a, d.b, d.c))
    a[d.some(d.a, 0.05)], b[d.some(d.b, 0.05)] = 1, -1
    a[:, ::3] = -0.0
    return a, b, c


def _subnormal_operand(d: Draw) -> Triple:
    """All of a is subnormal, down to its last bit; b is near 1."""
    a = d.normal(d.a, 4) * d.tiny * 2.0**-4
    return np.clip(a, -d.tiny, d.tiny), d.normal(d.b), d.normal(d.c, 4) * d.tiny * d.some(d.c, 0.5)


def _some_subnormals(d: Draw) -> Triple:
    """A quarter of the row near the smallest normal number, half of that below it."""
    a, b, c = d.normal(d.a, 2) * d.tiny * 2, d.normal(d.b, 2), d.normal(d.c) * d.tiny
    return np.where(d.some(d.a, 0.5), np.clip(a, -d.tiny, d.tiny), a), b, c


def _both_subnormal(d: Draw) -> Triple:
    a, b = (np.clip(d.normal(s, 2) * d.tiny / 4, -d.tiny, d.tiny) for s in (d.a, d.b))
    return a, b, np.zeros(d.c)


def _tiny_products(power: int) -> Callable[[Draw], Triple]:
    def draw(d: Draw) -> Triple:
        a, b = (np.ldexp(d.normal(s, 3), power) for s in (d.a, d.b))
        return a, b, np.ldexp(d.normal(d.c, 3), 2 * power) * d.some(d.c, 0.5)

    return draw


def _tiny_accumulator(d: Draw) -> Triple:
    """An accumulator from 2^-149 to 2^-100 beside rows that are zero, or not."""
    a, b, c = d.plain()
    a[:, ::2] = 0
    return a, b, np.ldexp(c, d.rng.integers(-149, -99, d.c))


def _overflow(d: Draw) -> Triple:
    """Sums about the largest float32 where the operands can reach it, else the largest operands."""
    a, b = (np.clip(np.ldexp(d.normal(s), 62), -d.top, d.top) for s in (d.a, d.b))
    return a, b, d.normal(d.c) * 2.0**126


def _nonfinite(d: Draw) -> Triple:
    a, b, c = d.plain(2)
    for x, shape in ((a, d.a), (b, d.b), (c, d.c)):
        hit = d.some(shape, 0.004)
        x[hit] = d.rng.choice([np.inf, -np.inf, np.nan], hit.sum())
    a[d.some(d.a, 0.1)] = 0
    return a, b, c


def _accumulator(power: int) -> Callable[[Draw], Triple]:
    def draw(d: Draw) -> Triple:
        a, b, c = d.plain(2)
        return a, b, np.ldexp(c, power + d.rng.integers(-6, 7, d.c))

    return draw


def _cancellation(d: Draw) -> Triple:
    """The second half of k undoes the first but for a few values; half of c, the rest."""
    a, b, c = d.plain(3)
    half = d.a[2] // 2
    a[:, :, half : 2 * half], b[:, half : 2 * half] = a[:, :, :half], -b[:, :half]
    a[:, :, :half] *= np.where(d.some(a[:, :, :half].shape, 0.2), 1 + 2.0**-6, 1)
    return a, b, np.where(d.some(d.c, 0.5), -(a @ b), c * 2.0**-8)


def _few_bits(d: Draw) -> Triple:
    a, b, c = (d.rng.integers(-8, 9, s).astype(float) for s in (d.a, d.b, d.c))
    return a, b, c


KINDS: dict[str, Callable[[Draw], Triple]] = {
    **{f"spread 2^±{s}": _spread(s) for s in SPREADS},
    "accumulator zero": _zero_accumulator,
    "zeros": _zeros,
    "padded": _padded,
    "signed zeros": _signed_zeros,
    "subnormal operand": _subnormal_operand,
    "some subnormals": _some_subnormals,
    "both subnormal": _both_subnormal,
    "products near 2^-120": _tiny_products(-60),
    "products near 2^-134": _tiny_products(-67),
    "products near 2^-146": _tiny_products(-73),
    "tiny accumulator": _tiny_accumulator,
    "overflow": _overflow,
    "infinities and NaN": _nonfinite,
    "accumulator 2^14": _accumulator(14),
    "accumulator 2^24": _accumulator(24),
    "accumulator 2^-24": _accumulator(-24),
    "cancellation": _cancellation,
    "few bits": _few_bits,
}
