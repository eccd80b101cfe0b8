"""The recurrence: whatever order keys come in, and in how many pieces, the softmax is one."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from tightrope import holds_for
from tightrope.compare import budgets, reach, within
from tightrope.formats import stored, widen
from tightrope.parts import agree, called, is_merged, of_keys

PLAIN = {
    **{f"layout_{x}": ("contiguous",) for x in ("q", "k", "v")},
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
        empty_rows=True,
    )  # fmt: skip
    kept = of_keys(inputs, np.s_[start:stop])
    if "bias" in inputs:
        moved = replace(moved, bias="full")
        scores = (case.batch, case.num_heads, case.seqlen_q, case.seqlen_k)
        bias = np.broadcast_to(inputs["bias"], scores)[..., start:stop]
        kept["bias"] = np.ascontiguousarray(bias)
    return moved, {n: a for n, a in kept.items() if n != "sink" or moved.sink}


NEEDS = {"empty_rows": (True,), "q_offset": (-1, 1), "seqlen_k": (0, 1, 2, 5, 17, 33)}


@holds_for(
    "attention", "pope_attention", limits=PLAIN, needs=NEEDS, returns=("out", "lse"), cuts=_cuts
)
def test_any_split_of_the_keys_merges_by_lse(impl, case, cuts):
    """Demands: parts merged in float64 by their lse are the whole, within the budgets of all calls;
    a key keeps its position, whatever its place in the part.

    Kills: an lse that is not the logarithm of the whole sum (base 2, one tile late, without the
    sink), parts without a key that are not (0, -inf), denominators that are not rescaled, a key's
    index taken for its position.
    """
    inputs = impl.contract.inputs(case)
    edges = sorted({0, *cuts, case.seqlen_k})
    states = [called(impl, *part(case, inputs, *ends)) for ends in pairwise(edges)]
    if states:
        is_merged(called(impl, case, inputs), states, "parts merged by lse must be the whole")


BIASED = {**PLAIN, "layout_bias": ("contiguous",)}
SHIFTS = st.sampled_from([1.0, -1.0, 4.0, -16.0, 64.0])


@holds_for("attention", limits={**BIASED, "softcap": (None,), "sink": (False,)}, shift=SHIFTS)
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


FREE = {**PLAIN, "causal": (False,), "window_left": (None,), "window_right": (None,)}


@holds_for("attention", "pope_attention", limits=FREE)
def test_the_order_of_keys_is_irrelevant(impl, case):
    """Demands: keys permuted together with values, bias and positions give the same outputs, within
    both budgets.

    Kills: an accumulator or a denominator that is not rescaled when the maximum comes late, a key's
    index taken for its position.
    """
    inputs = impl.contract.inputs(case)
    mixed = of_keys(inputs, np.random.default_rng(case.seed).permutation(case.seqlen_k))
    one, other = (called(impl, case, given) for given in (inputs, mixed))
    agree(impl.outputs, one, other, "the order of the keys must not matter")


def _blocks(case):
    """A run of keys, at times whole blocks of 16 or more in the middle."""
    last = case.seqlen_k
    return (
        st.tuples(st.integers(0, last), st.integers(0, last)).map(sorted).map(tuple)
        | st.just((min(16, last), min(48, last)))
        | st.just((0, min(32, last)))
    )


MASKED = {**FREE, **BIASED, "bias": ("mask",)}


@holds_for(
    "attention", limits=MASKED, block=_blocks,
    needs={"empty_rows": (True,), "seqlen_k": (0, 1, 2, 5, 17, 33)},
)  # fmt: skip
def test_masked_keys_are_as_if_absent(impl, case, block):
    """Demands: -inf on a run of keys equals a call without them, within both budgets; for every
    second seed the logits of all others are lower by 200, where exp of them is 0.

    Kills: a tile without a valid key that leaves a running maximum of 0 or a NaN behind, -inf
    replaced by a finite number that a low maximum lets through.
    """
    inputs = impl.contract.inputs(case)
    keys = np.arange(case.seqlen_k)
    kept = (keys < block[0]) | (keys >= block[1])
    bias = np.broadcast_to(inputs["bias"], (*inputs["bias"].shape[:-1], case.seqlen_k)).copy()
    if case.seed % 2:
        bias = stored(widen(bias) - 200.0, bias.dtype.name)
    bias[..., ~kept] = stored(-np.inf, bias.dtype.name)
    hidden = {**inputs, "bias": bias}
    fewer = replace(case, seqlen_k=int(kept.sum()), empty_rows=True)
    one = impl(replace(case, empty_rows=True), hidden), budgets(impl, case, hidden)
    other = called(impl, fewer, of_keys(hidden, kept))
    agree(impl.outputs, one, other, "keys under -inf must be as if absent")
