"""Right gradients of polar attention in plain torch, whose steps can be exchanged for wrong ones.

Points are those of tests/right_pope.py, their gradients those of tests/right_attention_backward.py
before the scale; from there on everything is float32. tests/wrong_pope_backward.py puts the
mistakes in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import right_attention_backward
import torch
from right_attention_backward import Steps, attention_backward, summed
from right_pope import Parts, exact, expand, prescribed
from tiled_attention import same, single, visible

from tightrope import Arithmetic

LEFT_OUT = ("block_k", "lse", "sink")


def sigmoid(x):
    """1/(1 + e^-x) in float64, rounded once to float32."""
    return torch.sigmoid(x.double()).float()


UNSCALED = Steps(scales=lambda scale: (1.0, 1.0))  # the scale comes last


@dataclass(frozen=True, kw_only=True)
class Way:
    """Where a mistake may go; every default is right. points: of the forward pass that is made
    again; steps: of attention's backward pass on them."""

    points: Parts = field(default_factory=Parts)
    steps: Steps = UNSCALED
    back: Parts | None = None
    derivative: Callable[..., Any] = sigmoid
    points_kept: Callable[..., Any] = same
    cosine: float = 1.0
    sine: float = 1.0
    plain: Callable[..., Any] = lambda grad, x: grad
    scales: Callable[..., Any] = lambda scale: (scale, scale, scale)
    width: Callable[..., Any] = lambda q, inv_freq: q.shape[-1]
    reduce: Callable[..., Any] = summed
    phase_of: Callable[..., Any] = lambda mu, c, s, x, y: mu * (c * y - s * x)
    over_sequences: Callable[..., Any] = lambda turned: turned.sum(0)
    over_heads: Callable[..., Any] = lambda turned, heads: turned.unflatten(0, (heads, -1)).sum(1)
    keys: Callable[..., Any] = lambda k, v, positions: (k, v, positions)


def turns(positions, inv_freq, phase, parts):
    """cos and sin of every place, (batch or 1, heads or 1, seqlen, rotary_dim)."""
    angles = parts.angles(torch.atleast_2d(positions)[:, None, :, None], inv_freq, phase)
    return tuple(parts.table(t.float()) for t in (angles.cos(), angles.sin()))


def returned(x, grad, table, way):
    """From gradients of points to those of features."""
    c, s = table
    width = c.shape[-1]
    e_x, e_y, plain = grad[..., :width], grad[..., width : 2 * width], grad[..., 2 * width :]
    turned = way.cosine * c * e_x + way.sine * s * e_y
    polar = way.derivative(x[..., :width].float()) * turned
    return torch.cat([polar, way.plain(plain, x[..., width:])], -1)


def pope_backward(
    dout, q, k, v, out, lse, inv_freq, delta, q_positions, k_positions, *, softmax_scale=None,
    out_dtype=None, way=None, **options,
):  # fmt: skip
    """dq, dk, dv and ddelta as the contract has them, with the mistakes of `way`."""
    way, keys, group = way or Way(), k.shape[2], q.shape[1] // k.shape[1]
    scale = way.width(q, inv_freq) ** -0.5 if softmax_scale is None else softmax_scale
    looked_at = visible(q, k, options.get("causal", False), options.get("q_offset", 0),
                        options.get("window_size", (None, None))).any(1)  # fmt: skip
    k, v = (torch.where(looked_at[:, None, :, None], x, 0) for x in (k, v))
    k, v, k_positions = way.keys(k, v, k_positions)
    phase, heads = None, k.shape[1]
    if delta is not None:  # a phase of every query head gives it keys of its own
        heads = max(heads, delta.shape[0])
        phase = way.points.k_phase(way.points.phase(delta, heads))
    k, v = (way.points.heads(x, heads // k.shape[1]) for x in (k, v))
    inv_freq = way.points.frequencies(inv_freq)
    q_positions, k_positions = (
        way.points.q_positions(q_positions), way.points.k_positions(k_positions)
    )  # fmt: skip
    points = (
        expand(q, q_positions, inv_freq, None, way.points),
        expand(k, k_positions, inv_freq, phase, way.points),
    )
    grads = attention_backward(
        dout, *points, v, out, lse, softmax_scale=scale, out_dtype=torch.float32, steps=way.steps,
        **options,
    )  # fmt: skip
    de_q, de_k = (way.points_kept(x) for x in grads[:2])
    parts = way.back or way.points
    again = phase if way.back is None or phase is None else way.back.k_phase(phase)
    tables = [turns(q_positions, inv_freq, None, parts), turns(k_positions, inv_freq, again, parts)]
    of_q, of_k, of_delta = (single(x) for x in way.scales(scale))
    dq, dk = returned(q, de_q, tables[0], way) * of_q, returned(k, de_k, tables[1], way) * of_k
    shared = heads // (q.shape[1] // group)
    dk, dv = (way.reduce(x, shared)[:, :, :keys] for x in (dk, grads[2]))
    found = [x.to(out_dtype or q.dtype) for x in (dq, dk, dv)]
    return (*found, phases(k, de_k, tables[1], delta, of_delta, way))


def phases(k, grad, table, delta, scale, way):
    """ddelta; None without delta."""
    if delta is None:
        return None
    width = table[0].shape[-1]
    e_x, e_y = grad[..., :width], grad[..., width : 2 * width]
    turned = way.phase_of(way.points.softplus(k[..., :width].float()), *table, e_x, e_y)
    return way.over_heads(way.over_sequences(turned.sum(2)), delta.shape[0]) * scale


def declared(case, device):
    """Every rounding above but for the order of sums."""
    points = {n: x for n, x in prescribed(case, device).items() if n not in LEFT_OUT}
    own = {"sigmoid_ulp": points["trig_ulp"], "sigmoid_error": 0.0, "point_gradients": "float32"}
    backward = right_attention_backward.declared(case, device)
    return Arithmetic(**{**points, **backward, **own, "phase_sums": "keys"})


def turning(case, device):
    """Exact angles; for the rest what a stranger is granted."""
    return Arithmetic(**exact(case, device), state="given", heads="summed")
