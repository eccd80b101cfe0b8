"""Keys of polar attention: keys of zeros, which count, and keys that are not there yet.

softplus(0) = ln 2: a key of zeros is a key like any other, and padding must be masked.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from tightrope import holds_for
from tightrope.budget import Budget
from tightrope.compare import part
from tightrope.formats import widen
from tightrope.oracles.pope_attention_problem import scale_of, softplus
from tightrope.parts import agree, called, is_merged, of_keys

PLAIN = {
    **{f"layout_{x}": ("contiguous",) for x in ("q", "k", "v")},
    "offsets": ("int",),
    "hidden": ("finite",),
}
UNMASKED = {"causal": (False,), "window_left": (None,), "window_right": (None,), "delta": ("none",)}
SHORT = {"empty_rows": (True,), "q_offset": (-1, 0, 1, 17), "seqlen_k": (0, 1, 2, 5, 17, 33)}
EDGES = (15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)
PADS = st.sampled_from([1, 2, 5, 15, 17, 33])


def with_zeros(inputs, more, place, value):
    """The inputs with `more` keys of zeros behind the others, at one position, of one value."""
    after = dict(inputs)
    for name, filling, axis in (("k", 0, 2), ("v", value, 2), ("k_positions", place, -1)):
        array = inputs[name]
        shape = list(array.shape)
        shape[axis] = more
        extra = np.full(shape, filling, array.dtype)
        after[name] = np.concatenate([array, extra], axis=axis)
    return after


@holds_for(
    "pope_attention", limits={**PLAIN, **UNMASKED},
    needs={"seqlen_k": EDGES}, returns=("out", "lse"),
    keys=st.sampled_from(EDGES), more=PADS, place=st.sampled_from([0, 3, -77, 4099]),
)  # fmt: skip
def test_a_key_of_zeros_counts(impl, case, keys, more, place):
    """Demands: with all positions equal, each key of zeros behind the others adds
    exp(softmax_scale ln 2 sum mu), softcapped, to the denominator and nothing to the rest; the
    numbers of keys are those next to edges of blocks.

    Kills: padding up to a block that is not masked, keys of zeros that are taken for padding.
    """
    case = replace(case, seqlen_k=keys)
    inputs = impl.contract.inputs(case)
    inputs |= {name: np.full_like(inputs[name], place) for name in ("q_positions", "k_positions")}
    longer = replace(case, seqlen_k=keys + more)
    whole = called(impl, longer, with_zeros(inputs, more, place, 0))
    mu = softplus(widen(inputs["q"][..., : case.rotary_dim]))
    logit = scale_of(case) * np.log(2.0) * mu.sum(axis=-1)
    if case.softcap is not None:
        logit = case.softcap * np.tanh(logit / case.softcap)
    zeros = state_of(np.log(more) + logit, case.head_dim_v)
    states = [called(impl, case, inputs), zeros]
    is_merged(whole, states, "keys of zeros must count, each once")


def state_of(lse, width):
    """An exact state, (outputs, budgets), whose values are all 0."""
    exact = {"out": np.zeros((*lse.shape, width)), "lse": lse}
    return exact, {name: Budget(array, {}, "float32") for name, array in exact.items()}


MASKED = {**PLAIN, "causal": (True,), "window_right": (None, 0)}


@holds_for("pope_attention", limits=MASKED, needs=SHORT, more=PADS)
def test_keys_of_zeros_that_no_row_sees_change_nothing(impl, case, more):
    """Demands: keys of zeros behind the last visible one leave out and lse as they are, within the
    budgets of both calls.

    Kills: padding up to a block that is not masked, a mask aligned to the last key.
    """
    last = case.seqlen_k - case.seqlen_q
    case = replace(case, q_offset=min(case.q_offset, last), empty_rows=True)
    inputs = impl.contract.inputs(case)
    longer = replace(case, seqlen_k=case.seqlen_k + more)
    place = int(inputs["k_positions"].flat[-1]) if inputs["k_positions"].size else 0
    hidden = called(impl, longer, with_zeros(inputs, more, place, 1))
    story = "keys that no row sees must not matter"
    agree(impl.outputs, called(impl, case, inputs), hidden, story)


def _cuts(case):
    """Up to three places between queries; the last one may stand alone, as when decoding."""
    places = st.lists(st.integers(0, case.seqlen_q), max_size=3).map(lambda cuts: sorted(cuts))
    return places.map(tuple) | st.just((max(0, case.seqlen_q - 1),))


CHUNKED = {**SHORT, "seqlen_q": (0, 1, 2, 5, 17)}


@holds_for("pope_attention", limits=MASKED, needs=CHUNKED, cuts=_cuts)
def test_prefill_in_chunks_and_decode_equal_one_shot(impl, case, cuts):
    """Demands: each chunk of queries, at its positions, with the keys up to its last row's, gives
    the rows of one call, within the budgets of both: the first is the prefix of a causal call, and
    one query alone decodes.

    Kills: queries whose positions are counted from 0, a causal mask aligned to the wrong corner,
    rows that see later keys.
    """
    inputs = impl.contract.inputs(case)
    whole, spent = called(impl, case, inputs)
    for start, stop in pairwise(sorted({0, *cuts, case.seqlen_q})):
        keys = min(max(stop + case.q_offset, 0), case.seqlen_k)
        chunk = replace(
            case, seqlen_q=stop - start, seqlen_k=keys, q_offset=case.q_offset + start,
            empty_rows=True,
        )  # fmt: skip
        given = of_keys(inputs, np.s_[:keys])
        given["q"] = np.ascontiguousarray(inputs["q"][:, :, start:stop])
        given["q_positions"] = np.ascontiguousarray(inputs["q_positions"][..., start:stop])
        rows = np.s_[:, :, start:stop]
        mine = {name: whole[name][rows] for name in impl.outputs}
        its = {name: part(spent[name], rows) for name in impl.outputs}
        story = f"rows {start} to {stop} must be those of one call"
        agree(impl.outputs, (mine, its), called(impl, chunk, given), story)
