"""Sequences of unequal length in one call: packed, or in pages of a cache."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from tightrope import holds_for
from tightrope.compare import budgets, part, same_bits, same_value
from tightrope.formats import stored

PACKED = {f"layout_{x}": ("contiguous",) for x in ("q", "k", "v")}
VARLEN = ("attention_varlen", "attention_varlen_backward")
TENSORS = ("dout", "q", "k", "v", "out", "lse")  # arguments that belong to tokens
OF_KEYS = ("k", "v", "dk", "dv")
PAGED = {**PACKED, "layout_table": ("contiguous",)}


def _starts(lengths):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _at(case, name, i):
    """Where sequence i lies in (tokens, heads, features) or, of lse, (heads, tokens)."""
    lengths = case.seqlens_k if name in OF_KEYS else case.seqlens_q
    tokens = slice(*_starts(lengths)[i : i + 2])
    return np.s_[:, tokens] if name == "lse" else np.s_[tokens]


def alone(case, inputs, i):
    """The call that holds sequence i only."""
    n, m = case.seqlens_q[i], case.seqlens_k[i]
    single = replace(case, seqlens_q=(n,), seqlens_k=(m,), spare=0)
    arrays = dict(inputs, cu_seqlens_q=np.array([0, n], np.int32))
    for name in set(TENSORS) & set(inputs):
        arrays[name] = inputs[name][_at(case, name, i)]
    if "q_offset" in inputs:
        arrays["q_offset"] = inputs["q_offset"][i : i + 1]
    if "block_table" in inputs:
        arrays |= {name: inputs[name][i : i + 1] for name in ("block_table", "cache_seqlens")}
    else:
        arrays["cu_seqlens_k"] = np.array([0, m], np.int32)
    return single, {name: np.ascontiguousarray(a) for name, a in arrays.items()}


@holds_for(*VARLEN, "attention_paged", limits=PACKED)
def test_a_sequence_is_the_same_alone_and_among_others(impl, case):
    """Demands: each sequence in a call of its own gives what it gives among the others.

    Kills: rows or keys read across a boundary, a sequence's offset or length taken for another's.
    """
    inputs = impl.contract.inputs(case)
    whole, spent = impl(case, inputs), budgets(impl, case, inputs)
    for i in range(len(case.seqlens_q)):
        one = alone(case, inputs, i)
        single, its = impl(*one), budgets(impl, *one)
        for name in impl.outputs:
            at = _at(case, name, i)
            same_value(
                name, whole[name][at], single[name], part(spent[name], at),
                f"sequence {i} must be the same alone and among others", its[name],
            )  # fmt: skip


def _sequence(case):
    return st.integers(0, max(len(case.seqlens_q) - 1, 0))


@holds_for(*VARLEN, limits={**PACKED, "hidden": ("finite",)}, one=_sequence)
def test_other_sequences_have_no_influence(impl, case, one):
    """Demands (bitwise): a sequence is the same whatever finite numbers the others hold.

    Kills: tiles that reach past the end of a sequence, rows that attend to a neighbour.
    """
    if not case.seqlens_q:
        return
    inputs = impl.contract.inputs(case)
    rng = np.random.default_rng([case.seed, one])
    loud = dict(inputs)
    for name in (n for n in TENSORS if n in inputs):
        array, at = inputs[name], _at(case, name, one)
        alike = (len(array), 1, array.shape[2]) if array.ndim == 3 else array.shape  # of all heads
        noise = stored(50.0 * rng.standard_normal(alike), array.dtype.name)
        loud[name] = np.array(np.broadcast_to(noise, array.shape))
        loud[name][at] = array[at]
    before, after = impl(case, inputs), impl(case, loud)
    for name in impl.outputs:
        a, b = (outputs[name][_at(case, name, one)].copy() for outputs in (before, after))
        same_bits(name, a, b, "others must have no influence")


@holds_for("attention_paged", limits=PAGED)
def test_the_order_of_pages_is_irrelevant(impl, case):
    """Demands (bitwise): pages moved in the cache, and the table with them, change nothing.

    Kills: pages taken in storage order, a stride of the wrong tensor, entries of the table past the
    used ones that are followed.
    """
    inputs = impl.contract.inputs(case)
    pages = len(inputs["k_cache"])
    order = np.random.default_rng(case.seed).permutation(pages)
    moved = dict(inputs)
    for name in ("k_cache", "v_cache"):
        moved[name] = np.empty_like(inputs[name])
        moved[name][order] = inputs[name]
    table, used = inputs["block_table"].copy(), _used(case, inputs)
    table[used] = order[table[used]]
    moved["block_table"] = table
    before, after = impl(case, inputs), impl(case, moved)
    for name in impl.outputs:
        same_bits(name, before[name], after[name], "the order of pages must not matter")


def _used(case, inputs):
    """(sequences, max_pages) bool: entries of the block table that name a page in use."""
    count = -(-inputs["cache_seqlens"] // case.page_size)
    return np.arange(inputs["block_table"].shape[1]) < count[:, None]


CHUNKED = {
    **PAGED, "causal": (True,), "window_right": (None, 0), "offsets": ("default",),
}  # fmt: skip


def _share(case):
    return st.floats(0, 1)


@holds_for(
    "attention_paged", limits=CHUNKED, share=_share,
    needs={"empty_rows": (True,), "seqlen_q": (0, 1, 2, 5), "seqlen_k": (0, 1, 2, 5, 17)},
)  # fmt: skip
def test_prefill_in_chunks_and_decode_equal_one_call(impl, case, share):
    """Demands: the first part of each sequence's new tokens in one call, the rest in a second, give
    the rows of one call; tokens of the second are not yet in the cache during the first.

    Kills: q_offset taken from the wrong length, a decode path with another mask than prefill.
    """
    inputs = impl.contract.inputs(case)
    whole, spent = impl(case, inputs), budgets(impl, case, inputs)
    first = tuple(round(share * n) for n in case.seqlens_q)
    rest = tuple(n - c for n, c in zip(case.seqlens_q, first, strict=True))
    starts = _starts(case.seqlens_q)
    for chunk, later, skip in ((first, rest, False), (rest, (0,) * len(rest), True)):
        rows = np.concatenate(
            [starts[i] + (first[i] if skip else 0) + np.arange(n) for i, n in enumerate(chunk)]
            or [np.zeros(0)]
        ).astype(np.int64)
        lengths = tuple(m - n for m, n in zip(case.seqlens_k, later, strict=True))
        if min(lengths, default=0) < 0:
            return  # more new tokens than keys
        piece = replace(case, seqlens_q=chunk, seqlens_k=lengths, spare=0, empty_rows=True)
        arrays = dict(
            inputs, q=np.ascontiguousarray(inputs["q"][rows]),
            cu_seqlens_q=_starts(chunk).astype(np.int32), cache_seqlens=np.array(lengths, np.int32),
        )  # fmt: skip
        found, its = impl(piece, arrays), budgets(impl, piece, arrays)
        for name in impl.outputs:
            at = np.s_[rows] if name == "out" else np.s_[:, rows]
            same_value(
                name, np.ascontiguousarray(whole[name][at]), found[name], part(spent[name], at),
                "chunks must equal one call", its[name],
            )  # fmt: skip


@holds_for("merge_attention")
def test_the_order_of_states_is_irrelevant(impl, case):
    """Demands: states in another order merge to the same, within twice the budget.

    Kills: a maximum taken from the first state, the last state dropped.
    """
    inputs = impl.contract.inputs(case)
    order = np.random.default_rng(case.seed).permutation(len(inputs["lses"]))
    mixed = {name: np.ascontiguousarray(array[order]) for name, array in inputs.items()}
    a, b = impl(case, inputs), impl(case, mixed)
    first, second = budgets(impl, case, inputs), budgets(impl, case, mixed)
    story = "the order of states must not matter"
    for name in impl.outputs:
        same_value(name, a[name], b[name], first[name], story, second[name])


@holds_for("merge_attention")
def test_a_state_without_keys_is_the_identity(impl, case):
    """Demands (bitwise but for the sign of a 0): one live state among states without keys comes out
    as it went in, and the first row, where no state has a key, is 0 and -inf.

    Kills: a weight other than 1, exp(-inf - -inf), 0 * NaN from an empty state's output.
    """
    inputs = impl.contract.inputs(case)
    outs, lses = inputs["outs"].copy(), np.full_like(inputs["lses"], -np.inf)
    if not lses.size:
        return
    kept = case.seed % len(lses)
    lses[kept] = 0.5 + np.arange(lses[kept].size).reshape(lses[kept].shape) % 7
    lses[kept, 0] = -np.inf
    outs[kept] = np.nan_to_num(outs[kept], nan=1.0, posinf=2.0, neginf=-2.0)
    found = impl(case, {"outs": outs, "lses": lses})
    wanted = {"out": outs[kept].copy(), "lse": lses[kept]}
    wanted["out"][0] = 0.0
    for name in impl.outputs:
        same_bits(
            name, found[name] + 0, wanted[name] + 0, "a state alone must come out as it went in"
        )
