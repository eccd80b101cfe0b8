"""The cases of every attention contract: what they hold, and what they leave to no kernel."""

from __future__ import annotations

import json

import numpy as np
import pytest
from attention_case_draws import DENSE, NAMES, QUICK, SEQUENCES, drawn
from hypothesis import Phase, find, settings

from tightrope import Arithmetic
from tightrope.contract import contract
from tightrope.frozen import freeze, thaw
from tightrope.layouts import place


def sequences(name, case, inputs):
    """(seqlen_q, seqlen_k, q_offset) of each sequence."""
    if name in SEQUENCES:
        pairs = list(zip(case.seqlens_q, case.seqlens_k, strict=True))
        offsets = inputs.get("q_offset", [m - n for n, m in pairs])
        return [(n, m, int(o)) for (n, m), o in zip(pairs, offsets, strict=True)]
    offsets = np.broadcast_to(inputs.get("q_offset", case.q_offset), (case.batch,))
    return [(case.seqlen_q, case.seqlen_k, int(o)) for o in offsets]


def keys_seen(case, n, m, offset):
    """Keys that each row sees by its index, counted one by one."""
    left = np.inf if case.window_left is None else case.window_left
    right = np.inf if case.window_right is None else case.window_right
    right = min(right, 0) if case.causal else right
    return [
        sum(i + offset - left <= j <= i + offset + right for j in range(m)) for i in range(n)
    ]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_case_is_its_json_and_its_repr(name):
    spec = contract(name)
    for case in drawn(name)[:20]:
        again = json.loads(json.dumps(freeze(case)))
        assert thaw(again, spec) == case
        assert eval(repr(case), {type(case).__name__: type(case)}) == case


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", ["small", "large"])
def test_oracles_and_budgets_are_numbers_of_the_right_shapes(name, size):
    spec = contract(name)
    for case in drawn(name, 60 if size == "small" else 3, size=size):
        inputs = spec.inputs(case)
        assert list(inputs) == list(spec.inputs(case))
        truth = spec.oracle(case, inputs)
        spent = spec.budget(case, inputs, Arithmetic().over(spec.stages))
        for output in spec.outputs:
            assert truth[output].shape == spent[output].expected.shape
            assert not np.isnan(truth[output]).any()
            assert not np.isposinf(truth[output]).any()
            assert not np.isnan(spent[output].bound).any()
            same = np.where(np.isfinite(truth[output]), truth[output], -1e300)
            off = np.abs(
                np.where(np.isfinite(truth[output]), spent[output].expected, -1e300) - same
            )
            assert (off <= 2 * np.asarray(spent[output].oracle) + 1e-12 * np.abs(same)).all()
        for argument, layout in spec.layouts(case).items():
            if not layout.startswith("view of "):
                place(layout, inputs[argument].shape)


@pytest.mark.parametrize("name", [*DENSE, *SEQUENCES])
def test_no_row_is_empty_unless_the_case_allows_it(name):
    spec, empty = contract(name), 0
    for case in (*drawn(name, 60), *drawn(name, 60, empty_rows=(True,))):
        inputs = spec.inputs(case)
        rows = [keys_seen(case, *s) for s in sequences(name, case, inputs)]
        none = any(count == 0 for row in rows for count in row)
        empty += none
        assert case.empty_rows or not none, case
    assert empty > 2


@pytest.mark.parametrize("name", [*DENSE, *SEQUENCES])
def test_limits_keep_rows_from_being_empty(name):
    spec = contract(name)
    for case in drawn(name, 40, empty_rows=(False,)):
        lse = spec.oracle(case, spec.inputs(case))["lse"]
        if name in SEQUENCES:
            lse = lse[:, : sum(case.seqlens_q)]
        assert np.isfinite(lse).all()


@pytest.mark.parametrize("name", [*DENSE, *SEQUENCES])
def test_what_no_row_may_see_does_not_matter_and_is_poisoned(name):
    spec, poisoned = contract(name), 0
    for case in drawn(name, 60, hidden=("nan", "inf"), layout_v=("contiguous",)):
        inputs = spec.inputs(case)
        caches = [inputs[x] for x in inputs if x[0] in "kv" and inputs[x].dtype.kind != "i"]
        bad = [~np.isfinite(x.astype(np.float64)) for x in caches]
        poisoned += any(x.any() for x in bad)
        for x, at in zip(caches, bad, strict=True):
            x[at] = 3.0
        assert not any(np.isnan(y).any() for y in spec.oracle(case, inputs).values())
    assert poisoned > 6  # of 60, about 25 expected


@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences_are_of_every_kind(name):
    cases = drawn(name, 400)
    counts = {len(case.seqlens_q) for case in cases}
    members = [m for c in cases for m in zip(c.seqlens_q, c.seqlens_k, strict=True)]
    assert counts >= {1, 2, 3, 4}
    assert any(n == 0 < m for n, m in members)
    assert any(m == 0 < n for n, m in members)
    assert (0, 0) in members
    assert any(n > m for n, m in members)
    assert any(max(c.seqlens_k) > 8 * max(1, min(c.seqlens_k)) for c in cases if c.seqlens_k)
    for case in cases:
        inputs = contract(name).inputs(case)
        ends = inputs["cu_seqlens_q"]
        assert ends.dtype == np.int32
        assert ends[0] == 0
        assert len(inputs["q"]) == ends[-1] + case.spare


def test_every_page_is_used_once_and_the_tail_is_never_one():
    kinds = set()
    for case in drawn("attention_paged", 80):
        x = contract("attention_paged").inputs(case)
        counts = -(-x["cache_seqlens"] // case.page_size)
        table = x["block_table"]
        used = [p for row, n in zip(table, counts, strict=True) for p in row[:n].tolist()]
        assert len(set(used)) == len(used) == len(x["k_cache"]) - case.spare_pages
        assert all(0 <= page < len(x["k_cache"]) for page in used)
        tail = {int(p) for row, n in zip(table, counts, strict=True) for p in row[n:]}
        assert tail <= {{"zero": 0, "negative": -1, "huge": 2**31 - 1}[case.tail]}
        kinds.add((case.tail, bool(tail)))
    assert {(t, True) for t in ("zero", "negative", "huge")} <= kinds


@pytest.mark.parametrize("name", NAMES)
def test_the_simplest_case_is_small(name):
    spec = contract(name)
    quick = settings(QUICK, max_examples=300, phases=[Phase.generate, Phase.shrink])
    case = find(spec.cases(spec.limits({"size": ("small",)})), lambda c: True, settings=quick)
    inputs = spec.inputs(case)
    assert max(x.size for x in inputs.values()) <= 1024
    assert case.seed == 0


@pytest.mark.parametrize("name", NAMES)
def test_hardly_any_case_would_let_a_useless_model_pass(name):
    spec, useless, count = contract(name), 0, 0
    for case in drawn(name, 100):
        inputs = spec.inputs(case)
        spent = spec.budget(case, inputs, Arithmetic().over(spec.stages))
        if not all(spent[output].expected.size for output in spec.outputs):
            continue
        models = spec.nulls(case, inputs).values()
        count += 1
        useless += any(all(spent[n].accepts(y) for n, y in model.items()) for model in models)
    assert useless < 0.1 * count
