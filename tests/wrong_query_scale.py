"""Query temperatures with one mistake each, and right twins: torch, in float64 and float32.

tests/test_query_scale.py demands that all but the right ones are rejected.
"""

from __future__ import annotations

import torch

from tightrope import Arithmetic, implements

FLOAT64 = Arithmetic(position="exact", quotient="float64", log="float64", log_ulp=1.5)


def temperature(name, arithmetic=FLOAT64):
    return implements("query_scale", name=name, arithmetic=arithmetic)


def steps(positions, floor_scale, shift):
    return torch.div(positions.long() + shift, floor_scale, rounding_mode="floor").double()


@temperature("right")
def right(positions, *, attn_scale, floor_scale, shift):
    return (1 + attn_scale * steps(positions, floor_scale, shift).log1p()).float()


@temperature("right_float32", None)
def _(positions, *, attn_scale, floor_scale, shift):
    step = torch.tensor(float(floor_scale), device=positions.device)  # by a number, CUDA's torch
    floor = torch.floor((positions.float() + float(shift)) / step)  # multiplies by 1/floor_scale
    return torch.log1p(floor) * attn_scale + 1.0


@temperature("one_position_late")
def _(positions, *, attn_scale, floor_scale, shift):
    return right(positions, attn_scale=attn_scale, floor_scale=floor_scale, shift=0)


@temperature("one_position_early")
def _(positions, *, attn_scale, floor_scale, shift):
    return right(positions, attn_scale=attn_scale, floor_scale=floor_scale, shift=1)


@temperature("floor_left_out")
def _(positions, *, attn_scale, floor_scale, shift):
    return (1 + attn_scale * ((positions.double() + shift) / floor_scale).log1p()).float()


@temperature("logarithm_in_base_2")
def _(positions, *, attn_scale, floor_scale, shift):
    return (1 + attn_scale * (1 + steps(positions, floor_scale, shift)).log2()).float()


@temperature("last_position_for_all")
def _(positions, *, attn_scale, floor_scale, shift):
    found = right(positions, attn_scale=attn_scale, floor_scale=floor_scale, shift=shift)
    return found.max().expand(len(found)).clone() if len(found) else found


@temperature("result_in_bfloat16")
def _(positions, *, attn_scale, floor_scale, shift):
    found = right(positions, attn_scale=attn_scale, floor_scale=floor_scale, shift=shift)
    return found.bfloat16().float()


@temperature("position_cut_to_16_bits")
def _(positions, *, attn_scale, floor_scale, shift):
    return right(positions & 0xFFFF, attn_scale=attn_scale, floor_scale=floor_scale, shift=shift)
