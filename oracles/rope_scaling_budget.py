"""What float arithmetic does to scaled frequencies. Derivation: docs/error-budgets.md.

The chain that is granted: w = 1/b**(2c/D) with its own errors (relative, `rho`), then what the
models' code does to it, one rounding an operation, parameters rounded to the format as they enter;
yarn's ends are computed in float64 on the host and counted in columns.
"""

from __future__ import annotations

import numpy as np

from tightrope.formats import Array
from tightrope.oracles import rope_scaling
from tightrope.rope_scaling import RopeScaling

HOST = 2.0**-40  # columns; float64's error in an end of yarn's ramp, of a few hundred columns
# roundings of a frequency after its power and reciprocal, the scaling's own parameters included
STEPS = {"linear": 2, "proportional": 2, "longrope": 2, "yarn": 5, "llama3": 5}


def scaling_term(
    rotary_dim: int, rope_theta: float, scaling: RopeScaling, rho: Array, unit: float,
    ulps: float = 4.0,
) -> Array:  # fmt: skip
    """A bound on the error of each scaled frequency beyond rho times it; (rotary_dim/2,).

    rho: relative error of the unscaled ones. unit: of the format that is worked in. ulps: of a
    power.
    """
    theta = rope_scaling.frequencies(rotary_dim, rope_theta, scaling)
    kind = scaling.rope_type
    if kind in ("ntk", "dynamic"):
        exponent = np.arange(0, rotary_dim, 2) / rotary_dim
        return theta * (1 + rho) * np.expm1(exponent * _base_error(rotary_dim, scaling, unit, ulps))
    rounded = (1 + rho) / (1 - unit) ** STEPS.get(kind, 0)
    found = theta * (rounded - 1 - rho)
    if kind in ("yarn", "llama3"):
        w = rope_scaling.unscaled(rotary_dim, rope_theta, scaling)
        part = _yarn_part if kind == "yarn" else _llama3_part
        off = part(rotary_dim, rope_theta, scaling, rho, unit)
        found = found + w * (1 - 1 / float(scaling.factor)) * off * rounded
    return found


def _base_error(rotary_dim: int, scaling: RopeScaling, unit: float, ulps: float) -> float:
    """|ln| of the relative error of the base b a**(D/(D-2)), a power within so many ulps."""
    power, s = rotary_dim / (rotary_dim - 2), float(scaling.factor)
    a, alpha = rope_scaling.stretch(scaling), unit
    if scaling.rope_type == "dynamic":  # s n/L - (s - 1) cancels: three roundings, s's and n's own
        alpha = unit * (1 + 2.0**-20) * (5 * (a - 1 + s) + (s - 1) + a) / a
    grown = power * (-np.log1p(-alpha) + unit * np.log(max(a, 1.0)))
    return float(grown - np.log1p(-(2 * ulps + 1) * unit) - 2 * np.log1p(-unit))


def _edges(raw: Array, off: Array, unit: float) -> Array:
    """The error of 1 - clip(raw, 0, 1), where raw is off by so much."""
    inside = (raw > -off) & (raw < 1 + off) & ((off > 0) | ((raw > 0) & (raw < 1)))
    return np.where(inside, np.minimum(off, 1.0) + unit, 0.0)


def _yarn_part(
    rotary_dim: int, rope_theta: float, scaling: RopeScaling, rho: Array, unit: float
) -> Array:
    low, high = rope_scaling.corrections(rotary_dim, rope_theta, scaling)
    width, column = high - low, np.arange(rotary_dim // 2)
    raw = (column - low) / width
    if not scaling.truncate:
        ends = unit * abs(low) + unit * (np.abs(column - low) + abs(low)) + 2 * HOST
        off = (ends + np.abs(raw) * (unit * abs(width) + HOST)) / abs(width) / (1 - 3 * unit)
        return _edges(raw, off + unit * np.abs(raw), unit)
    ends = [
        rope_scaling.turning_column(beta, rotary_dim, rope_theta, scaling)
        for beta in (scaling.beta_fast, scaling.beta_slow)
    ]
    if any(abs(end - round(end)) < HOST for end in ends):
        return np.ones_like(raw)  # float64 cannot tell the column
    return _edges(raw, np.where((raw > 0) & (raw < 1), unit * raw, 0.0), unit)


def _llama3_part(
    rotary_dim: int, rope_theta: float, scaling: RopeScaling, rho: Array, unit: float
) -> Array:
    w = rope_scaling.unscaled(rotary_dim, rope_theta, scaling)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    turns = scaling.original_max_position_embeddings * w / (2 * np.pi)
    raw = (turns - low) / (high - low)
    # 2 pi, 2 pi/w and L over that: three roundings and L's own; then low, and the difference
    off = turns * ((1 + rho) / (1 - unit) ** 4 - 1) + unit * low
    off = off + unit * (np.abs(turns - low) + off)
    off = off / (high - low) / (1 - 2 * unit) + 2 * unit * np.abs(raw)
    # a column just outside may be taken for one inside, and is then not clipped
    return _edges(raw, 2 * off, unit)
