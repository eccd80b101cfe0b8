"""Frequencies and amplitudes of every context extension in ball arithmetic (python-flint's arb).

Everything is a power with an exponent in logarithms: w_c = exp(-(2c/D) ln b), a changed base adds
-(2c/(D-2)) ln a, and a part of it interpolated multiplies by 1 - r (1 - 1/s). Sources of the
formulas: `rope_scaling`. Numbers given as floats count as exact; 0.1 and 0.001 are decimals.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

from flint import arb, ctx, fmpq, fmpz

from tightrope.rope_scaling import RopeScaling


def rational(x: Fraction | float) -> fmpq:
    """The number as it is."""
    return fmpq(*Fraction(x).as_integer_ratio())


@lru_cache(maxsize=512)
def balls(
    rotary_dim: int, rope_theta: float | fmpq, scaling: RopeScaling, bits: int
) -> tuple[arb, ...]:
    """Radians a position as balls of about so many bits, (rotary_dim/2,)."""
    with ctx.workprec(bits):
        log, growth = arb(rope_theta).log(), _growth(scaling).log()
        found = []
        for c in range(rotary_dim // 2):
            power = log * arb(fmpq(-2 * c, rotary_dim))
            if c:
                power -= growth * arb(fmpq(2 * c, max(rotary_dim - 2, 1)))
            found.append(power.exp() * _slowed(c, rotary_dim, rope_theta, scaling, power))
        return tuple(found)


def _growth(scaling: RopeScaling) -> arb:
    """a: the base grows by a**(D/(D-2)); 1 where it stays."""
    s, length = rational(scaling.factor), scaling.original_max_position_embeddings
    if scaling.rope_type == "ntk":
        return arb(s)
    if scaling.rope_type != "dynamic":
        return arb(1)
    beyond = max(0, (scaling.seq_len or 0) - length)
    return arb(1 + s * fmpq(beyond, length))


def _slowed(
    c: int, rotary_dim: int, rope_theta: float | fmpq, scaling: RopeScaling, power: arb
) -> arb:
    """What a frequency exp(power) is multiplied with."""
    inverse = arb(1 / rational(scaling.factor))
    if scaling.rope_type in ("yarn", "llama3"):
        if scaling.rope_type == "yarn":
            part = _ramp(c, rotary_dim, rope_theta, scaling)
        else:
            part = 1 - _smooth(scaling, power)
        return 1 - part * (1 - inverse)
    if scaling.rope_type == "longrope":
        beyond = (scaling.seq_len or 0) - scaling.original_max_position_embeddings
        return 1 / arb((scaling.short_factor, scaling.long_factor)[beyond > 0][c])
    if scaling.rope_type == "proportional" and c >= scaling.turning:
        return arb(0)
    return inverse if scaling.rope_type in ("linear", "proportional") else arb(1)


def _clipped(x: arb) -> arb:
    return x.max(arb(0)).min(arb(1))


def _smooth(scaling: RopeScaling, power: arb) -> arb:
    """llama3: the part of a frequency that stays, from its turns within L."""
    low, high = rational(scaling.low_freq_factor), rational(scaling.high_freq_factor)
    turns = power.exp() * scaling.original_max_position_embeddings / (2 * arb.pi())
    return _clipped((turns - arb(low)) / arb(high - low))


def _ramp(c: int, rotary_dim: int, rope_theta: float | fmpq, scaling: RopeScaling) -> arb:
    """yarn: the part of a frequency that is interpolated."""
    low = _column(scaling.beta_fast, rotary_dim, rope_theta, scaling)
    high = _column(scaling.beta_slow, rotary_dim, rope_theta, scaling)
    same = scaling.beta_fast == scaling.beta_slow
    if scaling.truncate:
        low, high = arb(_whole(low.floor())), arb(_whole(high.ceil()))
    low, high = low.max(arb(0)), high.min(arb(rotary_dim - 1))
    if low == high or (same and not scaling.truncate and low.overlaps(high)):
        high = low + arb(fmpq(1, 1000))
    return _clipped((c - low) / (high - low))


def _column(turns: float, rotary_dim: int, rope_theta: float | fmpq, scaling: RopeScaling) -> arb:
    """The column, not whole, whose frequency makes so many turns within L."""
    wavelength = arb(scaling.original_max_position_embeddings) / arb(turns)
    return (wavelength / (2 * arb.pi())).log() / arb(rope_theta).log() * rotary_dim / 2


def _whole(x: arb) -> fmpz:
    """Raises ArithmeticError where the precision cannot tell which integer it is.

    (It is never within reach of two at all precisions: pi is transcendental.)
    """
    found = x.unique_fmpz()
    if found is None:
        raise ArithmeticError("too few bits for an end of yarn's ramp")
    return found


def attention_factor(scaling: RopeScaling, bits: int) -> arb:
    """What cos and sin are multiplied with."""
    with ctx.workprec(bits):
        if scaling.rope_type not in ("yarn", "longrope"):
            return arb(1)
        if scaling.attention_factor is not None:
            return arb(scaling.attention_factor)
        log = arb(rational(scaling.factor)).log()
        if scaling.rope_type == "longrope":
            return (1 + log / arb(scaling.original_max_position_embeddings).log()).sqrt()
        over = arb(fmpq(1, 10)) * arb(scaling.mscale or 1) * log + 1
        return over / (arb(fmpq(1, 10)) * arb(scaling.mscale_all_dim or 0) * log + 1)


def axis_of(column: int, scaling: RopeScaling | None) -> int:
    """Which of the three axes of positions turns a column; 0 where all are one."""
    section = scaling.mrope_section if scaling else ()
    if not section:
        return 0
    if scaling and scaling.mrope_interleaved:
        axis = column % 3
        return axis if column < 3 * section[axis] else 0
    return (column >= section[0]) + (column >= section[0] + section[1])
