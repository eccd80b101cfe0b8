"""Builders of PoPE's table with one mistake each, and their right twin: torch, in float64.

A float64 angle is right enough for a float32 table up to angles of about 2^24 radians, so positions
stay below 2^17 and every mistake stands alone. tests/test_wrong_pope_table.py names the law that
rejects each.
"""

from __future__ import annotations

import torch

from tightrope import Arithmetic, implements

LIMITS = {
    "positions": ("range", "random", "repeated", "descending", "negative", "powers"),
    "rope_theta": (10000.0, 500000.0, 100.0),
}
FLOAT64 = Arithmetic(
    position="exact", inv_freq="float64", inv_freq_ulp=8, inv_freq_output="float64",
    angle="float64", trig_ulp=1.0,
)  # fmt: skip


def builder(name, **more):
    return implements("pope_table", name=name, arithmetic=FLOAT64, **{**LIMITS, **more})


def powers(exponents, rope_theta, device):
    return rope_theta ** exponents.to(device)


def table(positions, inv_freq, angle=None):
    angle = positions.double()[:, None] * inv_freq if angle is None else angle
    return inv_freq, angle.cos().float(), angle.sin().float()


@builder("right")
def right(positions, *, rotary_dim, rope_theta, exponent_sign):
    exponents = exponent_sign * torch.arange(rotary_dim, dtype=torch.float64) / rotary_dim
    return table(positions, powers(exponents, rope_theta, positions.device))


@builder("exponent_sign_flipped")
def _(positions, *, rotary_dim, rope_theta, exponent_sign):
    return right(
        positions, rotary_dim=rotary_dim, rope_theta=rope_theta, exponent_sign=-exponent_sign
    )


@builder("paired_frequencies")
def _(positions, *, rotary_dim, rope_theta, exponent_sign):
    pair = 2 * (torch.arange(rotary_dim) // 2)
    exponents = exponent_sign * pair.double() / rotary_dim
    return table(positions, powers(exponents, rope_theta, positions.device))


@builder("exponent_of_rope")
def _(positions, *, rotary_dim, rope_theta, exponent_sign):
    exponents = exponent_sign * 2.0 * torch.arange(rotary_dim, dtype=torch.float64) / rotary_dim
    return table(positions, powers(exponents, rope_theta, positions.device))


@builder("one_more_in_the_denominator")
def _(positions, *, rotary_dim, rope_theta, exponent_sign):
    exponents = exponent_sign * torch.arange(rotary_dim, dtype=torch.float64) / (rotary_dim + 1)
    return table(positions, powers(exponents, rope_theta, positions.device))


@builder("frequencies_from_one")
def _(positions, *, rotary_dim, rope_theta, exponent_sign):
    exponents = exponent_sign * (torch.arange(rotary_dim, dtype=torch.float64) + 1) / rotary_dim
    return table(positions, powers(exponents, rope_theta, positions.device))


@builder("base_ignored")
def _(positions, *, rotary_dim, rope_theta, exponent_sign):
    return right(positions, rotary_dim=rotary_dim, rope_theta=10000.0, exponent_sign=exponent_sign)


@builder("positions_in_bfloat16")
def _(positions, **options):
    return right(positions.bfloat16(), **options)


@builder("position_one_late")
def _(positions, **options):
    return right(positions + 1, **options)


@builder("angle_in_float32")
def _(positions, **options):
    inv_freq, _, _ = right(positions, **options)
    return table(positions, inv_freq, (positions.double()[:, None] * inv_freq).float().double())


@builder("table_in_bfloat16")
def _(positions, **options):
    inv_freq, cos, sin = right(positions, **options)
    return inv_freq, cos.bfloat16().float(), sin.bfloat16().float()


@builder("cos_scaled")
def _(positions, **options):
    inv_freq, cos, sin = right(positions, **options)
    return inv_freq, cos * (1 + 2.0**-20), sin


@builder("cos_for_sin")
def _(positions, **options):
    inv_freq, cos, _ = right(positions, **options)
    return inv_freq, cos, cos


@builder("magnitude_of_the_position")
def _(positions, **options):
    return right(positions.abs(), **options)


@builder("row_of_the_token")
def _(positions, **options):
    return right(torch.arange(len(positions), device=positions.device), **options)


@builder("a_phase_in_every_angle")
def _(positions, **options):
    inv_freq, _, _ = right(positions, **options)
    return table(positions, inv_freq, positions.double()[:, None] * inv_freq - 2.0**-10)


@builder("inv_freq_in_float32")
def _(positions, **options):
    inv_freq, cos, sin = right(positions, **options)
    return inv_freq.float().double(), cos, sin


@builder("inv_freq_of_the_other_sign")
def _(positions, **options):
    inv_freq, cos, sin = right(positions, **options)
    return 1 / inv_freq, cos, sin


@builder("inv_freq_for_longer_positions")
def _(positions, **options):
    """Frequencies that are stretched once a sequence grows past a length, as NTK scaling does."""
    far = len(positions) and int(positions.max()) > 1
    inv_freq, cos, sin = right(positions, **options)
    return inv_freq * (0.5 if far else 1.0), cos, sin
