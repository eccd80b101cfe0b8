"""Gradients of polar attention: what only relates has no place, and phases receive every pair.

R is what a call may be off, its last rounding included. Derived in docs/error-budgets.md, section
laws of polar gradients.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from tightrope import holds_for
from tightrope.compare import reach, same_value, within
from tightrope.formats import widen
from tightrope.oracles.attention_backward_inputs import given_to
from tightrope.oracles.attention_backward_problem import from_ds, gradients, weights
from tightrope.oracles.attention_inputs import stated
from tightrope.oracles.pope_attention_backward_inputs import restated
from tightrope.oracles.pope_attention_backward_problem import sigmoid
from tightrope.oracles.pope_attention_problem import softplus
from tightrope.parts import agree, called, later

CONTRACT = "pope_attention_backward"
PLAIN = {f"layout_{x}": ("contiguous",) for x in ("dout", "q", "k", "v", "out", "lse", "delta")}
PLAIN |= {"hidden": ("finite",)}
PLACES = ("q_positions", "k_positions")
SHIFTS = st.sampled_from([23, 2**31 - 1, 65521, 2**40])


@holds_for(CONTRACT, limits=PLAIN, shift=SHIFTS)
def test_a_common_shift_of_all_positions_leaves_every_gradient(impl, case, shift):
    """Demands: all positions later by one number, masks, out and lse as they are, give the same
    dq, dk, dv and ddelta, within the budgets of both calls.

    Kills: a part of cos and sin that is forgotten on the way back, or of another angle than the
    points', positions in a format that is too narrow for them.
    """
    inputs = impl.contract.inputs(case)
    moved, _ = later(inputs, PLACES, shift)
    one, other = (called(impl, case, given) for given in (inputs, moved))
    agree(impl.outputs, one, other, "positions later by one number must not matter")


EXACT = {**PLAIN, "delta": ("kv_heads", "heads"), "inv_freq_dtype": ("float32",)}


@holds_for(
    CONTRACT, limits=EXACT, needs={"delta_data": ("wide",)},
    steps=st.sampled_from([1, -1, 2, 8, -16, 64]),
)  # fmt: skip
def test_gradients_of_a_phase_are_those_of_a_shift_of_the_keys(impl, case, steps):
    """Demands: delta = -steps * inv_freq, which float32 holds for powers of two, equals keys
    `steps` positions earlier under phases of 0: dq, dk, dv and ddelta, within the budgets of both.

    Kills: a phase that the way back leaves out, or that is negated, or clamped as in training.
    """
    inputs = impl.contract.inputs(case)
    earlier, by = later(inputs, PLACES[1:], -steps)
    delta = (by * widen(inputs["inv_freq"])).astype(np.float32)
    earlier["delta"] = np.zeros_like(inputs["delta"])
    earlier = restated(case, earlier)
    tiled = np.tile(delta, (len(inputs["delta"]), 1))
    phased = {**earlier, "k_positions": inputs["k_positions"], "delta": tiled}
    one, other = (called(impl, case, given) for given in (earlier, phased))
    agree(impl.outputs, one, other, "a phase of -steps inv_freq is a shift of the keys")


GROUPED = {**PLAIN, "num_heads": (2, 3, 4, 6), "num_kv_heads": (1, 2)}


@holds_for(CONTRACT, limits=GROUPED, needs={"num_kv_heads": (1, 2, 3, 4, 6)})
def test_a_kv_head_and_a_phase_receive_the_sum_over_their_group(impl, case):
    """Demands: with kv heads, and phases, repeated for their query heads, dq is the same, and dk,
    dv and ddelta are what adds up to the grouped ones, within all budgets.

    Kills: a dropped reduction over the group (the last head's, the first one's, their mean), of
    keys before or after they are turned back, or of phases; phases read interleaved.
    """
    inputs = impl.contract.inputs(case)
    apart = {n: np.repeat(inputs[n], case.num_heads // case.num_kv_heads, 1) for n in ("k", "v")}
    if "delta" in inputs:
        delta = inputs["delta"]
        apart["delta"] = np.repeat(delta, case.num_heads // len(delta), axis=0)
    one = called(impl, case, inputs)
    many = called(impl, replace(case, num_kv_heads=case.num_heads), {**inputs, **apart})
    story = "grouped heads and the sum of repeated ones must agree"
    same_value("dq", one[0]["dq"], many[0]["dq"], one[1]["dq"], story, many[1]["dq"])
    for name in [n for n in impl.outputs if n != "dq"]:
        x, y = widen(one[0][name]), widen(many[0][name])
        head = 0 if name == "ddelta" else 1
        heads = x.shape[head]
        shape = (*x.shape[:head], heads, y.shape[head] // max(heads, 1), *x.shape[head + 1 :])
        limit = reach(many[1][name]).reshape(shape).sum(head + 1) + reach(one[1][name])
        difference = y.reshape(shape).sum(head + 1) - x
        within(name, np.where(np.isinf(limit), 0.0, difference), limit, story)


UNTURNED = {**PLAIN, "offsets": ("int",)}


@holds_for(CONTRACT, limits=UNTURNED, place=st.sampled_from([5, 0, -3, 1001, 2**20]))
def test_without_positions_it_is_the_gradient_of_attention_on_magnitudes(impl, case, place):
    """Demands: all positions equal and phases of 0 give plain attention's gradients, in float64,
    on magnitudes, those of polar features times sigmoid; and no phase receives anything.

    Kills: another derivative of softplus (none, relu's), plain features that receive it too, a
    scale of the doubled width, keys of zeros (softplus ln 2) that are taken for padding or made of
    padding, a phase's gradient that is not across but along the points.
    """
    inputs = impl.contract.inputs(case)
    inputs |= {name: np.full_like(inputs[name], place) for name in PLACES}
    if "delta" in inputs:
        inputs["delta"] = np.zeros_like(inputs["delta"])
    inputs = restated(case, inputs)
    found, spent = called(impl, case, inputs)
    for name, (x, own) in of_magnitudes(case, inputs).items():
        limit = reach(spent[name]) + own
        difference = np.where(np.isinf(limit), 0.0, widen(found[name]) - x)
        within(name, difference, limit, "without positions it is attention on magnitudes")
    if "delta" in inputs:
        within("ddelta", widen(found["ddelta"]), reach(spent["ddelta"]), "nothing turns a phase")


def of_magnitudes(case, inputs):
    """dq, dk and dv in float64, and how far they may be off: e times sums of absolute terms.

    P is off by e/4 of itself at most, where e counts a rounding of 2^-50 for every feature, key and
    row, times 1 + |t| + |lse|; everything else is a sum of products of what is in those.
    """
    width, group = case.rotary_dim, case.num_heads // case.num_kv_heads
    x = {n: widen(inputs[n]) for n in ("q", "k")}
    mu = {n: np.concatenate([softplus(y[..., :width]), y[..., width:]], -1) for n, y in x.items()}
    b = given_to(stated(case, {**inputs, **mu}), inputs, group)
    derivative = {
        n: np.concatenate([sigmoid(y[..., :width]), np.ones_like(y[..., width:])], -1)
        for n, y in x.items()
    }
    factors = {"dq": derivative["q"], "dk": derivative["k"], "dv": 1.0}
    right = dict(zip(factors, gradients(b), strict=True))
    p, dout, each = weights(b), np.abs(b.dout), {n: np.abs(getattr(b.forward, n)) for n in "qkv"}
    a = dout @ each["v"].swapaxes(-1, -2) + (dout * np.abs(b.out)).sum(-1, keepdims=True)
    positive = replace(b, dout=dout, forward=replace(b.forward, **each))
    size = dict(zip(factors, from_ds(positive, p, p * a), strict=True))
    t = each["q"] @ each["k"].swapaxes(-1, -2) * b.forward.softmax_scale
    top = 1 + float(t.max(initial=0.0)) + float(np.abs(b.lse).max(initial=0.0))
    count = 64 + case.head_dim + case.head_dim_v + case.seqlen_k + group * case.seqlen_q
    e = 2.0**-50 * count * top
    shapes = {n: inputs[n.removeprefix("d")].shape for n in factors}
    return {
        n: (right[n].reshape(shapes[n]) * factors[n], e * size[n].reshape(shapes[n])) for n in right
    }
