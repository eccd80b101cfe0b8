"""A sequence in pieces is the sequence: prefill, chunks, decode, packed requests."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from tightrope import holds_for
from tightrope.budget import Violation
from tightrope.compare import budgets, reach, same_value
from tightrope.formats import widen

PLAIN = {"layout_q": ("contiguous",), "layout_k": ("contiguous",)}


def _cuts(case):
    """Up to three places where a sequence of this length is cut; the last token may stand alone."""
    places = st.lists(st.integers(0, case.tokens), max_size=3).map(lambda cuts: tuple(sorted(cuts)))
    return st.sampled_from([(), (max(0, case.tokens - 1),)]) | places


@holds_for("rope", limits=PLAIN, needs={"tokens": (1,)}, cuts=_cuts)
def test_any_split_of_the_sequence_gives_the_same_output(impl, case, cuts):
    """Demands: prefill, chunks and decode at true positions equal one call (bitwise if prescribed).

    Kills: the token's index used for its position, a last block that is skipped, the first token's
    position used for a whole chunk.
    """
    inputs = impl.contract.inputs(case)
    whole, spent = impl(case, inputs), budgets(impl, case, inputs)
    pieces = [_part(impl, case, inputs, a, b) for a, b in _pieces(impl, case, cuts)]
    for name in impl.outputs:
        joined = np.concatenate([p[name] for p in pieces])
        same_value(
            name, whole[name], joined, spent[name], "chunks at true offsets must equal one call"
        )


def _pieces(impl, case, cuts):
    """(start, stop) of pieces whose lengths the implementation allows, the whole if need be."""
    allowed, edges = impl.allowed(), [0, *cuts, case.tokens]
    if not allowed.allows("tokens", 0):
        edges = sorted(set(edges))
    pieces = list(pairwise(edges))
    fit = all(allowed.allows("tokens", stop - start) for start, stop in pieces)
    return pieces if fit else [(0, case.tokens)]


def _part(impl, case, inputs, start, stop):
    per_token = ("q", "k", "positions")
    part = {
        n: np.ascontiguousarray(a[start:stop]) if n in per_token else a for n, a in inputs.items()
    }
    return impl(replace(case, tokens=stop - start), part)


@holds_for("rope", limits=PLAIN)
def test_a_wrong_offset_changes_the_output(impl, case):
    """Demands: where the rows of two position vectors give different exact results, outputs differ.

    Kills: positions that are ignored, clamped, or reduced modulo a length that the kernel assumes.
    """
    inputs = impl.contract.inputs(case)
    rows = len(inputs["cos"])
    moved = {
        **inputs,
        "positions": ((inputs["positions"].astype(np.int64) + 1) % rows).astype(
            inputs["positions"].dtype
        ),
    }
    right, wrong = impl(case, inputs), impl(case, moved)
    first, second = budgets(impl, case, inputs), budgets(impl, case, moved)
    for name in impl.outputs:
        apart = np.abs(first[name].expected - second[name].expected)
        must = apart > 2 * (reach(first[name]) + reach(second[name]))
        same = must & (widen(right[name]) == widen(wrong[name]))
        if same.any():
            index = tuple(int(i) for i in np.argwhere(same)[0])
            raise Violation(
                f"{name}{list(index)} is the same at positions {inputs['positions'][index[0]]} and "
                f"{moved['positions'][index[0]]}, whose rows differ; {int(same.sum())} elements"
            )


@holds_for("rope", limits=PLAIN)
def test_the_order_of_tokens_is_irrelevant(impl, case):
    """Demands: permuting tokens with their positions permutes the output (continuous batching).

    Kills: positions taken from the token's place, results that depend on the slot in the batch.
    """
    inputs = impl.contract.inputs(case)
    order = np.random.default_rng(case.seed).permutation(case.tokens)
    mixed = {
        n: np.ascontiguousarray(a[order]) if n in ("q", "k", "positions") else a
        for n, a in inputs.items()
    }
    straight, shuffled = impl(case, inputs), impl(case, mixed)
    for name, budget in budgets(impl, case, mixed).items():
        same_value(
            name, straight[name][order], shuffled[name], budget, "a token's slot must not matter"
        )
