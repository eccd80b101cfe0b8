"""`rope`: its cases, how limits construct them, and which mistakes they make visible."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import strategies as st
from rope_draws import DTYPES, STRANGER, drawn, limits

from tightrope.contract import contract
from tightrope.formats import FORMATS
from tightrope.oracles.rope import CONTRACT, RopeCase
from tightrope.oracles.rope_builds import BUILDS, FIELDS, builds, legal
from tightrope.oracles.rope_cases import LARGE, RELATIONS


def test_a_case_is_its_json_and_its_repr():
    for case in drawn(20):
        assert CONTRACT.from_json(CONTRACT.to_json(case)) == case
        assert eval(repr(case)) == case  # the failure report prints it


def test_inputs_have_the_shapes_dtypes_and_rows_that_the_case_says():
    for case in drawn(100):
        x = CONTRACT.inputs(case)
        assert list(x) == ["q", "k", "cos", "sin", "positions"]
        assert x["q"].shape == (case.tokens, case.num_heads, case.head_dim)
        assert x["k"].shape == (case.tokens, case.num_kv_heads, case.head_dim)
        assert x["cos"].shape == x["sin"].shape == (case.table_rows, case.rotary_dim // 2)
        assert {x["q"].dtype, x["k"].dtype} == {FORMATS[case.dtype].dtype}
        assert {x["cos"].dtype, x["sin"].dtype} == {FORMATS[case.table_dtype].dtype}
        assert x["positions"].dtype.name == case.position_dtype
        assert ((x["positions"] >= 0) & (x["positions"] < case.table_rows)).all()
        assert case.num_heads % case.num_kv_heads == 0
        if case.layout_q == "expanded":
            assert not case.inplace
            assert (x["q"] == x["q"][:, :1]).all()


def test_rows_of_an_unstructured_table_differ():
    case = RopeCase(table_rows=8192, rotary_dim=2, head_dim=8, positions="last")
    cos, sin = (CONTRACT.inputs(case)[t] for t in ("cos", "sin"))
    assert len(np.unique(np.concatenate([cos, sin], 1), axis=0)) == 8192


def pairs(build):
    return set(combinations(zip(FIELDS, build, strict=True), 2))


def test_every_legal_pair_of_compile_time_values_occurs():
    values = {n: sorted({b[i] for b in BUILDS}, key=str) for i, n in enumerate(FIELDS)}
    dims = {(b[FIELDS.index("head_dim")], b[FIELDS.index("rotary_dim")]) for b in BUILDS}
    every = [b for b in product(*values.values()) if legal(b) and (b[4], b[5]) in dims]
    missing = set().union(*map(pairs, every)) - set().union(*map(pairs, BUILDS))
    assert not missing
    assert len(set(BUILDS)) == len(BUILDS) <= 65
    assert all(map(legal, BUILDS))
    assert {(16, 16), (64, 32), (128, 96), (192, 64), (256, 64), (40, 40), (8, 2)} <= dims


def test_limits_without_a_committed_build_rebuild_rows():
    assert {b[4] for b in builds(limits(head_dim=(88,)))} == {88}
    assert {b[5] for b in builds(limits(rotary_dim=(200,)))} == {200}
    both = builds(limits(head_dim=(64, 88), dtype=("bfloat16",)))
    assert {b[4] for b in both} == {64, 88}
    assert all(map(legal, both))
    assert {b[0] for b in both} == {"bfloat16"}
    wide = builds(limits(head_dim=range(100, 105), rotary_dim=range(4, 9, 2)))
    assert {b[4] for b in wide} <= set(range(100, 105))
    assert {b[5] for b in wide} <= {4, 6, 8}
    with pytest.raises(ValueError, match="no combination"):
        builds(limits(head_dim=(16,), rotary_dim=(32,)))
    with pytest.raises(ValueError, match="no combination"):
        builds(limits(inplace=(True,), out_dtype=("float32",)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("out_dtype", "inplace"), [("input", False), ("input", True), ("float32", False)]
)
def test_narrow_limits_keep_partial_rotations_and_all_tables(
    dtype, interleaved, out_dtype, inplace
):
    narrow = {"interleaved": (interleaved,), "out_dtype": (out_dtype,), "inplace": (inplace,)}
    rows = builds(limits(dtype=(dtype,), **narrow))
    assert all(map(legal, rows))
    assert {(b[0], b[3], b[6], b[7]) for b in rows} == {(dtype, interleaved, out_dtype, inplace)}
    assert {b[1] for b in rows} == {"float32", "float16", "bfloat16"}
    assert sum(b[5] < b[4] for b in rows) >= 2
    assert sum(b[5] == b[4] for b in rows) >= 2


def test_an_unlimited_kernel_draws_committed_rows_only():
    assert set(builds(limits())) == set(BUILDS)
    for dtype in DTYPES:
        assert set(builds(limits(dtype=(dtype,)))) == {b for b in BUILDS if b[0] == dtype}


def holds(case, relation):
    rows = [(case.head_dim, case.dtype), (case.rotary_dim // 2, case.table_dtype)]
    inner = {case.layout_q, case.layout_k, case.layout_table} & {"strided", "offset", "expanded"}
    return {
        "out_dtype=input": case.out_dtype == "input",
        "full_rotary": case.rotary_dim == case.head_dim,
        "equal_heads": case.num_heads == case.num_kv_heads,
        "same_dtype_table": case.dtype == case.table_dtype,
        "contiguous": {case.layout_q, case.layout_k, case.layout_table} == {"contiguous"},
        "aligned16": not inner and all(n * FORMATS[d].dtype.itemsize % 16 == 0 for n, d in rows),
    }[relation]


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("given_limits", [{}, {"head_dim": (88, 96)}, {"dtype": ("float64",)}])
def test_relations_construct_cases(relation, given_limits):
    cases = drawn(25, (relation,), **given_limits)
    assert all(holds(c, relation) for c in cases)
    assert all(getattr(c, n) in v for c in cases for n, v in given_limits.items())


def test_limits_that_contradict_a_relation_are_refused():
    with pytest.raises(ValueError, match="out_dtype=input"):
        CONTRACT.cases(limits(("out_dtype=input",), out_dtype=("float32",)))
    with pytest.raises(ValueError, match="multiple"):
        CONTRACT.cases(limits(num_heads=(3,), num_kv_heads=(2,)))


@pytest.mark.parametrize("name", ["layout_q", "layout_k"])
def test_heads_that_share_storage_are_not_rotated_in_place(name):
    for case in drawn(20, **{name: ("expanded",)}):
        assert not case.inplace
    with pytest.raises(ValueError, match=f"{name} is always 'expanded' and inplace always True"):
        CONTRACT.cases(limits(inplace=(True,), **{name: ("expanded",)}))


def test_the_simplest_case_comes_first_and_is_informative():
    simplest = CONTRACT.cases(limits()).map(lambda c: c)
    case = drawn(1)[0]
    assert (case.tokens, case.num_heads, case.head_dim, case.dtype) == (1, 1, 6, "float32")
    assert isinstance(simplest, st.SearchStrategy)
    assert informative(case)


def test_large_cases_are_offered_beyond_the_known_threshold_but_not_to_float64():
    for case in drawn(10, size=("large",), dtype=("float16",)):
        assert case.tokens * case.num_heads >= LARGE
    assert {c.size for c in drawn(10, size=("small", "large"), dtype=("float64",))} == {"small"}


def informative(case):
    inputs = CONTRACT.inputs(case)
    budgets = CONTRACT.budget(case, inputs, STRANGER)
    models = CONTRACT.nulls(case, inputs).values()
    return not any(all(budgets[n].accepts(y) for n, y in m.items()) for m in models)


@pytest.mark.parametrize("dtype", DTYPES)
def test_hardly_any_case_would_let_a_useless_model_pass(dtype):
    cases = [c for c in drawn(200, dtype=(dtype,)) if c.tokens]
    useless = [c for c in cases if not informative(c)]
    assert len(useless) < 0.02 * len(cases), useless


MISTAKES = (
    "opposite angle",
    "token's index",
    "k rotated one position late",
    "clamped at 4,096",
    "twice its row stride",
    "layout where",
    "at head_dim/2",
    "last rotary_dim features",
    "set to zero",
    "half of the kv heads",
    "last token",
    "cos and sin rounded to bfloat16",
    "products rounded to",
    "truncated",
    "twice",
    "not rotated at all",
)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("pairing", [{}, {"interleaved": (False,)}])
def test_each_known_mistake_is_visible_in_many_of_the_cases_of_one_run(dtype, pairing):
    """What the budget of an unknown kernel rejects, among 100 cases of one that works out of place.

    Seen in 5 of 100, a mistake stays unseen in fewer than 1 of 100 such runs: 0.95**100 < 0.006.
    """
    seen: Counter[str] = Counter()
    limited = {"dtype": (dtype,), "inplace": (False,), "out_dtype": ("input",), **pairing}
    for case in drawn(100, **limited):
        inputs = CONTRACT.inputs(case)
        budgets = CONTRACT.budget(case, inputs, STRANGER)
        for sentence, outputs in CONTRACT.alternatives(case, inputs):
            if not all(budgets[n].accepts(y) for n, y in outputs.items()):
                seen.update(m for m in MISTAKES if m in sentence)
    assert {m: seen[m] for m in MISTAKES if seen[m] < 5} == {}


def test_the_contract_is_found_by_its_name():
    assert contract("rope") is CONTRACT


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_most_models_run_is_drawn_under_narrow_limits(dtype):
    narrow = {"interleaved": (False,), "inplace": (False,), "out_dtype": ("input",)}
    chosen = drawn(100, dtype=(dtype,), **narrow)
    usual = {(c.head_dim, c.rotary_dim, c.table_dtype) for c in chosen}
    assert {(128, 128, "float32"), (64, 64, "float32")} <= usual
    assert len(usual) > 12
