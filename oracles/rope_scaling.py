"""Frequencies and amplitudes of every context extension, in float64: the readable definition.

With b = rope_theta, D = rotary_dim, c = 0 .. D/2 - 1, w_c = b**(-2c/D), s = factor, L =
original_max_position_embeddings:

- default: w. linear (position interpolation, arXiv 2306.15595): w/s. longrope (arXiv 2402.13753):
  w/lambda, lambda the long factors if seq_len > L, else the short ones. proportional (Gemma 4):
  w/s in the first columns, 0 in the others.
- ntk: w of the base b s**(D/(D-2)), so that column 0 keeps its frequency and the last one has its
  w/s. dynamic: the same with s n/L - (s - 1) for s, n = max(seq_len, L).
- yarn (arXiv 2309.00071, as its authors' code has it): from w to w/s along a ramp over columns,
  between those that turn beta_fast and beta_slow times within L.
- llama3: from w/s to w between low_freq_factor and high_freq_factor turns within L.

attention_factor is 1 but for yarn (its eq. 22: 0.1 ln s + 1; a quotient of two where mscale and
mscale_all_dim are given) and longrope (sqrt(1 + ln s/ln L)). Exact details of order, clamping and
defaults are those of Hugging Face's modeling_rope_utils.py.
"""

from __future__ import annotations

import numpy as np

from tightrope.formats import Array
from tightrope.rope_scaling import RopeScaling


def base_of(rotary_dim: int, rope_theta: float, scaling: RopeScaling) -> float:
    """The base of the powers: b, changed by ntk and dynamic."""
    if scaling.rope_type not in ("ntk", "dynamic"):
        return rope_theta
    return rope_theta * float(stretch(scaling)) ** (rotary_dim / (rotary_dim - 2))


def stretch(scaling: RopeScaling) -> float:
    """What takes the place of s in a changed base."""
    s, length = float(scaling.factor), scaling.original_max_position_embeddings
    if scaling.rope_type == "ntk":
        return s
    return s * max(scaling.seq_len or 0, length) / length - (s - 1)


def unscaled(rotary_dim: int, rope_theta: float, scaling: RopeScaling) -> Array:
    """Powers of the base, (rotary_dim/2,)."""
    base = base_of(rotary_dim, rope_theta, scaling)
    return base ** (-np.arange(0, rotary_dim, 2) / rotary_dim)


def frequencies(rotary_dim: int, rope_theta: float, scaling: RopeScaling) -> Array:
    """Radians a position, (rotary_dim/2,)."""
    w, s = unscaled(rotary_dim, rope_theta, scaling), float(scaling.factor)
    if scaling.rope_type == "longrope":
        return w / np.array(selected(scaling))
    if scaling.rope_type in ("yarn", "llama3"):
        kept = kept_part(rotary_dim, rope_theta, scaling)
        return w / s * (1 - kept) + w * kept
    if scaling.rope_type in ("linear", "proportional"):
        w = w / s
    return np.where(np.arange(rotary_dim // 2) < scaling.turning, w, 0.0)


def selected(scaling: RopeScaling) -> tuple[float, ...]:
    """The factors of longrope that its seq_len asks for."""
    long = (scaling.seq_len or 0) > scaling.original_max_position_embeddings
    return scaling.long_factor if long else scaling.short_factor


def kept_part(rotary_dim: int, rope_theta: float, scaling: RopeScaling) -> Array:
    """How much of each frequency stays as it was, 0 to 1, in yarn and llama3; (rotary_dim/2,)."""
    w = unscaled(rotary_dim, rope_theta, scaling)
    if scaling.rope_type == "llama3":
        wavelength = 2 * np.pi / w
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        turns = scaling.original_max_position_embeddings / wavelength
        between = (turns - low) / (high - low)
        return np.where(turns < low, 0.0, np.where(turns > high, 1.0, between))
    low, high = corrections(rotary_dim, rope_theta, scaling)
    return 1 - np.clip((np.arange(rotary_dim // 2) - low) / (high - low), 0, 1)


def turning_column(turns: float, rotary_dim: int, rope_theta: float, scaling: RopeScaling) -> float:
    """The column, not whole, whose frequency makes so many turns within L."""
    length = scaling.original_max_position_embeddings
    return rotary_dim * np.log(length / (turns * 2 * np.pi)) / (2 * np.log(rope_theta))


def corrections(rotary_dim: int, rope_theta: float, scaling: RopeScaling) -> tuple[float, float]:
    """Ends of yarn's ramp, in columns."""
    low, high = (
        turning_column(beta, rotary_dim, rope_theta, scaling)
        for beta in (scaling.beta_fast, scaling.beta_slow)
    )
    if scaling.truncate:
        low, high = np.floor(low), np.ceil(high)
    low, high = max(low, 0.0), min(high, rotary_dim - 1.0)
    return float(low), float(high + 0.001 if low == high else high)


def attention_factor(scaling: RopeScaling) -> float:
    """What cos and sin are multiplied with."""
    s = float(scaling.factor)
    if scaling.rope_type not in ("yarn", "longrope"):
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if s <= 1:
        return 1.0
    if scaling.rope_type == "longrope":
        return float(np.sqrt(1 + np.log(s) / np.log(scaling.original_max_position_embeddings)))
    over, under = scaling.mscale or 1.0, scaling.mscale_all_dim or 0.0
    return float((0.1 * over * np.log(s) + 1) / (0.1 * under * np.log(s) + 1))


def axes(columns: int, scaling: RopeScaling) -> Array:
    """Which axis of positions turns each column, (columns,): Qwen2-VL's sections of time, height
    and width one after the other, or Qwen3-VL's interleaved ones, time where they run out.
    """
    section = scaling.mrope_section or (columns, 0, 0)
    if not scaling.mrope_interleaved:
        return np.repeat(np.arange(3), section)
    found = np.zeros(columns, np.int64)
    for axis in (1, 2):
        found[axis : 3 * section[axis] : 3] = axis
    return found
