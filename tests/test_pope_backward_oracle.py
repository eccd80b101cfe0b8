"""`pope_attention_backward`: its oracles against one another, against differences of the forward
pass and torch's autograd, and against mistakes.
"""

from __future__ import annotations

import dataclasses

import mpmath
import numpy as np
import pytest
import torch
from attention_case_draws import QUICK
from attention_limits import apart, flat
from hypothesis import given, settings
from hypothesis import strategies as st
from pope_backward_calls import SETTINGS, SPEC, budgets, call, exact, mpmath_limit

from tightrope.oracles import pope_attention_backward_mpmath, pope_attention_mpmath
from tightrope.oracles.attention_backward_mpmath import slope
from tightrope.oracles.attention_backward_problem import weights
from tightrope.oracles.attention_inputs import seen
from tightrope.oracles.pope_attention_backward_cases import forward
from tightrope.oracles.pope_attention_backward_problem import Turned
from tightrope.oracles.pope_attention_cases import DATA, POSITIONS
from tightrope.oracles.rope_attention_inputs import offsets_of

NAMED = pytest.mark.parametrize("name", SETTINGS)


def disagreements(case, inputs, found, limits):
    """(output, flat index) of all elements of `found` that are not the exact ones."""
    return [
        (output, i)
        for output in SPEC.outputs
        for i in apart(found[output], exact(case, inputs, output), limits[output])
    ]


def float64(case, inputs):
    return {name: flat(x) for name, x in SPEC.oracle(case, inputs).items()}


def float64_limits(case, inputs):
    """What the budget says of float64 itself."""
    found = budgets(case, inputs)
    return {name: np.broadcast_to(b.oracle, b.expected.shape) for name, b in found.items()}


def by_mpmath(case, inputs):
    return pope_attention_backward_mpmath.pope_attention_backward(case, inputs)


def check_layers(case, inputs):
    """Ball arithmetic, mpmath and float64 agree on every element."""
    limits = dict.fromkeys(SPEC.outputs, mpmath_limit(case, inputs))
    assert disagreements(case, inputs, by_mpmath(case, inputs), limits) == []
    assert disagreements(case, inputs, float64(case, inputs), float64_limits(case, inputs)) == []


@NAMED
def test_arb_mpmath_and_float64_agree(name):
    check_layers(*call(**SETTINGS[name]))


KINDS = {
    "dtype": ["float16", "bfloat16", "float32"], "state": ["exact", "low_precision"],
    "hidden": ["finite", "nan", "inf"], "softcap": [None, 0.5, 4.0], "causal": [False, True],
    "softmax_scale": [None, 0.3, 1.0], "window_left": [None, 0, 2], "head_dim": [2, 3],
    "rotary_dim": [1, 2], "seqlen_q": range(4), "seqlen_k": range(4), "q_offset": range(-2, 4),
    "delta": ["none", "kv_heads", "heads"], "delta_data": ["clamped", "wide", "zero"],
    "positions": POSITIONS, "start": [0, -7, 1 << 20], "data": DATA, "seed": range(2**16),
}  # fmt: skip
HEADS = [(1, 1), (2, 1), (4, 2)]


@st.composite
def calls(draw):
    fields = {name: draw(st.sampled_from(values)) for name, values in KINDS.items()}
    num_heads, num_kv_heads = draw(st.sampled_from(HEADS))
    return call(num_heads=num_heads, num_kv_heads=num_kv_heads, empty_rows=True, **fields)


@settings(QUICK, max_examples=20)
@given(calls())
def test_arb_mpmath_and_float64_agree_on_every_combination(drawn):
    check_layers(*drawn)


@pytest.mark.parametrize("name", ["plain", "growing", "window"])
def test_with_the_exact_state_it_is_the_gradient_of_polar_attention(name):
    """Central differences of sum(dout out) over whole forward passes in 60 digits, at a step of
    10^-22: 10^-30 is far above what either side loses, and far below a mistake.
    """
    case, inputs = call(**SETTINGS[name], seed=3)
    with mpmath.workdps(60):
        truth = pope_attention_mpmath.pope_attention(forward(case), inputs)
        held = held_of(inputs)
        held["out"] = nested(truth["out"], inputs["out"].shape)
        held["lse"] = nested(truth["lse"], inputs["lse"].shape)
        scaled = dataclasses.replace(case, softmax_scale=float(1 / mpmath.sqrt(case.head_dim)))
        found = pope_attention_backward_mpmath.of_numbers(scaled, held, None)
        for output in ("dq", "dk", "ddelta"):
            for mine, theirs in zip(found[output], slopes(scaled, held, output), strict=True):
                assert abs(mine - theirs) < mpmath.mpf(10) ** -30


def held_of(inputs):
    names = pope_attention_backward_mpmath.NAMES
    held = {name: pope_attention_mpmath.numbers(inputs[name]) for name in names}
    for name in ("q_positions", "k_positions"):
        held[name] = [inputs[name].tolist()] * len(inputs["q"])
    held["delta"] = pope_attention_mpmath.numbers(inputs["delta"]) if "delta" in inputs else []
    return held


def nested(values, shape):
    """A flat list as nested lists of a shape."""
    if len(shape) == 1:
        return list(values)
    size = len(values) // shape[0]
    return [nested(values[i * size : (i + 1) * size], shape[1:]) for i in range(shape[0])]


def slopes(case, held, output):
    """Of sum(dout out), by every element of q, k or delta; one head."""
    vectors = held["delta"] if output == "ddelta" else held[output.removeprefix("d")][0][0]
    for vector in vectors:
        for place in range(len(vector)):
            yield slope(vector, place, lambda: loss(case, held))


def loss(case, held):
    total = mpmath.mpf(0)
    v, rows = held["v"][0][0], range(case.seqlen_q)
    for i in rows:
        keys = [j for j in range(case.seqlen_k) if pope_attention_backward_mpmath.sees(case, i, j)]
        t = [pope_attention_backward_mpmath.polar(case, held, 0, 0, i, j) for j in keys]
        w = [mpmath.exp(x) for x in t]
        dp = [mpmath.fdot(held["dout"][0][0][i], v[j]) for j in keys]
        total += mpmath.fdot(w, dp) / mpmath.fsum(w) if keys else 0
    return total


@NAMED
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
