"""Gradients of attention: who meets whom, what must balance, and how parts add up.

R is what a call may be off, its last rounding included. Derived in docs/error-budgets.md, section
laws of gradients.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from tightrope import holds_for
from tightrope.budget import Violation
from tightrope.compare import budgets, part, reach, same_value, within
from tightrope.formats import FORMATS, stored, widen
from tightrope.oracles.attention_backward_inputs import restated
from tightrope.oracles.attention_inputs import seen as seen_by_index
from tightrope.oracles.rope_attention_inputs import offsets_of
from tightrope.parts import agree, called, of_keys, of_rows, of_sequences

CONTRACT, POLAR = "attention_backward", "pope_attention_backward"
PLAIN = {f"layout_{x}": ("contiguous",) for x in ("dout", "q", "k", "v", "out", "lse")}
PLAIN |= {"hidden": ("finite",), "offsets": ("int",)}
LOUD = {"q": 100.0, "k": 100.0, "v": 1000.0, "dout": 1000.0}


def _place(case):
    """A query or a key: all that does not see it is looked at, up to the edge of its mask."""
    lengths = {"query": case.seqlen_q, "key": case.seqlen_k}
    each = [st.tuples(st.just(kind), st.integers(0, max(n - 1, 0))) for kind, n in lengths.items()]
    return each[0] | each[1]


@holds_for(CONTRACT, POLAR, limits=PLAIN, place=_place)
def test_pairs_that_do_not_see_each_other_do_not_meet(impl, case, place):
    """Demands (bitwise): whatever finite numbers a key holds, queries that do not see it keep their
    dq; whatever a query and its dout hold, keys that it does not see keep their dk and dv.

    Kills: no mask in the backward pass, one that is off by one or aligned to the wrong corner,
    another window than the forward pass had.
    """
    kind, at = place
    if not (case.seqlen_q and case.seqlen_k and case.batch):
        return
    inputs, rng = impl.contract.inputs(case), np.random.default_rng([case.seed, at])
    loud = dict(inputs)
    for name in ("k", "v") if kind == "key" else ("q", "dout"):
        array = loud[name] = inputs[name].copy()
        noise = LOUD[name] * rng.choice([-1.0, 1.0], array[:, :, at].shape)
        array[:, :, at] = stored(noise, array.dtype.name)
    before, after = impl(case, inputs), impl(case, loud)
    seen = np.asarray(seen_by_index(case, offsets_of(case, inputs)).any(axis=(0, 1)))
    blind = ~(seen[:, at] if kind == "key" else seen[at])
    for name in ("dq",) if kind == "key" else ("dk", "dv"):
        a, b = (widen(x[name])[:, :, blind] for x in (before, after))
        differ = np.argwhere(~((a == b) | (np.isnan(a) & np.isnan(b))))
        if len(differ):
            spot = tuple(int(i) for i in differ[0])
            where = [*spot[:2], int(np.flatnonzero(blind)[spot[2]]), spot[3]]
            raise Violation(
                f"{name}{where} does not see {kind} {at}, but changes with it, from "
                f"{a[spot]:.9g} to {b[spot]:.9g}; {len(differ)} elements do"
            )


CAUSAL = {**PLAIN, "causal": (True,), "q_offset": (0,)}
ANY_LENGTH = {"seqlen_q": (1, 17, 33), "seqlen_k": (0, 1, 17, 33), "empty_rows": (True,)}


@holds_for(CONTRACT, POLAR, limits=CAUSAL, needs=ANY_LENGTH, more=st.integers(1, 17))
def test_what_sees_nothing_changes_nothing(impl, case, more):
    """Demands: queries put in front, where they see no key, and keys put behind, where no query
    sees them, have gradients that are exactly 0; those of the others stay, within both budgets.

    Kills: exp(t + inf) in a row without a key, masks of padding that forget one side, keys or rows
    of the last tile that are read twice or not at all.
    """
    inputs, rng = impl.contract.inputs(case), np.random.default_rng([case.seed, more])
    beyond = more if case.seqlen_q <= case.seqlen_k else 0
    wide = {**inputs, **{n: _longer(inputs[n], more, 0, rng) for n in ("dout", "q")}}
    wide |= {n: _longer(inputs[n], 0, beyond, rng) for n in ("k", "v")}
    for name, ends in (("q_positions", (more, 0)), ("k_positions", (0, beyond))):
        if name in inputs:
            wide[name] = np.pad(inputs[name], [(0, 0)] * (inputs[name].ndim - 1) + [ends])
    wide["out"] = np.pad(inputs["out"], [(0, 0), (0, 0), (more, 0), (0, 0)])
    wide["lse"] = np.pad(inputs["lse"], [(0, 0), (0, 0), (more, 0)], constant_values=-np.inf)
    longer = replace(
        case, seqlen_q=case.seqlen_q + more, seqlen_k=case.seqlen_k + beyond, q_offset=-more,
        empty_rows=True,
    )  # fmt: skip
    found = impl(longer, wide)
    old = {"dq": np.s_[:, :, more:], **dict.fromkeys(("dk", "dv"), np.s_[:, :, : case.seqlen_k])}
    new = {"dq": np.s_[:, :, :more], **dict.fromkeys(("dk", "dv"), np.s_[:, :, case.seqlen_k :])}
    for name, at in new.items():
        wrong = np.argwhere(widen(found[name][at]) != 0)
        if len(wrong):
            value = widen(found[name][at])[tuple(wrong[0])]
            raise Violation(
                f"{name} is {value:.9g} where nothing is seen, and {len(wrong)} elements are not 0"
            )
    spent = budgets(impl, longer, wide)
    old |= {n: ... for n in impl.outputs if n not in old}
    kept = {n: found[n][at] for n, at in old.items()}
    limits = {n: part(spent[n], at) for n, at in old.items()}
    story = "queries and keys that see nothing must change nothing"
    agree(impl.outputs, called(impl, case, inputs), (kept, limits), story)


def _longer(array, before, behind, rng):
    """More places in front or behind along the length, which hold numbers as large as the rest."""
    shape = (*array.shape[:2], before + behind, array.shape[3])
    more = stored(rng.standard_normal(shape) * 3, array.dtype.name)
    return np.concatenate([more[:, :, :before], array, more[:, :, before:]], axis=2)


@holds_for(CONTRACT, limits={**PLAIN, "state": ("exact",)})
def test_gradients_balance(impl, case):
    """Demands, within the budgets: sum of q dq^T = its like of k and dk transposed (one dS moves
    both; common rotations and scalings change nothing); sum of v dv^T = sum of out dout^T; and
    without softcap the rows of dS add up to 0: dq of a feature that is 1 in all keys and 0 in q.

    No oracle's value enters. Kills: a missing D, a scale in one of dq and dk, dk or dv without the
    sum over the group, rows of the last tile left out, an lse in the wrong base, another mask than
    the forward pass had.
    """
    inputs = dict(impl.contract.inputs(case))
    for name, value in (("q", 0), ("k", 1)):
        inputs[name] = inputs[name].copy()
        inputs[name][..., 0] = value
    inputs = restated(case, inputs)
    found, spent = called(impl, case, inputs)
    far = {n: np.minimum(reach(spent[n]), 1e300) for n in spent}
    got = {n: np.where(far[n] < 1e300, widen(x), 0.0) for n, x in found.items()}
    x = {n: widen(inputs[n]) for n in inputs}
    size, group = 2.0**-40, case.num_heads // case.num_kv_heads
    one, two = _moment(x["q"], got["dq"], group), _moment(got["dk"], x["k"], 1)
    off = _moment(abs(x["q"]), far["dq"] + size * abs(got["dq"]), group)
    off = off + _moment(far["dk"] + size * abs(got["dk"]), abs(x["k"]), 1)
    within("dq and dk", one - two, off, "both are moments of one dS")
    moved, lost = _state(x, inputs)
    one, two = _moment(x["v"], got["dv"], 1), _moment(x["out"], x["dout"], group)
    off = _moment(abs(x["v"]), far["dv"] + size * abs(got["dv"]), 1)
    off = off + _moment(lost + size * abs(x["out"]), abs(x["dout"]), group)
    within("dv", one - two, off, "values receive what the output took from them")
    if case.softcap is None and "dq" in got:
        scale = case.head_dim**-0.5 if case.softmax_scale is None else case.softmax_scale
        off = scale * (moved * abs(x["dout"])).sum(-1) + far["dq"][..., 0]
        within("dq", got["dq"][..., 0], off, "rows of dS must add up to 0")


def _moment(a, b, group):
    """sum of a b^T over all places of the heads of a group: (batch, kv heads, .., ..)."""
    shape = (a.shape[0], a.shape[1] // group, group * a.shape[2])
    return a.reshape(*shape, a.shape[3]).swapaxes(-1, -2) @ b.reshape(*shape, b.shape[3])


def _state(x, inputs):
    """How far out is from the exact one, and out from sum P v with P of the rounded lse."""
    lse = np.where(np.isfinite(x["lse"]), x["lse"], 0.0)
    common = np.expm1(1.01 * FORMATS["float32"].half_ulp(lse))[..., None]
    rounding = FORMATS[inputs["out"].dtype.name].half_ulp(x["out"])
    rounding = rounding + 2.0**-40 * abs(x["v"]).max(initial=0.0)
    return (1 + common) * rounding, (1 + common) * rounding + common * abs(x["out"])


AXES = {"keys": ("seqlen_k", ("dk", "dv"), 2), "queries": ("seqlen_q", ("dq",), 2),
        "sequences": ("batch", ("dq", "dk", "dv"), 0)}  # fmt: skip


def _cut(case):
    """Along what, and up to two places, mostly next to the edges of blocks."""
    lengths = {name: getattr(case, field) for name, (field, _, _) in AXES.items()}
    possible = [name for name, n in lengths.items() if n > 1] or ["keys"]

    def places(name):
        edges = [n for e in range(0, lengths[name] + 1, 16) for n in (e - 1, e, e + 1)]
        edges = [n for n in edges if 0 < n < lengths[name]] or [0]
        anywhere = st.sampled_from(edges) | st.integers(0, lengths[name])
        cuts = st.lists(anywhere, min_size=1, max_size=2, unique=True).map(sorted).map(tuple)
        return st.tuples(st.just(name), cuts)

    return st.sampled_from(possible).flatmap(places)


@holds_for(CONTRACT, POLAR, limits=PLAIN, needs={**ANY_LENGTH, "q_offset": (-1, 1)}, cut=_cut)
def test_parts_add_up(impl, case, cut):
    """Demands: calls on parts of the keys, of the queries or of the batch, with the lse and out of
    the whole, give the whole's gradients: side by side along what was cut, else their sum.

    Kills: an accumulator that is not emptied, a last partial tile dropped, an offset forgotten.
    """
    axis, cuts = cut
    field, beside, along = AXES[axis]
    inputs = impl.contract.inputs(case)
    edges = sorted({0, *cuts, getattr(case, field)})
    edges = edges if len(edges) > 1 else [0, 0]  # nothing to cut
    states = [called(impl, *_part(case, inputs, axis, *ends)) for ends in pairwise(edges)]
    whole, spent = called(impl, case, inputs)
    for name in impl.outputs:
        values = [widen(outputs[name]) for outputs, _ in states]
        limits = [reach(budget[name]) for _, budget in states]
        joined = np.concatenate if name in beside else sum
        value, limit = (joined(x, along) if name in beside else joined(x) for x in (values, limits))
        off = limit + reach(spent[name])
        difference = np.where(np.isinf(off), 0.0, value - widen(whole[name]))
        within(name, difference, off, f"parts of the {axis} must give the whole")


def _part(case, inputs, axis, start, stop):
    """The call on a part; a query keeps its place relative to the keys."""
    at = slice(start, stop)
    if axis == "sequences":
        return replace(case, batch=stop - start), of_sequences(inputs, at)
    if axis == "keys":
        moved = replace(case, seqlen_k=stop - start, q_offset=case.q_offset - start)
        return replace(moved, empty_rows=True), of_keys(inputs, at)
    moved = replace(case, seqlen_q=stop - start, q_offset=case.q_offset + start)
    return moved, of_rows(inputs, at)


GROUPED = {**PLAIN, "num_heads": (2, 3, 4, 6), "num_kv_heads": (1, 2)}
del GROUPED["offsets"]  # any will do, also those of packed sequences


@holds_for(
    CONTRACT, "attention_varlen_backward", limits=GROUPED, needs={"num_kv_heads": (1, 2, 3, 4, 6)}
)
def test_a_kv_head_receives_the_sum_over_its_group(impl, case):
    """Demands: with kv heads repeated for their query heads, dq is the same, and dk and dv are what
    adds up to the grouped ones, within all budgets.

    Kills: a dropped reduction over the group (the last head's, the first one's, their mean), kv
    heads read interleaved instead of in blocks.
    """
    inputs, group = impl.contract.inputs(case), case.num_heads // case.num_kv_heads
    repeated = {**inputs, **{n: np.repeat(inputs[n], group, axis=1) for n in ("k", "v")}}
    one = called(impl, case, inputs)
    many = called(impl, replace(case, num_kv_heads=case.num_heads), repeated)
    story = "grouped heads and the sum of repeated ones must agree"
    same_value("dq", one[0]["dq"], many[0]["dq"], one[1]["dq"], story, many[1]["dq"])
    for name in ("dk", "dv"):
        first, _, *rest = one[0][name].shape  # sequences, heads, .. or tokens, heads, ..
        shape = (first, case.num_kv_heads, group, *rest)
        limit = reach(many[1][name]).reshape(shape).sum(2) + reach(one[1][name])
        difference = widen(many[0][name]).reshape(shape).sum(2) - widen(one[0][name])
        within(name, np.where(np.isinf(limit), 0.0, difference), limit, story)
