"""Right kernels in plain torch with a relative error at one stage, for the record of sharpness.

TWINS: (contract, what is declared) -> (arithmetic, stage -> a function of the error that gives the
kernel). An error of 0 is the right twin itself.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from right_attention_backward import Steps as BackSteps
from right_attention_backward import attention_backward
from right_attention_backward import declared as back_declared
from right_pope import Parts, exact, exact_angles, pope, prescribed, softplus
from tiled_attention import Steps, attention, declared, finish
from wrong_attention_parts import merge
from wrong_rope import rows, turn
from wrong_scaling import FLOAT64, frequencies

from tightrope import Arithmetic


def kept(stage, e):
    """A step of attention, off by 1 + e."""
    return {
        "scores": Steps(scores=lambda s: s * (1 + e)),
        "P": Steps(weights=lambda p, dtype: (p * (1 + e)).to(dtype).float()),
        "denominator": Steps(summed=lambda p, dtype: p * (1 + e)),
        "accumulator": Steps(keep=lambda acc, l: acc * (1 + e)),
        "output": Steps(finish=lambda acc, l, m, late: (
            finish(acc, l, m, m)[0] * (1 + e), finish(acc, l, m, m)[1])),
        "lse": Steps(finish=lambda acc, l, m, late: (
            finish(acc, l, m, m)[0], finish(acc, l, m, m)[1] * (1 + e))),
        "scale": Steps(),
    }[stage]  # fmt: skip


def attended(stage, e):
    def call(q, k, v, *, softmax_scale=None, **options):
        scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
        scale = scale * (1 + e) if stage == "scale" else scale
        return attention(q, k, v, softmax_scale=scale, steps=kept(stage, e), **options)

    return call


def polar(stage, e):
    parts = {
        "magnitude": Parts(softplus=lambda x: softplus(x) * (1 + e)),
        "frequency": Parts(frequencies=lambda f: f.double() * (1 + e)),
        "angle": Parts(angles=lambda *given: exact_angles(*given) * (1 + e)),
        "phase": Parts(k_phase=lambda phase: None if phase is None else phase * (1 + e)),
        "scale": Parts(),
        "output": Parts(),
    }[stage]

    def call(q, *args, softmax_scale=None, **options):
        scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
        scale = scale * (1 + e) if stage == "scale" else scale
        steps = kept("output", e) if stage == "output" else None
        return pope(q, *args, softmax_scale=scale, parts=parts, steps=steps, **options)

    return call


def differentiated(stage, e):
    right = BackSteps()
    steps = {
        "P": replace(right, weights=lambda p, dtype: (p * (1 + e)).to(dtype).float()),
        "dS": replace(right, ds=lambda ds, dtype: (ds * (1 + e)).to(dtype).float()),
        "D": replace(right, d=lambda dout, out: (dout * out).sum(-1) * (1 + e)),
        "scale": replace(right, scales=lambda scale: (scale * (1 + e), scale * (1 + e))),
    }[stage]
    return lambda *args, **options: attention_backward(*args, **options, steps=steps)


def rotated(stage, e):
    angle = torch.tensor(e, dtype=torch.float64)

    def call(q, k, cos, sin, positions, *, interleaved, out_dtype=None):
        c, s = rows(cos, sin, positions)
        if stage == "angle":
            c, s = c * angle.cos() - s * angle.sin(), s * angle.cos() + c * angle.sin()
        if stage == "table":
            c, s = c * (1 + e), s * (1 + e)
        off = 1 + e if stage == "output" else 1.0
        outs = (turn(x.float(), c.float(), s.float(), interleaved) for x in (q, k))
        half = c.shape[-1] * 2
        return [
            torch.cat([y[..., :half] * off, y[..., half:]], -1).to(out_dtype or x.dtype)
            for x, y in zip((q, k), outs, strict=True)
        ]

    return call


def tabled(stage, e):
    def call(positions, *, rotary_dim, rope_theta, rope_scaling=None, seq_len=None):
        base = rope_theta * (1 + e) if stage == "base" else rope_theta
        inv_freq = frequencies({"rope_type": "default"}, rotary_dim, base, seq_len, "")
        inv_freq = inv_freq * (1 + e) if stage == "angle" else inv_freq
        angle, off = positions.double()[:, None] * inv_freq, 1 + e if stage == "output" else 1.0
        return (angle.cos() * off).float(), (angle.sin() * off).float()

    return call


def weighed(stage, e):
    def call(outs, lses):
        if stage == "weights":  # of the first state
            lses = torch.cat([lses[:1] + torch.log1p(torch.tensor(e)), lses[1:]])
        out, lse = merge(outs, lses)
        return (out * (1 + e) if stage == "output" else out), lse

    return call


ATTENTION = {stage: partial(attended, stage) for stage in (
    "scale", "scores", "P", "denominator", "accumulator", "output", "lse")}  # fmt: skip
POPE = {stage: partial(polar, stage) for stage in (
    "scale", "magnitude", "frequency", "angle", "phase", "output")}  # fmt: skip
BACKWARD = {stage: partial(differentiated, stage) for stage in ("scale", "P", "dS", "D")}
ROPE = {stage: partial(rotated, stage) for stage in ("angle", "table", "output")}
TABLE = {stage: partial(tabled, stage) for stage in ("base", "angle", "output")}
MERGE = {stage: partial(weighed, stage) for stage in ("weights", "output")}
ROUNDED = Arithmetic(product="float32", sum="float32", contraction="none")
TWINS = {
    ("rope", "nothing"): (None, ROPE),
    ("rope", "its roundings"): (ROUNDED, ROPE),
    ("rope_table", "nothing"): (None, TABLE),
    ("rope_table", "float64 angles"): (FLOAT64, TABLE),
    ("attention", "nothing"): (None, ATTENTION),
    ("attention", "its roundings"): (declared, ATTENTION),
    ("attention", "nothing, returns out alone"): (None, ATTENTION),
    ("attention", "its roundings, returns out alone"): (declared, ATTENTION),
    ("attention_backward", "nothing"): (None, BACKWARD),
    ("attention_backward", "its roundings"): (back_declared, BACKWARD),
    ("merge_attention", "nothing"): (None, MERGE),
    ("pope_attention", "exact angles"): (exact, POPE),
    ("pope_attention", "its roundings"): (prescribed, POPE),
}
LIMITS = {
    "rope": {"inplace": (False,)}, "rope_table": {"rope_scaling": ("default",), "axes": ("one",)},
    "pope_attention": {"delta": ("kv_heads", "heads")},
}  # fmt: skip
