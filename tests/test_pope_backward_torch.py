"""`pope_attention_backward` in float64 against torch's autograd of the formula as it is printed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pope_backward_calls import SETTINGS, SPEC, call

from tightrope.oracles.attention_backward_problem import weights
from tightrope.oracles.attention_inputs import seen
from tightrope.oracles.pope_attention_backward_problem import Turned
from tightrope.oracles.rope_attention_inputs import offsets_of


@pytest.mark.parametrize("name", SETTINGS)
def test_torch_autograd_agrees(name):
    """In float64, of the plain formula. Where the state is the float64 pass's own, both are the
    same function; besides what the budget counts of float64, autograd's sums over n keys or rows
    lose n + head_dim + 40 roundings of absolute products, with derivatives at most 1 + |angle|.
    """
    case, inputs = call(**{**SETTINGS[name], "hidden": "finite", "state": "exact", "seed": 2})
    found, out, lse = autograd(case, inputs)
    live = np.isfinite(lse)
    own = {**inputs, "out": out, "lse": np.where(live, lse, -np.inf)}
    mine = SPEC.oracle(case, own)
    size = sizes(case, own)
    n = case.seqlen_q * case.num_heads * case.batch + case.seqlen_k + case.head_dim + 40
    turn = 1 + max(float(np.abs(inputs[f"{x}_positions"]).max(initial=0)) for x in "qk")
    for output, x in found.items():
        limit = n * 2.0**-53 * turn * size[output]
        assert (np.abs(mine[output] - x) <= limit).all(), output


def sizes(case, inputs):
    """Of every gradient, with absolute values throughout."""
    b = Turned.of(case, inputs).b
    p = weights(b)
    a = np.abs(b.dout) @ np.abs(b.forward.v).swapaxes(-1, -2)
    d = (np.abs(b.dout) * np.abs(b.out)).sum(-1, keepdims=True)
    a = p * (a + (p * a).sum(-1, keepdims=True) + d)
    point = max(float(np.abs(x).max(initial=0.0)) for x in (b.forward.q, b.forward.k))
    top = 1 + b.forward.softmax_scale * point**2 * case.head_dim
    whole = float(a.sum()) * b.forward.softmax_scale * point * top
    dv = float(np.abs(b.dout).max(initial=0.0) * p.sum()) * top
    return {"dq": whole, "dk": whole, "ddelta": whole * point, "dv": dv}


def autograd(case, inputs):
    """Gradients of sum(dout out), out and lse, of the formula as it is printed."""
    names = [n for n in ("q", "k", "v", "delta", "inv_freq", "dout") if n in inputs]
    x = {n: torch.from_numpy(inputs[n].astype(np.float64)) for n in names}
    kept = {n: x[n].requires_grad_() for n in ("q", "k", "v", "delta") if n in x}
    group, phase = case.num_heads // case.num_kv_heads, None
    if "delta" in x:
        phase = x["delta"].repeat_interleave(case.num_heads // len(x["delta"]), 0)[:, None, :]
    k, v = (x[n].repeat_interleave(group, 1) for n in ("k", "v"))
    q = pointed(x["q"], inputs["q_positions"], x["inv_freq"], None)
    k = pointed(k, inputs["k_positions"], x["inv_freq"], phase)
    t = q @ k.mT * (case.head_dim**-0.5 if case.softmax_scale is None else case.softmax_scale)
    t = t if case.softcap is None else case.softcap * torch.tanh(t / case.softcap)
    visible = np.broadcast_to(seen(case, offsets_of(case, inputs)), t.shape)
    visible = torch.from_numpy(visible.copy())
    lse = torch.logsumexp(torch.where(visible, t, -torch.inf), -1)
    live = torch.where(lse.isfinite(), lse, 0.0)[..., None]
    out = torch.where(visible, (t - live).exp(), 0.0) @ v
    (out * x["dout"]).sum().backward()
    found = {f"d{n}": y.grad.numpy() for n, y in kept.items()}
    return found, out.detach().numpy(), lse.detach().numpy()


def pointed(x, positions, inv_freq, phase):
    """mu cos, mu sin and plain features."""
    angle = torch.from_numpy(np.atleast_2d(positions).astype(np.float64))[:, None, :, None]
    angle = angle * inv_freq if phase is None else angle * inv_freq + phase
    polar, plain = x[..., : len(inv_freq)], x[..., len(inv_freq) :]
    mu = torch.logaddexp(polar, torch.zeros((), dtype=x.dtype))
    return torch.cat([mu * angle.cos(), mu * angle.sin(), plain], -1)
