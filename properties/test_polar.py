"""What polar attention is: magnitudes that no position changes, and phases that only relate.

Laws of phases compare two calls of one kernel, laws of magnitudes compare with plain attention.
"""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tightrope import holds_for
from tightrope.compare import budgets, reach, within
from tightrope.formats import widen
from tightrope.oracles.attention_inputs import stated
from tightrope.oracles.attention_problem import attend, logits
from tightrope.oracles.pope_attention_problem import repeated, scale_of, softplus
from tightrope.parts import agree, called, later

CONTIGUOUS = {f"layout_{x}": ("contiguous",) for x in ("q", "k", "v", "delta")}
PLAIN = {**CONTIGUOUS, "hidden": ("finite",)}
PHASED = {**PLAIN, "delta": ("kv_heads", "heads")}
ANY_PHASE = {"delta_data": ("wide",)}  # these laws leave the turn that training allows
UNPHASED = {**PLAIN, "delta": ("none",)}
PLACES = ("q_positions", "k_positions")

SHIFTS = st.sampled_from([23, 2**31 - 1, 65521, 2**40])


@holds_for("pope_attention", limits=PLAIN, shift=SHIFTS)
def test_a_common_shift_of_all_positions_changes_nothing(impl, case, shift):
    """Demands: all positions later by one number, masks as they are, give the same out and lse,
    within the budgets of both calls.

    Kills: positions that mask, a table or an angle in a format that is too narrow for a position
    (16 bits, float32, int32), sine or cosine left out.
    """
    inputs = impl.contract.inputs(case)
    moved, _ = later(inputs, PLACES, shift)
    one, other = (called(impl, case, given) for given in (inputs, moved))
    agree(impl.outputs, one, other, "positions later by one number must not matter")


def magnitudes(case, inputs):
    """Of q and k for each query head, (batch, num_heads, seqlen, rotary_dim)."""
    return [repeated(case, softplus(widen(inputs[n][..., : case.rotary_dim]))) for n in ("q", "k")]


def moved_by(case, inputs, turned):
    """How far exact out and lse may move where the angles of keys turn by at most `turned`.

    turned: radians, (num_heads or num_kv_heads, rotary_dim). A logit of softmax_scale
    sum mu mu' cos moves by at most d = softmax_scale sum mu mu' min(turned, 2), a softcap adds
    nothing; lse by the largest d of the row, out by expm1(d) e^d of the width of v, 0 included,
    and never by more than that width.
    """
    q, k = magnitudes(case, inputs)
    turned = repeated(case, np.minimum(turned, 2.0), axis=0)
    most = scale_of(case) * (q * turned[:, None]) @ k.swapaxes(-1, -2)
    visible = stated(case, inputs).visible.reshape(most.shape)
    d = np.where(visible, most, 0.0).max(axis=-1, initial=0.0) * (1 + 2.0**-40)
    v = repeated(case, widen(inputs["v"]))
    wide = v.max(axis=2, initial=0.0) - v.min(axis=2, initial=0.0)
    part = np.minimum(np.expm1(d) * np.exp(d), 1.0)
    return {"out": part[..., None] * wide[:, :, None], "lse": d}


def agree_but_for(impl, case, one, other, turned, story):
    """Demand that two calls agree, but for what keys turned by at most `turned` may do."""
    (a, first), (b, second) = called(impl, case, one), called(impl, case, other)
    apart = moved_by(case, one, turned)
    for name in impl.outputs:
        difference = np.where(a[name] == b[name], 0.0, widen(a[name]) - widen(b[name]))
        within(name, difference, reach(first[name]) + reach(second[name]) + apart[name], story)


@holds_for(
    "pope_attention", limits=PHASED, needs=ANY_PHASE, steps=st.sampled_from([1, -1, 2, 7, -16, 100])
)
def test_a_phase_is_a_shift_of_the_keys(impl, case, steps):
    """Demands: delta = -steps * inv_freq, rounded to float32, equals keys `steps` positions
    earlier without a phase; by how much delta was rounded is counted.

    Kills: a phase on the query, negated, dropped, or clamped.
    """
    inputs = impl.contract.inputs(case)
    earlier, by = later(inputs, PLACES[1:], -steps)
    exact = by * widen(inputs["inv_freq"])
    delta = np.broadcast_to(exact.astype(np.float32), inputs["delta"].shape)
    phased = {**inputs, "delta": np.ascontiguousarray(delta)}
    earlier["delta"] = np.zeros_like(delta)
    turned = np.abs(widen(phased["delta"]) - exact) + 2.0**-52 * np.abs(exact)
    agree_but_for(
        impl, case, earlier, phased, turned, "a phase of -steps inv_freq is a shift of the keys"
    )


@holds_for("pope_attention", limits=PHASED, needs=ANY_PHASE, turns=st.sampled_from([1, -1, 2, -5]))
def test_a_phase_is_periodic(impl, case, turns):
    """Demands: delta + 2 pi turns, rounded to float32, equals delta; the rounding is counted.

    Kills: a phase that is clamped to the turn that training allows, or held in 16 bits.
    """
    inputs = impl.contract.inputs(case)
    delta = widen(inputs["delta"])
    full = 2 * np.pi * turns
    more = {**inputs, "delta": (delta + full).astype(np.float32)}
    turned = np.abs(widen(more["delta"]) - delta - full) + 2.0**-51 * (np.abs(delta) + abs(full))
    agree_but_for(impl, case, inputs, more, turned, "a phase is periodic in 2 pi")


ONE_KEY = {**PLAIN, "seqlen_k": (1,), "sink": (False,)}


@holds_for("pope_attention", limits=ONE_KEY, returns=("out", "lse"))
def test_a_score_is_bounded_by_its_magnitudes(impl, case):
    """Demands: with one key, |lse| = |score| <= softmax_scale (sum mu mu' + sum |q k| of plain
    features), but for the budget, wherever the positions are.

    Kills: cos and sin that are not of one angle, magnitudes or a scale that are too large. Blind
    to everything that makes a score smaller.
    """
    inputs = impl.contract.inputs(case)
    lse, spent = impl(case, inputs)["lse"], budgets(impl, case, inputs)["lse"]
    q, k = magnitudes(case, inputs)
    plain = [np.abs(widen(inputs[name][..., case.rotary_dim :])) for name in ("q", "k")]
    most = (q * k).sum(axis=-1) + (plain[0] * repeated(case, plain[1])).sum(axis=-1)
    most = scale_of(case) * most * (1 + 2.0**-40)
    seen = stated(case, inputs).visible.reshape(*lse.shape, 1)[..., 0]
    beyond = np.where(seen, np.maximum(np.abs(widen(lse)) - most, 0.0), 0.0)
    beyond = np.where(seen & ~np.isfinite(widen(lse)), np.inf, beyond)
    within("lse", beyond, reach(spent), "a score must not exceed its magnitudes")


@holds_for("pope_attention", limits=UNPHASED, place=st.sampled_from([5, 0, -3, 1001, 2**20]))
def test_without_positions_it_is_attention_on_magnitudes(impl, case, place):
    """Demands: all positions equal and no phase give plain attention, in float64, on q and k whose
    polar features are softplus of what they were, within the budget.

    Kills: other magnitudes (relu, exp), plain features that are made magnitudes, a sine or cosine
    that is dropped, a score of the doubled width.
    """
    inputs = impl.contract.inputs(case)
    inputs |= {name: np.full_like(inputs[name], place) for name in PLACES}
    outputs, spent = called(impl, case, inputs)
    width = case.rotary_dim
    features = {
        n: np.concatenate([softplus(x[..., :width]), x[..., width:]], axis=-1)
        for n, x in ((n, widen(inputs[n])) for n in ("q", "k"))
    }
    problem = stated(case, {**inputs, **features})
    own = off_in_float64(problem)
    for name, found in zip(("out", "lse"), attend(problem), strict=True):
        if name in impl.outputs:
            y = found.reshape(outputs[name].shape)
            out = widen(outputs[name])
            limit = reach(spent[name]) + own[name].reshape(y.shape)
            difference = np.where(out == y, 0.0, out - y)
            within(name, difference, limit, "without positions it is attention on magnitudes")


def off_in_float64(problem):
    """How far `attend` is off, features of 4 units in the last place included; far from sharp.

    A score is off by (head_dim + 16) 2^-52 of its absolute products at most, e; a weight by
    expm1(2 e) and few roundings more (docs/error-budgets.md, laws of polar attention).
    """
    sizes = np.abs(problem.q) @ np.abs(problem.k).swapaxes(-1, -2) * problem.softmax_scale
    t = logits(problem)
    top = np.where(problem.visible, np.abs(t), 0.0).max(axis=-1, initial=0.0)
    top = top if problem.sink is None else np.maximum(top, np.abs(problem.sink)[:, None])
    sizes = np.where(problem.visible, sizes, 0.0).max(axis=-1, initial=0.0)
    keys, width = problem.visible.shape[-1], problem.q.shape[-1]
    e = 2.0**-52 * ((width + 16) * sizes + 16 * top + keys + 16)
    largest = np.abs(problem.v).max(axis=-2, initial=0.0)[:, None]
    return {"out": np.expm1(4 * e)[..., None] * largest, "lse": e}
