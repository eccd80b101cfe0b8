"""Rotary frequencies as kernels' hosts need them: real numbers in mpmath, scaled as asked.

Used by implementations only. Formulas: Su et al., RoFormer, arXiv 2104.09864, 3.2.2; position
interpolation, arXiv 2306.15595; YaRN's code, arXiv 2309.00071; LongRoPE, arXiv 2402.13753; and, for
orders of operations and defaults, Hugging Face's modeling_rope_utils.py.
"""

from __future__ import annotations

from collections.abc import Callable

import mpmath
from mpmath import mpf

from tightrope.rope_scaling import RopeScaling

Frequency = Callable[[int], mpmath.mpf]


def frequency(rotary_dim: int, rope_theta: float, scaling: RopeScaling | None = None) -> Frequency:
    """Column -> radians a position, in mpmath's precision at the time of the call."""
    kind = scaling.rope_type if scaling else "default"

    def plain(i: int, base: mpmath.mpf | None = None) -> mpmath.mpf:
        return mpmath.power(base or mpf(rope_theta), mpf(-2 * i) / rotary_dim)

    if scaling is None or kind == "default":
        return plain
    if kind in ("ntk", "dynamic"):
        return lambda i: plain(i, _base(rotary_dim, rope_theta, scaling))
    if kind == "longrope":
        return lambda i: plain(i) / _longrope_factor(i, scaling)
    if kind == "yarn":
        return lambda i: _mixed(
            plain(i), _kept_by_yarn(i, rotary_dim, rope_theta, scaling), scaling
        )
    if kind == "llama3":
        return lambda i: _mixed(plain(i), _kept_by_llama3(plain(i), scaling), scaling)
    return lambda i: plain(i) / factor(scaling) if i < scaling.turning else mpf(0)


def factor(scaling: RopeScaling) -> mpmath.mpf:
    return mpf(scaling.factor.numerator) / scaling.factor.denominator


def _base(rotary_dim: int, rope_theta: float, scaling: RopeScaling) -> mpmath.mpf:
    stretch = factor(scaling)
    if scaling.rope_type == "dynamic":
        length = mpf(scaling.original_max_position_embeddings)
        stretch = stretch * (max(mpf(scaling.seq_len or 0), length) / length - 1) + 1
    return rope_theta * stretch ** (mpf(rotary_dim) / (rotary_dim - 2))


def _longrope_factor(i: int, scaling: RopeScaling) -> mpmath.mpf:
    long = scaling.seq_len is not None and (
        scaling.seq_len > scaling.original_max_position_embeddings
    )
    return mpf(scaling.long_factor[i] if long else scaling.short_factor[i])


def _mixed(frequency: mpmath.mpf, kept: mpmath.mpf, scaling: RopeScaling) -> mpmath.mpf:
    """A part of the frequency as it was, the rest divided by the factor."""
    return frequency * kept + frequency / factor(scaling) * (1 - kept)


def _kept_by_llama3(frequency: mpmath.mpf, scaling: RopeScaling) -> mpmath.mpf:
    turns = scaling.original_max_position_embeddings * frequency / (2 * mpmath.pi)
    low, high = mpf(scaling.low_freq_factor), mpf(scaling.high_freq_factor)
    return _clamped((turns - low) / (high - low))


def _kept_by_yarn(i: int, rotary_dim: int, rope_theta: float, scaling: RopeScaling) -> mpmath.mpf:
    def column(turns: float) -> mpmath.mpf:
        positions = scaling.original_max_position_embeddings / (2 * mpmath.pi * mpf(turns))
        return rotary_dim * mpmath.log(positions) / (2 * mpmath.log(mpf(rope_theta)))

    low, high = column(scaling.beta_fast), column(scaling.beta_slow)
    if scaling.truncate:
        low, high = mpmath.floor(low), mpmath.ceil(high)
    low, high = max(low, mpf(0)), min(high, mpf(rotary_dim - 1))
    width = high - low or mpf(1) / 1000
    return 1 - _clamped((i - low) / width)


def _clamped(x: mpmath.mpf) -> mpmath.mpf:
    return min(max(x, mpf(0)), mpf(1))


def amplitude(scaling: RopeScaling | None) -> mpmath.mpf:
    """attention_factor, in mpmath's precision at the time of the call."""
    if scaling is None or scaling.rope_type not in ("yarn", "longrope"):
        return mpf(1)
    if scaling.attention_factor is not None:
        return mpf(scaling.attention_factor)
    growth = mpmath.log(factor(scaling))
    if scaling.rope_type == "longrope":
        length = mpf(scaling.original_max_position_embeddings)
        return mpmath.sqrt(1 + growth / mpmath.log(length))
    if scaling.mscale is None or scaling.mscale_all_dim is None:
        return 1 + growth / 10
    return (1 + growth * mpf(scaling.mscale) / 10) / (1 + growth * mpf(scaling.mscale_all_dim) / 10)


def axis_of(column: int, scaling: RopeScaling) -> int:
    """Which of three positions turns a column: by sections, or every third, time for the rest."""
    section = scaling.mrope_section
    if scaling.mrope_interleaved:
        return column % 3 if column // 3 < section[column % 3] else 0
    return sum(column >= end for end in (section[0], section[0] + section[1]))
