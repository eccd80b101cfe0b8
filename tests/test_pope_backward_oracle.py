"""`pope_attention_backward`: its oracles against one another, against differences of the forward
pass, and against mistakes.
"""

from __future__ import annotations

import dataclasses

import mpmath
import numpy as np
import pytest
from attention_case_draws import QUICK, mixtures
from attention_limits import apart, flat
from hypothesis import given, settings
from pope_backward_calls import SETTINGS, SPEC, budgets, call, exact, mpmath_limit, size_of

from tightrope.oracles import pope_attention_backward_mpmath, pope_attention_mpmath
from tightrope.oracles.attention_backward_mpmath import slope
from tightrope.oracles.pope_attention_backward_cases import forward
from tightrope.oracles.pope_attention_cases import DATA, POSITIONS

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


@settings(QUICK, max_examples=20)
@given(mixtures(call, KINDS))
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


def _fields(**changes):
    return lambda case, inputs: (dataclasses.replace(case, **changes), inputs)


def _tensor(name, change):
    return lambda case, inputs: (case, {**inputs, name: change(inputs[name])})


MISTAKES = {
    "a causal mask": ("plain", _fields(causal=True)),
    "no softcap": ("softcap", _fields(softcap=None)),
    "the scale of the doubled width": ("plain", _fields(softmax_scale=5**-0.5)),
    "queries one late": ("plain", _tensor("q_positions", lambda x: x + 1)),
    "a far position off by one": ("far", _tensor("k_positions", lambda x: x + 1)),
    "phases of the heads in reverse": ("groups", _tensor("delta", lambda x: x[::-1].copy())),
    "a phase one unit off": (
        "window", _tensor("delta", lambda x: np.nextafter(x, np.float32(np.inf)))
    ),
    "a frequency one unit off": (
        "plain", _tensor("inv_freq", lambda x: np.nextafter(x, np.float32(np.inf)))
    ),
    "lse in base 2": ("plain", _tensor("lse", lambda x: x / np.float32(np.log(2)))),
    "no out": ("plain", _tensor("out", np.zeros_like)),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_noticed(mistake):
    name, change = MISTAKES[mistake]
    case, inputs = call(**SETTINGS[name] | {"hidden": "finite", "seed": 1})
    limits = dict.fromkeys(SPEC.outputs, mpmath_limit(case, inputs))
    assert disagreements(case, inputs, by_mpmath(*change(case, inputs)), limits)
    wrong = float64(*change(case, inputs))
    assert disagreements(case, inputs, wrong, float64_limits(case, inputs))


def test_exact_knows_what_cancels_to_nothing():
    """Two queries alike with opposite dout leave 0 in dk, dv and ddelta."""
    case, inputs = call(seqlen_q=2, delta="heads", softcap=2.0)
    for name in ("q", "out"):
        inputs[name][:, :, 1] = inputs[name][:, :, 0]
    inputs["q_positions"][1] = inputs["q_positions"][0]
    inputs["lse"][:, :, 1] = inputs["lse"][:, :, 0]
    inputs["dout"][:, :, 1] = -inputs["dout"][:, :, 0]
    for output in ("dk", "dv", "ddelta"):
        assert exact(case, inputs, output) == [0] * size_of(inputs, output)
    inputs["dout"][:, :, 1, 0] = 2.0**-14
    assert all(x != 0 for x in exact(case, inputs, "ddelta"))
