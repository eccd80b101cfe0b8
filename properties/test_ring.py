"""A ring of processes gives what one process would: whoever holds what, in whatever order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from tightrope import holds_for
from tightrope.compare import reach, same_bits, within
from tightrope.formats import stored, widen
from tightrope.oracles.attention_backward_inputs import restated
from tightrope.parts import agree, called
from tightrope.ring_shards import SCHEMES, spans

RINGS = ("ring_attention", "ring_attention_backward")
OF_ROWS = ("q", "dout", "out", "lse")  # tensors that stay with their rank, and ..
OF_KEYS = ("k", "v")  # .. those that go around
PLAIN = {f"layout_{x}": ("contiguous",) for x in ("q", "k", "v")}
UNMASKED = {
    **PLAIN, "hidden": ("finite",), "causal": (False,), "window_left": (None,),
    "window_right": (None,),
}  # fmt: skip
RING = {"ranks": (1, 2, 3, 4), "scheme": SCHEMES}


def _another_ring(case):
    rings = [(n, s) for n in RING["ranks"] for s in SCHEMES if (n, s) != (case.ranks, case.scheme)]
    return st.sampled_from(rings)


@holds_for(*RINGS, limits=PLAIN, needs=RING, ring=_another_ring)
def test_ranks_and_scheme_are_irrelevant(impl, case, ring):
    """Demands: other ranks, or another scheme, give the same outputs within both budgets.

    Kills: masks by indices of a shard, runs of a zig-zag shard taken in another order, a merge that
    does not weigh, a shard left out, lse or out of a shard, gradients one hop short of home.
    """
    inputs = impl.contract.inputs(case)
    other = replace(case, ranks=ring[0], scheme=ring[1])
    one, two = called(impl, case, inputs), called(impl, other, inputs)
    agree(impl.outputs, one, two, "ranks and scheme must not matter")


@holds_for(*RINGS, limits=UNMASKED)
def test_the_order_of_ranks_is_irrelevant(impl, case):
    """Demands: keys dealt to other ranks, and rows to others again, give the same rows within both
    budgets, where no mask tells keys apart.

    Kills: a shard used twice while another is left out, the first or the last left out, states that
    are merged without a rescale.
    """
    inputs = impl.contract.inputs(case)
    keys = spans(case.seqlen_k, case.ranks, case.scheme, 0)[0][1]
    rows = -(-case.seqlen_q // case.ranks)
    places = {**dict.fromkeys(OF_ROWS, rows), **dict.fromkeys(OF_KEYS, keys)}
    dealt = {n: np.roll(inputs[n], places[n], axis=2) for n in places if n in inputs}
    before, spent = called(impl, case, inputs)
    found, its = called(impl, case, {**inputs, **dealt})
    for name in impl.outputs:
        back = -(keys if name in ("dk", "dv") else rows)
        a, b = widen(before[name]), np.roll(widen(found[name]), back, axis=2)
        limit = reach(spent[name]) + np.roll(reach(its[name]), back, axis=2)
        difference = np.where(a == b, 0.0, a - b)
        within(name, difference, limit, "the order of ranks must not matter")


@holds_for(*RINGS, limits=UNMASKED)
def test_ranks_that_hold_the_same_row_agree(impl, case):
    """Demands: one row of q given to every rank has one out and one lse, or one dq, and one key,
    under the weights that it has, one dk and one dv, within both budgets.

    Kills: a shard that one rank sees and another does not, a shard seen twice, weights that depend
    on which keys came first.
    """
    inputs = impl.contract.inputs(case)
    alike(impl, case, inputs, OF_ROWS, ("out", "lse", "dq"))
    if "lse" in inputs:  # under lse and out of the keys as they are no weight is above 1
        alike(impl, case, inputs, OF_KEYS, ("dk", "dv"))


def alike(impl, case, inputs, repeated, names):
    """With the first place of some inputs at all places, outputs are those of the first place."""
    given = {name: inputs[name] for name in repeated if name in inputs}
    one = {n: np.broadcast_to(x[:, :, :1], x.shape).copy() for n, x in given.items()}
    outputs, spent = called(impl, case, {**inputs, **one})
    for name in (n for n in names if n in outputs):
        first, limit = widen(outputs[name])[:, :, :1], reach(spent[name])
        difference = np.where(outputs[name] == first, 0.0, widen(outputs[name]) - first)
        story = "every rank that holds a row, or a key, must give the same"
        within(name, difference, limit + limit[:, :, :1], story)


CAUSAL = {**PLAIN, "hidden": ("finite",), "causal": (True,), "layout_v": ("contiguous",)}


@holds_for(*RINGS, limits=CAUSAL, share=st.floats(0, 1))
def test_later_keys_of_any_rank_have_no_influence(impl, case, share):
    """Demands (bitwise): keys from a place on, whoever holds them, changed to other finite numbers
    leave rows that end before it as they are, and the gradients of the keys before.

    Kills: a causal mask by indices of the shard, an offset of the wrong rank.
    """
    inputs = impl.contract.inputs(case)
    rows = round(share * case.seqlen_q)
    first = rows + case.q_offset  # no row before `rows` sees it, or a key after it
    loud = dict(inputs)
    for name in ("k", "v"):
        noise = np.random.default_rng(case.seed).standard_normal(inputs[name].shape)
        later = np.arange(case.seqlen_k)[:, None] >= first
        loud[name] = np.where(later, stored(9.0 * noise, case.dtype), inputs[name])
    before, after = impl(case, inputs), impl(case, loud)
    for name in impl.outputs:
        kept = max(first, 0) if name in ("dk", "dv") else rows
        a, b = (np.ascontiguousarray(x[name][:, :, :kept]) for x in (before, after))
        same_bits(name, a, b, "keys after a row must have no influence, on whatever rank")


@holds_for(*RINGS, limits=CAUSAL, needs={"empty_rows": (True,), "q_offset": (-1, 1)})
def test_ranks_without_a_visible_key_add_nothing(impl, case):
    """Demands (bitwise): with rows that end where the last run of keys begins, NaN there changes
    nothing; with rows that all come before key 0, every row is (0, -inf), every gradient 0.

    Kills: an empty state that is given a weight, 0 times NaN, keys seen by their index in a shard.
    """
    inputs = impl.contract.inputs(case)
    runs = [r for n in range(case.ranks) for r in spans(case.seqlen_k, case.ranks, case.scheme, n)]
    first = max(start for start, _ in runs)
    short = replace(case, q_offset=first - case.seqlen_q, empty_rows=True)
    inputs = _of_its_own_pass(short, inputs)
    poisoned = {name: array.copy() for name, array in inputs.items()}
    for name in ("k", "v"):
        poisoned[name][:, :, first:] = np.nan
    before, after = impl(short, inputs), impl(short, poisoned)
    for name in impl.outputs:
        same_bits(name, before[name], after[name], "keys that no row sees must not matter")
    none = replace(case, q_offset=-case.seqlen_q - 1, empty_rows=True)
    for name, array in impl(none, _of_its_own_pass(none, inputs)).items():
        nothing = np.full_like(array, -np.inf) if name == "lse" else np.zeros_like(array)
        same_bits(name, array if name == "lse" else np.abs(array), nothing, "a row without a key")


def _of_its_own_pass(case, inputs):
    """Inputs of a backward pass with lse and out of this case's forward pass."""
    return restated(case, inputs) if "lse" in inputs else inputs
