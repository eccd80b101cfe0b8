"""Builders of cos and sin tables with one mistake each, and their right twin: torch, in float64.

A float64 angle is right enough for a float32 table up to positions of about 2^24, so every mistake
stands alone. tests/test_wrong_kernels.py demands that all but `right` are rejected.
"""

from __future__ import annotations

import math

import torch

from tightrope import Arithmetic, implements

LIMITS = {"positions": ("range", "random", "repeated", "descending", "negative", "powers", "long")}
FLOAT64 = Arithmetic(
    position="exact", inv_freq="float64", inv_freq_ulp=4, angle="float64", trig_ulp=1.0
)


def table(angle):
    return angle.cos().float(), angle.sin().float()


def frequencies(rotary_dim, rope_theta, device):
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float64, device=device) / rotary_dim
    return rope_theta**-exponents


def builder(name, **more):
    return implements("rope_table", name=name, arithmetic=FLOAT64, **LIMITS, **more)


@builder("right")
def right(positions, *, rotary_dim, rope_theta):
    return table(
        positions.double()[:, None] * frequencies(rotary_dim, rope_theta, positions.device)
    )


@builder("sin_sign")
def _(positions, *, rotary_dim, rope_theta):
    cos, sin = right(positions, rotary_dim=rotary_dim, rope_theta=rope_theta)
    return cos, -sin


@builder("cos_and_sin_swapped")
def _(positions, *, rotary_dim, rope_theta):
    cos, sin = right(positions, rotary_dim=rotary_dim, rope_theta=rope_theta)
    return sin, cos


@builder("exponent_positive")
def _(positions, *, rotary_dim, rope_theta):
    return right(positions, rotary_dim=rotary_dim, rope_theta=1 / rope_theta)


@builder("exponent_halved")
def _(positions, *, rotary_dim, rope_theta):
    return right(positions, rotary_dim=rotary_dim, rope_theta=math.sqrt(rope_theta))


@builder("base_ignored")
def _(positions, *, rotary_dim, rope_theta):
    return right(positions, rotary_dim=rotary_dim, rope_theta=10000.0)


@builder("position_one_late")
def _(positions, *, rotary_dim, rope_theta):
    return right(positions + 1, rotary_dim=rotary_dim, rope_theta=rope_theta)


@builder("position_without_sign")
def _(positions, *, rotary_dim, rope_theta):
    return right(positions.abs(), rotary_dim=rotary_dim, rope_theta=rope_theta)


@builder("position_in_bfloat16")
def _(positions, *, rotary_dim, rope_theta):
    return right(positions.bfloat16(), rotary_dim=rotary_dim, rope_theta=rope_theta)


@builder("position_clamped_at_4096")
def _(positions, *, rotary_dim, rope_theta):
    return right(positions.clamp(-4096, 4096), rotary_dim=rotary_dim, rope_theta=rope_theta)


@builder("token_index_for_position")
def _(positions, *, rotary_dim, rope_theta):
    return right(
        torch.arange(len(positions), device=positions.device),
        rotary_dim=rotary_dim,
        rope_theta=rope_theta,
    )


@builder("inv_freq_in_bfloat16")
def _(positions, *, rotary_dim, rope_theta):
    inv_freq = frequencies(rotary_dim, rope_theta, positions.device).bfloat16().double()
    return table(positions.double()[:, None] * inv_freq)


@builder("angle_in_float32")
def _(positions, *, rotary_dim, rope_theta):
    angle = positions.double()[:, None] * frequencies(rotary_dim, rope_theta, positions.device)
    return table(angle.float().double())


@builder("table_in_float16")
def _(positions, *, rotary_dim, rope_theta):
    cos, sin = right(positions, rotary_dim=rotary_dim, rope_theta=rope_theta)
    return cos.half().float(), sin.half().float()


@builder("two_pi_to_six_digits")
def _(positions, *, rotary_dim, rope_theta):
    angle = positions.double()[:, None] * frequencies(rotary_dim, rope_theta, positions.device)
    return table(torch.remainder(angle, 6.28319))
