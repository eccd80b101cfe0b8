"""Right polar attention in plain torch, whose parts can be exchanged for wrong ones.

Magnitudes, angles and features are made step by step and rounded as `exact` and `declared` say;
tests/tiled_attention.py attends to them. tests/wrong_pope*.py put the mistakes in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
import torch
from tiled_attention import attention, declared, same

from tightrope import Arithmetic

BITS = 192
with mpmath.workprec(2 * BITS):
    TURNS = int(mpmath.floor(mpmath.ldexp(1, BITS) / (2 * mpmath.pi)))  # of a radian, fixed point


def softplus(x):
    """ln(1 + e^x) in float64, rounded once to float32."""
    return torch.logaddexp(x.double(), torch.zeros((), dtype=torch.float64)).float()


def turned(places, frequencies):
    """places * frequencies in turns, fixed point; frequencies (.., rotary_dim) count as exact."""
    ratios = [f.as_integer_ratio() for f in frequencies.double().flatten().tolist()]
    steps = np.array([n * TURNS // d for n, d in ratios], object).reshape(frequencies.shape)
    return places * steps


def exact_angles(positions, inv_freq, phase):
    """Float64 angles of any positions (.., seqlen, 1), off by less than 2^-49.

    inv_freq (rotary_dim,), phase (num_heads, 1, rotary_dim) or None. Whole turns are dropped in
    integers.
    """
    angles = turned(np.array(positions.tolist(), object).reshape(positions.shape), inv_freq)
    angles = angles if phase is None else angles + turned(1, phase)
    fractions = (angles & ((1 << BITS) - 1)) >> (BITS - 64)
    turns = torch.from_numpy(np.ldexp(fractions.astype(np.float64), -64))
    return (turns - turns.round()) * (2 * torch.pi)


def single_angles(positions, inv_freq, phase):
    """As an honest float32 kernel has them: every step rounded to float32."""
    angles = positions.float() * inv_freq.float()
    return (angles if phase is None else angles + phase.float()).double()


def blocked(delta, num_heads):
    """(num_heads, 1, rotary_dim): query head h goes by kv head h // group."""
    return delta.repeat_interleave(num_heads // max(1, delta.shape[0]), 0)[:, None]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Where a mistake may go; every default is right."""

    softplus: Callable[..., Any] = softplus
    plain: Callable[..., Any] = same
    frequencies: Callable[..., Any] = same
    angles: Callable[..., Any] = exact_angles
    phase: Callable[..., Any] = blocked
    q_phase: Callable[..., Any] = lambda phase: None
    k_phase: Callable[..., Any] = same
    heads: Callable[..., Any] = lambda x, group: x.repeat_interleave(group, 1)
    q_positions: Callable[..., Any] = same
    k_positions: Callable[..., Any] = same
    table: Callable[..., Any] = same
    features: Callable[..., Any] = lambda x, dtype: x.to(dtype)
    sine: float = 1.0


def expand(x, positions, inv_freq, phase, parts):
    """(batch, heads, seqlen, 2 rotary_dim + rest): mu cos, mu sin, plain features, in x's dtype."""
    rows = torch.atleast_2d(positions)[:, None, :, None]
    angles = parts.angles(rows, inv_freq, phase)
    width = inv_freq.shape[0]
    mu, rest = parts.softplus(x[..., :width].float()), parts.plain(x[..., width:])
    c, s = (parts.table(t.float()) for t in (angles.cos(), parts.sine * angles.sin()))
    polar = (parts.features(mu * t, x.dtype) for t in (c, s))
    return torch.cat([*polar, rest.to(x.dtype)], -1)


def pope(
    q, k, v, inv_freq, delta, q_positions, k_positions, *, softmax_scale=None, parts=None,
    out_dtype=None, **options,
):  # fmt: skip
    """out and lse as the contract `pope_attention` has them, with the mistakes of `parts`.

    options: of tests/tiled_attention.py, `steps` among them.
    """
    parts, group, dtype = parts or Parts(), q.shape[1] // k.shape[1], q.dtype
    k, v = (parts.heads(x, group) for x in (k, v))
    phase = None if delta is None else parts.phase(delta, q.shape[1])
    inv_freq = parts.frequencies(inv_freq)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    q = expand(q, parts.q_positions(q_positions), inv_freq, parts.q_phase(phase), parts)
    k = expand(k, parts.k_positions(k_positions), inv_freq, parts.k_phase(phase), parts)
    return attention(q, k, v, softmax_scale=scale, out_dtype=out_dtype or dtype, **options)


def exact(case, device):
    """Angles as above; for the rest what a stranger is granted."""
    return Arithmetic(angle="exact", angle_error=2.0**-48)


def prescribed(case, device):
    """Every rounding above but for the order of sums."""
    once = 0.5 + 2.0**-20  # a float64 function rounded to float32
    polar = {"trig_ulp": once, "softplus_ulp": once, "softplus_error": 0.0, "features": "input"}
    return Arithmetic(**{**declared(case, device), **exact(case, device), **polar})
