"""References as projects' tests have them: plain torch, every step in the dtype of the inputs.

Only what tests/record_field_tolerances.py needs: contiguous inputs, no sinks of their own dtype.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from tiled_attention import LOWEST, blocked, visible

from tightrope.arena import Arena
from tightrope.device import to_numpy
from tightrope.formats import widen


def tensors(spec, case, inputs):
    """Arguments of a call by name, as tensors of their layouts."""
    arena = Arena(inputs, spec.layouts(case), "cpu")
    arena.upload()
    return {name: arena.argument(name) for name in arena.sections}


def rope(case, q, k, cos, sin, positions):
    c, s = (t[positions.long()][:, None].to(q.dtype) for t in (cos, sin))
    half = c.shape[-1]
    outs = []
    for x in (q, k):
        y = x.clone()
        step = slice(0, 2 * half, 2) if case.interleaved else slice(0, half)
        other = slice(1, 2 * half, 2) if case.interleaved else slice(half, 2 * half)
        y[..., step] = x[..., step] * c - x[..., other] * s
        y[..., other] = x[..., other] * c + x[..., step] * s
        outs.append(y)
    return dict(zip(("q", "k"), outs, strict=True))


def attention(case, q, k, v, bias=None, sink=None, q_offset=None):
    offset = case.q_offset if q_offset is None else q_offset
    seen = visible(q, k, case.causal, offset, (case.window_left, case.window_right))[:, None]
    used = torch.isfinite(k.float()).all(-1)[:, :1, None]
    group = q.shape[1] // k.shape[1]
    k, v = (blocked(torch.nan_to_num(x, 0, 0, 0), group) for x in (k, v))
    scale = q.shape[-1] ** -0.5 if case.softmax_scale is None else case.softmax_scale
    s = (q @ k.transpose(-1, -2)) * scale
    s = s if case.softcap is None else case.softcap * torch.tanh(s / case.softcap)
    s = s if bias is None else s + bias.to(s.dtype)
    s = torch.where(seen & used, s, LOWEST)
    if sink is not None:
        s = torch.cat([s, sink.to(s.dtype)[None, :, None, None].expand(*s.shape[:3], 1)], -1)
    p = torch.nan_to_num(torch.softmax(s, -1))
    return {"out": p[..., : k.shape[2]] @ v}


def pope(case, q, k, v, inv_freq, q_positions, k_positions, delta=None, **more):
    """Features in the dtype of the inputs; angles in float32, as public code has them."""
    group = q.shape[1] // k.shape[1]
    k, v = (blocked(x, group) for x in (k, v))
    sides = []
    for x, positions, phase in ((q, q_positions, None), (k, k_positions, delta)):
        angle = torch.atleast_2d(positions)[:, None, :, None].float() * inv_freq.float()
        if phase is not None:
            angle = angle + blocked(phase[None], q.shape[1] // len(phase))[:, :, None]
        width = len(inv_freq)
        mu = torch.nn.functional.softplus(x[..., :width].float())
        polar = [(mu * t).to(x.dtype) for t in (angle.cos(), angle.sin())]
        sides.append(torch.cat([*polar, x[..., width:]], -1))
    scale = q.shape[-1] ** -0.5 if case.softmax_scale is None else case.softmax_scale
    return attention(replace(case, softmax_scale=scale), *sides, v, **more)


REFERENCES = {"rope": rope, "attention": attention, "pope_attention": pope}


def plain(spec, case, inputs):
    """Output name -> float64 values of the reference."""
    found = REFERENCES[spec.name](case, **tensors(spec, case, inputs))
    return {name: widen(to_numpy(x.contiguous())) for name, x in found.items()}
