"""Gradients added up around a ring: no simulated ring beyond its bound, no term idle."""

from __future__ import annotations

from functools import partial, reduce

import numpy as np
import pytest
from simulated_attention import FLOAT32, PATTERNS, Rounding, stressed
from simulated_attention_backward import Backwards
from test_attention_backward_budget import spent

from tightrope.budget import Budget
from tightrope.formats import FORMATS, stored, widen
from tightrope.oracles.attention_backward_budget import backward
from tightrope.oracles.attention_backward_inputs import stated
from tightrope.oracles.ring_attention_backward import CONTRACT, RingAttentionBackwardCase
from tightrope.oracles.ring_attention_backward_budget import STAGES, budget
from tightrope.oracles.ring_attention_backward_pairs import pair, pairs, runs
from tightrope.oracles.ring_attention_backward_sums import (
    STORED,
    SUMS,
    Adding,
    Part,
    chained,
    in_any_order,
)
from tightrope.ring_shards import owners

HALF = FORMATS["bfloat16"]
OUTPUTS = ("dq", "dk", "dv")
SIZES = {"seqlen_q": 9, "seqlen_k": 11, "head_dim": 3, "head_dim_v": 2, "out_dtype": "float32"}
SETTINGS = {
    "plain": {"ranks": 3, "dtype": "float32"},
    "zigzag": {"ranks": 2, "scheme": "zigzag", "causal": True, "q_offset": 2, "dtype": "bfloat16"},
    "groups": {"ranks": 4, "num_heads": 4, "num_kv_heads": 2, "dtype": "bfloat16"},
    "window": {"ranks": 4, "window_left": 3, "window_right": 1, "dtype": "float16"},
    "softcap": {"ranks": 2, "softcap": 2.0, "data": "times_3", "dtype": "bfloat16"},
    "far": {"ranks": 3, "data": "far_groups", "data_dout": "mixed_scales", "dtype": "float32"},
}  # fmt: skip


def called(name, **more):
    case = RingAttentionBackwardCase(**{**SIZES, **SETTINGS[name], **more})
    return case, CONTRACT.inputs(case)


def simulated(case, b, to, fmt, order):
    """dq, dk and dv of a ring whose pairs, stores and sums round as `to` says; order "ring", or a
    tree that is drawn."""
    rng, kernel = np.random.default_rng(case.seed), Backwards("sequential", to)
    kept = partial(to, fmt=fmt)
    with np.errstate(all="ignore"):
        found = {(i, j): [kept(x) for x in kernel(pair(b, i, j))] for i, j in pairs(case)}

    def plus(a, b):  # with 0 it is exact, and what is stored stays
        total = to(a + b)
        total = total if fmt is FLOAT32 else kept(total)
        return np.where(a == 0, b, np.where(b == 0, a, total))

    def gathered(groups):
        if order == "ring":
            return reduce(plus, [reduce(plus, group) for group in groups])
        parts = [x for group in groups for x in group]
        while len(parts) > 1:
            one, other = (parts.pop(int(rng.integers(len(parts)))) for _ in range(2))
            parts.append(plus(one, other))
        return parts[0]

    dq, dk, dv = {}, {}, {}
    for rank in range(case.ranks):
        for i in runs(case, case.seqlen_q, rank):
            keys = [j for o in owners(case.ranks, rank) for j in runs(case, case.seqlen_k, o)]
            dq[i] = gathered([[found[i, j][0]] for j in keys])
        for j in runs(case, case.seqlen_k, rank):
            places = [runs(case, case.seqlen_q, (rank + s) % case.ranks) for s in range(case.ranks)]
            for n, into in ((1, dk), (2, dv)):
                into[j] = gathered([[found[i, j][n] for i in each] for each in places])
    return [np.concatenate([x[run] for run in sorted(x)], 1) for x in (dq, dk, dv)]


def worst(name, fmt, order, pattern, seed, drop=()):
    """Shares of T0 and of T1 that a stressed ring spends, of each output."""
    case, inputs = called(name, seed=seed)
    arithmetic = {
        **STAGES, "logits": "scaled", "heads": "summed", "sum_order": order, "partial": fmt.name
    }  # fmt: skip
    budgets = budget(case, inputs, arithmetic)
    to = Rounding() if pattern == "nearest" else stressed(pattern, seed)
    found = []
    for output, x in zip(OUTPUTS, simulated(case, stated(case, inputs), to, fmt, order),
                         strict=True):  # fmt: skip
        of, x = budgets[output].without(*drop), x.reshape(budgets[output].expected.shape)
        t1 = 0.0
        if of.replay is not None:
            t1 = spent(np.abs(x - of.replay.centre), of.replay.radius)
        found.append((spent(np.abs(x - of.expected), of.bound + of.oracle), t1))
    return np.array(found)


@pytest.mark.parametrize("fmt", [FLOAT32, HALF], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("order", ["ring", "any"])
def test_no_ring_with_every_rounding_pushed_exceeds_its_bound(order, fmt):
    shares = []
    for name in SETTINGS:
        if fmt is HALF and SETTINGS[name]["dtype"] != "bfloat16":
            continue
        for seed, pattern in enumerate(("nearest", *PATTERNS)):
            shares.append(worst(name, fmt, order, pattern, seed))
            assert shares[-1].max() <= 1, (name, pattern, shares[-1])
    reached = np.max(shares, axis=0)
    assert (reached[:, 0] > 0.25).all(), reached
    assert order == "any" or (reached[:, 1] > 0.25).all(), reached


@pytest.mark.parametrize("term", [STORED, SUMS])
def test_without_a_term_of_its_own_a_right_ring_is_wrong(term):
    found = [worst(name, HALF, "ring", pattern, 1, drop=(term,))[:, 0]
             for name in ("zigzag", "groups") for pattern in ("up", "outward")]  # fmt: skip
    assert (np.max(found, axis=0) > 1).all(), found


def exactly(*values):
    """Parts of one element that nothing is known to be off."""
    x = [np.full((1, 1, 1), v) for v in values]
    return [Part(v, {}, np.zeros(v.shape), None) for v in x]


@pytest.mark.parametrize("gather", [chained, in_any_order])
@pytest.mark.parametrize("fmt", [None, HALF], ids=["float32", "bfloat16"])
def test_sums_round_and_without_their_term_a_right_ring_is_wrong(gather, fmt):
    values = [1.0, 2.0**-9, 2.0**-9 + 2.0**-16, -(2.0**-25), 2.0**-24 + 2.0**-31]
    how = Adding(fmt)
    found = gather(exactly(*values), how)
    step = partial(Rounding("outward"), fmt=fmt or FLOAT32)
    for order in (values, values[::-1]):
        total = reduce(lambda a, b: step(a + b), order)
        off = np.abs(total - found.expected)
        assert 0 < off <= found.terms[SUMS]
    assert set(found.terms) == {SUMS}
    alone = gather(exactly(1.0, 0.0, 0.0), how)
    assert not alone.terms[SUMS].any()  # nothing is added to it


def test_pairs_are_stored_and_without_that_term_a_right_ring_is_wrong():
    value = np.full((1, 1, 1), 1 + 2.0**-8 + 2.0**-12)
    for fmt, dtype in ((None, "float32"), (HALF, "bfloat16")):
        near = value if fmt else value + 2.0**-26
        part = Adding(fmt).part(Budget(near, {}, dtype))
        off = np.abs(widen(stored(near, dtype)) - near)
        assert 0 < off <= part.terms[STORED]
        assert set(part.terms) == {STORED}
    nothing = Adding(None).part(Budget(0 * value, {}, "float32"))
    assert not nothing.terms[STORED].any()


@pytest.mark.parametrize("name", SETTINGS)
def test_a_ring_has_the_terms_of_its_pairs_and_two_more(name):
    case, inputs = called(name)
    found, b = budget(case, inputs, {}), stated(case, inputs)
    for output in OUTPUTS:
        given = {**STAGES, "state": "given"}
        of_pair = {n: given[n] for n in given if n not in ("partial", "sum_order")}
        each = [backward(pair(b, i, j), of_pair)[output].terms for i, j in pairs(case)]
        assert set(found[output].terms) - {STORED, SUMS} <= {t for terms in each for t in terms}
        assert {STORED, SUMS} <= set(found[output].terms)


def test_one_rank_has_the_budget_of_the_whole_but_for_storing():
    case, inputs = called("groups", ranks=1)
    of_pair = {n: v for n, v in STAGES.items() if n not in ("partial", "sum_order")}
    whole = backward(stated(case, inputs), of_pair)
    for output, spent_ in budget(case, inputs, {}).items():
        again = whole[output].reshape(spent_.expected.shape)
        assert (spent_.expected == again.expected).all()
        assert (spent_.without(STORED, SUMS).bound <= again.bound * (1 + 2.0**-30)).all()


def test_sums_in_sixteen_bits_grow_with_the_ring():
    """Without a mask every key hears of as many ranks as there are."""
    bounds = {}
    for fmt in ("float32", "bfloat16"):
        for ranks in (2, 4, 8):
            case, inputs = called("plain", ranks=ranks, dtype="bfloat16", seqlen_q=32, seqlen_k=32)
            arithmetic = {**STAGES, "logits": "scaled", "heads": "summed", "sum_order": "ring",
                          "partial": fmt}  # fmt: skip
            radius = budget(case, inputs, arithmetic)["dk"].replay.radius
            bounds[fmt, ranks] = float(np.median(radius))
    wide = [bounds["bfloat16", n] for n in (2, 4, 8)]
    assert wide == sorted(wide)
    assert wide[2] > 1.5 * wide[0]
    assert bounds["float32", 8] - bounds["float32", 2] < (wide[2] - wide[0]) / 64


@pytest.mark.parametrize(
    ("stage", "value"), [("sum_order", "tree"), ("partial", "tf32"), ("state", "any"), ("p", "x")]
)
def test_a_stage_that_means_nothing_is_refused(stage, value):
    case, inputs = called("plain")
    with pytest.raises(ValueError, match=stage):
        budget(case, inputs, {stage: value})
