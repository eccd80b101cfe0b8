"""The recurrence: whatever order keys come in, and in how many pieces, the softmax is one."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from tightrope import holds_for
from tightrope.budget import Violation
from tightrope.compare import budgets, reach, within
from tightrope.formats import stored, widen

PLAIN = {
    **{f"layout_{x}": ("contiguous",) for x in ("q", "k", "v", "bias")},
    "offsets": ("int",),
    "hidden": ("finite",),
}


def _cuts(case):
    """Up to three places between keys, mostly at or next to the edges of blocks; parts may be
    empty and of very unequal length.
    """
    edges = [n for e in range(0, case.seqlen_k + 1, 16) for n in (e - 1, e, e + 1)]
    near = st.sampled_from([n for n in edges if 0 <= n <= case.seqlen_k])
    anywhere = st.integers(0, case.seqlen_k)
    return st.lists(near | anywhere, min_size=1, max_size=3).map(lambda c: tuple(sorted(c)))


def part(case, inputs, start, stop):
    """The call that sees keys [start, stop) only: its indices, and so its offset, move along."""
    moved = replace(
        case, seqlen_k=stop - start, q_offset=case.q_offset - start, sink=case.sink and start == 0,
        bias="none" if case.bias == "none" else "full", empty_rows=True,
    )  # fmt: skip
    arrays = {n: np.ascontiguousarray(inputs[n][:, :, start:stop]) for n in ("k", "v")}
    kept = {"q": inputs["q"], **arrays}
    if "bias" in inputs:
        scores = (case.batch, case.num_heads, case.seqlen_q, case.seqlen_k)
        bias = np.broadcast_to(inputs["bias"], scores)[..., start:stop]
        kept["bias"] = np.ascontiguousarray(bias)
    if moved.sink:
        kept["sink"] = inputs["sink"]
    return moved, kept


# Of a weight: exp rounds an exponent of at most 746 to 53 bits, and few roundings follow.
FLOAT64 = 2.0**-42
NEEDS = {"empty_rows": (True,), "q_offset": (-1, 1), "seqlen_k": (0, 1, 2, 5, 17, 33)}


@holds_for("attention", limits=PLAIN, needs=NEEDS, returns=("out", "lse"), cuts=_cuts)
def test_any_split_of_the_keys_merges_by_lse(impl, case, cuts):
    """Demands: parts merged in float64 by their lse are the whole, within the budgets of all calls.

    Kills: an lse that is not the logarithm of the whole sum (base 2, one tile late, without the
    sink), parts without a key that are not (0, -inf), denominators that are not rescaled.
    """
    inputs = impl.contract.inputs(case)
    whole, spent = impl(case, inputs), budgets(impl, case, inputs)
    edges = sorted({0, *cuts, case.seqlen_k})
    if len(edges) < 2:
        return
    states = []
    for start, stop in pairwise(edges):
        moved, arrays = part(case, inputs, start, stop)
        states.append((impl(moved, arrays), budgets(impl, moved, arrays)))
    out, lse, e_out, e_lse = merged(states)
    within(
        "out", out - widen(whole["out"]), e_out + reach(spent["out"]),
        "parts merged by lse must be the whole",
    )  # fmt: skip
    live = np.isfinite(spent["lse"].expected)
    difference = np.where(live, lse - widen(whole["lse"]), 0.0)
    within("lse", difference, e_lse + reach(spent["lse"]), "parts merged by lse must be the whole")


def merged(states):
    """(out, lse, bounds of their errors) of parts, each (outputs, budgets), merged in float64.

    With w_i = exp(lse_i - lse), every lse_i off by at most a_i and out_i by at most b_i, the
    weights are off by the factors 1 + eps_i, |eps_i| <= expm1(a_i), and out = sum w_i out_i by at
    most (sum w_i eps_i |out_i - out| + sum w_i (1 + eps_i) b_i) / (1 - sum w_i eps_i); lse by at
    most max a_i over live parts (docs/error-budgets.md, laws of attention). Raises Violation for a
    part without a key that is not (0, -inf), and for one with a key whose lse is not finite.
    """
    live = np.stack([np.isfinite(b["lse"].expected) for _, b in states])
    lses = np.stack([widen(outputs["lse"]) for outputs, _ in states])
    outs = np.stack([widen(outputs["out"]) for outputs, _ in states])
    demand(live, lses, outs)
    off_lse = np.stack([np.broadcast_to(reach(b["lse"]), lses[0].shape) for _, b in states])
    off_out = np.stack([reach(b["out"]) for _, b in states])
    lses = np.where(live, lses, -np.inf)
    top = lses.max(axis=0)
    weights = np.exp(lses - np.where(np.isfinite(top), top, 0.0))
    total = weights.sum(axis=0)
    lse = np.where(total > 0, np.log(np.where(total > 0, total, 1.0)) + top, -np.inf)
    w = (weights / np.where(total > 0, total, 1.0))[..., None]
    eps = np.where(live, np.expm1(off_lse), 0.0)[..., None]
    out = (w * outs).sum(axis=0)
    spread = (w * eps * np.abs(outs - out)).sum(axis=0) + (w * (1 + eps) * off_out).sum(axis=0)
    kept = 1 - (w * eps).sum(axis=0)
    own = FLOAT64 * (w * np.abs(outs)).sum(axis=0)
    e_out = np.where(kept > 0, spread / np.where(kept > 0, kept, 1.0), np.inf) + own
    largest = np.abs(np.where(live, lses, 0.0)).max(axis=0)
    e_lse = np.where(live, off_lse, 0.0).max(axis=0) + FLOAT64 * (1 + largest)
    return out, lse, e_out, e_lse


def demand(live, lses, outs):
    """Parts without a key are (0, -inf), parts with one have a finite lse."""
    wrong = np.where(live, ~np.isfinite(lses), ~np.isneginf(lses) | (outs != 0).any(axis=-1))
    if wrong.any():
        part, *row = (int(i) for i in np.argwhere(wrong)[0])
        keys = "a key" if live[part, *row] else "no key"
        raise Violation(
            f"row {row} sees {keys} of part {part}, whose lse is {lses[part, *row]:.9g} and whose "
            f"out has {np.count_nonzero(outs[part, *row])} elements other than 0"
        )


SHIFTS = st.sampled_from([1.0, -1.0, 4.0, -16.0, 64.0])


@holds_for("attention", limits={**PLAIN, "softcap": (None,), "sink": (False,)}, shift=SHIFTS)
def test_a_constant_added_to_all_logits_moves_only_lse(impl, case, shift):
    """Demands: feature 0 of q set to 1 and of k raised by `shift` leaves out and moves lse by
    softmax_scale * shift, within the budgets of both calls.

    Kills: a running maximum that starts at 0, sums without the shift, lse without the maximum.
    """
    inputs = impl.contract.inputs(case)
    q, k = inputs["q"].copy(), inputs["k"].copy()
    q[..., 0], k[..., 0] = 1, 0
    low = {**inputs, "q": q, "k": k}
    raised = k.copy()
    raised[..., 0] = shift
    high = {**inputs, "q": q, "k": raised}
    a, b = impl(case, low), impl(case, high)
    first, second = budgets(impl, case, low), budgets(impl, case, high)
    scale = case.head_dim**-0.5 if case.softmax_scale is None else case.softmax_scale
    story = "a constant added to all logits"
    for name, moved in (("out", 0.0), ("lse", scale * shift)):
        if name in impl.outputs:
            before, after = widen(a[name]), widen(b[name])
            no_key = np.isneginf(before) & np.isneginf(after)
            difference = np.where(no_key, 0.0, after - before - moved)
            limit = reach(first[name]) + reach(second[name]) + 2.0**-50 * abs(moved)
            within(name, difference, limit, story)


FREE = {
    **PLAIN, "causal": (False,), "window_left": (None,), "window_right": (None,),
    "bias": ("none", "query"),
}  # fmt: skip


@holds_for("attention", limits=FREE)
def test_the_order_of_keys_is_irrelevant(impl, case):
    """Demands: keys and values permuted together give the same outputs, within both budgets.

    Kills: an accumulator or a denominator that is not rescaled when the maximum comes late.
    """
    inputs = impl.contract.inputs(case)
    order = np.random.default_rng(case.seed).permutation(case.seqlen_k)
    mixed = {**inputs, **{n: np.ascontiguousarray(inputs[n][:, :, order]) for n in ("k", "v")}}
    a, b = impl(case, inputs), impl(case, mixed)
    first, second = budgets(impl, case, inputs), budgets(impl, case, mixed)
    for name in impl.outputs:
        difference = np.where(a[name] == b[name], 0.0, widen(a[name]) - widen(b[name]))
        limit = reach(first[name]) + reach(second[name])
        within(name, difference, limit, "the order of the keys must not matter")


def _blocks(case):
    """A run of keys, at times whole blocks of 16 or more in the middle."""
    last = case.seqlen_k
    return st.tuples(st.integers(0, last), st.integers(0, last)).map(sorted).map(tuple) | st.just(
        (min(16, last), min(48, last))
    )


MASKED = {**PLAIN, "bias": ("mask",), "causal": (False,), "window_left": (None,),
          "window_right": (None,)}  # fmt: skip


@holds_for(
    "attention", limits=MASKED, block=_blocks,
    needs={"empty_rows": (True,), "seqlen_k": (0, 1, 2, 5, 17, 33)},
)  # fmt: skip
def test_masked_keys_are_as_if_absent(impl, case, block):
    """Demands: -inf on a run of keys equals a call without them, within both budgets.

    Kills: a tile without a valid key that leaves a running maximum of 0 or a NaN behind, -inf
    replaced by a finite number that a low maximum lets through.
    """
    inputs = impl.contract.inputs(case)
    keys = np.arange(case.seqlen_k)
    kept = (keys < block[0]) | (keys >= block[1])
    bias = np.broadcast_to(inputs["bias"], (*inputs["bias"].shape[:-1], case.seqlen_k)).copy()
    bias[..., ~kept] = stored(-np.inf, bias.dtype.name)
    hidden = {**inputs, "bias": bias}
    fewer = replace(case, seqlen_k=int(kept.sum()), empty_rows=True)
    absent = {n: np.ascontiguousarray(inputs[n][:, :, kept]) for n in ("k", "v")}
    absent = {**inputs, **absent, "bias": np.ascontiguousarray(bias[..., kept])}
    a, b = impl(replace(case, empty_rows=True), hidden), impl(fewer, absent)
    first, second = budgets(impl, case, hidden), budgets(impl, fewer, absent)
    for name in impl.outputs:
        difference = np.where(a[name] == b[name], 0.0, widen(a[name]) - widen(b[name]))
        limit = reach(first[name]) + reach(second[name])
        within(name, difference, limit, "keys under -inf must be as if absent")
