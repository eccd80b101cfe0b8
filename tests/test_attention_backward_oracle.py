"""`attention_backward`: its oracles against one another, against differences of the forward pass
and torch's autograd, and against mistakes.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from attention_backward_calls import (
    DECLARED,
    OUTPUTS,
    SETTINGS,
    SPEC,
    call,
    exact,
    float64_limits,
    mpmath_limits,
)
from attention_case_draws import QUICK, mixtures
from attention_limits import apart, flat
from hypothesis import given, settings

from tightrope.oracles import attention_backward_mpmath, attention_mpmath
from tightrope.oracles.attention_backward_budget import backward
from tightrope.oracles.attention_backward_cases import forward
from tightrope.oracles.attention_backward_inputs import stated
from tightrope.oracles.attention_backward_problem import gradients, weights
from tightrope.oracles.attention_problem import attend

NAMED = pytest.mark.parametrize("name", SETTINGS)


def disagreements(case, inputs, found, limits):
    """(output, flat index) of all elements of `found` that are not the exact ones."""
    return [
        (output, i)
        for output in OUTPUTS
        for i in apart(found[output], exact(case, inputs, output), limits[output])
    ]


def float64(case, inputs):
    return {name: flat(x) for name, x in SPEC.oracle(case, inputs).items()}


def check_layers(case, inputs):
    """Ball arithmetic, mpmath and float64 agree on every element."""
    differences = attention_backward_mpmath.attention_backward(case, inputs)
    assert disagreements(case, inputs, differences, mpmath_limits(case, inputs)) == []
    assert disagreements(case, inputs, float64(case, inputs), float64_limits(case, inputs)) == []


@NAMED
def test_arb_mpmath_and_float64_agree(name):
    check_layers(*call(**SETTINGS[name]))


KINDS = {
    "dtype": ["float16", "bfloat16", "float32"], "state": ["exact", "low_precision"],
    "hidden": ["finite", "nan", "inf"], "softcap": [None, 0.5, 4.0], "causal": [False, True],
    "softmax_scale": [None, 0.3, 1.0, 4.0], "window_left": [None, 0, 1, 3],
    "window_right": [None, 0, 1, 3], "head_dim": [1, 2, 4], "head_dim_v": [1, 3],
    "seqlen_q": range(5), "seqlen_k": range(6), "q_offset": range(-3, 7), "seed": range(2**16),
}  # fmt: skip


@settings(QUICK, max_examples=40)
@given(mixtures(call, KINDS))
def test_arb_mpmath_and_float64_agree_on_every_combination(drawn):
    check_layers(*drawn)


@pytest.mark.parametrize("name", ["plain", "wide", "tall", "softcap", "groups"])
def test_with_the_exact_state_it_is_the_gradient_of_attention(name):
    """Central differences of sum(dout out) over whole forward passes, by dq and dk at a step of
    10^-20; by v, in which it is linear, at 1. Numbers have 60 digits, so that 10^-30 is far above
    what either side loses, and far below a mistake.
    """
    case, inputs = call(**SETTINGS[name] | {"batch": 1, "seqlen_k": 3, "seed": 3})
    with mpmath.workdps(attention_mpmath.DIGITS):
        held = {n: attention_mpmath.numbers(inputs[n]) for n in ("dout", "q", "k", "v")}
        truth = attention_mpmath.batched(forward(case), inputs, held["q"], held["k"])
        held["out"] = nested(truth["out"], inputs["out"].shape)
        held["lse"] = nested(truth["lse"], inputs["lse"].shape)
        found = attention_backward_mpmath.differences(case, held, None)
        for output in OUTPUTS:
            for i, slope in enumerate(slopes(case, inputs, held, output)):
                assert abs(slope - found[output][i]) < mpmath.mpf(10) ** -30


def nested(values, shape):
    """A flat list as nested lists of a shape."""
    if len(shape) == 1:
        return list(values)
    size = len(values) // shape[0]
    return [nested(values[i * size : (i + 1) * size], shape[1:]) for i in range(shape[0])]


def slopes(case, inputs, held, output):
    """Of sum(dout out), by every element of q, k or v."""
    name = output.removeprefix("d")
    dout = [mpmath.mpf(float(x)) for x in inputs["dout"].ravel()]
    step = mpmath.mpf(1) if name == "v" else mpmath.mpf(10) ** -20

    def loss(given):
        found = attention_mpmath.batched(forward(case), given, held["q"], held["k"])
        return mpmath.fdot(found["out"], dout)

    for at in np.ndindex(inputs[name].shape):
        ends = []
        for side in (1, -1):
            given = inputs
            if name == "v":
                given = {**inputs, "v": inputs["v"].astype(np.float64)}
                given["v"][at] += side
                ends.append(loss(given))
            else:
                vector = held[name][at[0]][at[1]][at[2]]
                vector[at[3]] += side * step
                ends.append(loss(given))
                vector[at[3]] -= side * step
        yield (ends[0] - ends[1]) / (2 * step)


@NAMED
def test_torch_autograd_agrees(name):
    """In float64, on the softmax itself. Besides what float64's own budget counts, autograd takes D
    as a sum over keys and P from a softmax: n roundings of sum P |dP|, and each weight's own.
    """
    case, inputs = call(**SETTINGS[name])
    b = stated(case, inputs)
    out, lse = attend(b.forward)
    live = np.isfinite(lse)
    b = dataclasses.replace(b, out=out, lse=np.where(live, lse, 0.0))
    found = autograd(b)
    spent = backward(b, DECLARED)
    p, n = weights(b), b.forward.k.shape[1]
    size = p * (np.abs(b.dout) @ np.abs(b.forward.v).swapaxes(-1, -2))
    size = (n + 8) * 2.0**-53 * (size + p * size.sum(-1, keepdims=True)) * b.forward.softmax_scale
    more = {"dq": size @ np.abs(b.forward.k), "dk": size.swapaxes(-1, -2) @ np.abs(b.forward.q)}
    more["dv"] = (n + 8) * 2.0**-53 * (p.swapaxes(-1, -2) @ np.abs(b.dout))
    for output, mine, theirs in zip(OUTPUTS, gradients(b), found, strict=True):
        extra = more[output]
        if output != "dq":
            extra = extra.reshape(len(extra) // b.group, b.group, *extra.shape[1:]).sum(1)
        assert (np.abs(mine - theirs) <= 2 * spent[output].oracle + extra).all()


def autograd(b):
    """dq, dk and dv of softmax(..) v by torch."""
    p = b.forward
    kept = [torch.from_numpy(x[:: step].copy()).requires_grad_() for x, step in (
        (p.q, 1), (p.k, b.group), (p.v, b.group))]  # fmt: skip
    q, k, v = kept[0], *(x.repeat_interleave(b.group, 0) for x in kept[1:])
    t = q @ k.transpose(-1, -2) * p.softmax_scale
    if p.softcap is not None:
        t = p.softcap * torch.tanh(t / p.softcap)
    seen = torch.from_numpy(p.visible.copy())
    live = seen.any(-1, keepdim=True)
    t = torch.where(seen, t, -torch.inf)
    weights = torch.softmax(torch.where(live, t, 0.0), -1) * live
    (weights @ v * torch.from_numpy(b.dout)).sum().backward()
    return [x.grad.numpy() for x in kept]


def _fields(**changes):
    return lambda case, inputs: (dataclasses.replace(case, **changes), inputs)


def _tensor(name, change):
    return lambda case, inputs: (case, {**inputs, name: change(inputs[name])})


MISTAKES = {
    "causal mask one key late": ("wide", _fields(q_offset=5)),
    "no causal mask": ("wide", _fields(causal=False)),
    "window without its left end": ("window", _fields(window_left=1)),
    "no softcap": ("softcap", _fields(softcap=None)),
    "scale off by one float64": ("plain", _fields(softmax_scale=np.nextafter(3**-0.5, 1))),
    "lse in base 2": ("plain", _tensor("lse", lambda x: x / np.float32(np.log(2)))),
    "no out": ("plain", _tensor("out", np.zeros_like)),
    "lse one unit off": ("plain", _tensor("lse", lambda x: np.nextafter(x, np.float32(np.inf)))),
    "one offset for all sequences": ("offsets", _tensor("q_offset", lambda x: x[:1].repeat(2))),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_noticed(mistake):
    name, change = MISTAKES[mistake]
    case, inputs = call(**SETTINGS[name] | {"hidden": "finite", "seed": 1})
    found = attention_backward_mpmath.attention_backward(*change(case, inputs))
    assert disagreements(case, inputs, found, mpmath_limits(case, inputs))
    if "float64" not in mistake:  # which float64 itself cannot tell
        wrong = float64(*change(case, inputs))
        assert disagreements(case, inputs, wrong, float64_limits(case, inputs))


def test_exact_knows_a_sum_that_cancels_to_nothing():
    """Two queries alike with opposite dout leave 0 in dk and dv; a third one is told."""
    case, inputs = call(seqlen_q=3, softcap=2.0)
    for name in ("q", "out"):
        inputs[name][:, :, 1] = inputs[name][:, :, 0]
    inputs["lse"][:, :, 1] = inputs["lse"][:, :, 0]
    inputs["dout"][:, :, 1], inputs["dout"][:, :, 2] = -inputs["dout"][:, :, 0], 0
    assert exact(case, inputs, "dk") == [0] * inputs["k"].size
    assert exact(case, inputs, "dv") == [0] * inputs["v"].size
    inputs["dout"][:, :, 2, 0] = 2.0**-14
    assert all(x != 0 for x in exact(case, inputs, "dk"))


def test_exact_refuses_what_is_not_finite_only_where_it_counts():
    case, inputs = call(seqlen_q=2, causal=True, q_offset=1, hidden="nan")
    check_layers(case, inputs)
    inputs["v"][..., 2, :] = np.inf
    with pytest.raises(ArithmeticError, match="infinite or NaN"):
        exact(case, inputs, "dq")
    inputs["lse"][..., 1] = -np.inf
    with pytest.raises(ArithmeticError, match="infinite or NaN"):
        exact(case, {**inputs, "v": np.zeros_like(inputs["v"])}, "dv")


def test_a_row_and_a_key_that_see_nothing_have_no_gradient():
    case, inputs = call(**SETTINGS["tall"], hidden="nan")
    assert np.isneginf(inputs["lse"][0, 0, :3]).all()
    assert exact(case, inputs, "dq")[: 3 * case.head_dim] == [Fraction(0)] * 3 * case.head_dim
    dq = SPEC.oracle(case, inputs)["dq"]
    assert not dq[:, :, :3].any()
    assert dq[:, :, 4:].any()
