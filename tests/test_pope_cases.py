"""`pope_attention`: its cases, how limits construct them, and which mistakes they make visible."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from attention_case_draws import drawn

from tightrope.contract import contract
from tightrope.formats import FORMATS
from tightrope.oracles.pope_attention import CONTRACT, PopeAttentionCase
from tightrope.oracles.pope_attention_builds import BUILDS, FIELDS, SHAPES, builds, free
from tightrope.oracles.pope_attention_cases import DOMAIN, POSITIONS


def some(count=60, where=(), size="small", **limited):
    return drawn("pope_attention", count, where, size, **limited)


def test_the_contract_is_found_by_its_name_and_passes_none_for_a_delta_that_is_off():
    assert contract("pope_attention") is CONTRACT
    for case in (PopeAttentionCase(), PopeAttentionCase(delta="heads", sink=True)):
        inputs = CONTRACT.inputs(case)
        plain, named = CONTRACT.arguments(inputs)
        assert len(plain) == 7
        assert plain[4] is inputs.get("delta")
        assert plain[6] is inputs["k_positions"]
        assert set(named) == ({"sink"} if case.sink else set())


def test_a_case_is_its_json_and_its_repr():
    for case in some(20):
        assert CONTRACT.from_json(CONTRACT.to_json(case)) == case
        assert eval(repr(case)) == case  # the failure report prints it


def test_inputs_have_the_shapes_and_dtypes_that_the_case_says():
    for case in some(100, positions=POSITIONS):
        x = CONTRACT.inputs(case)
        keys = (case.batch, case.num_kv_heads, case.seqlen_k)
        assert x["q"].shape == (case.batch, case.num_heads, case.seqlen_q, case.head_dim)
        assert x["k"].shape == (*keys, case.head_dim)
        assert x["v"].shape == (*keys, case.head_dim_v)
        assert {x[n].dtype for n in "qkv"} == {FORMATS[case.dtype].dtype}
        assert x["inv_freq"].shape == (case.rotary_dim,)
        assert x["inv_freq"].dtype.name == case.inv_freq_dtype
        assert (x["inv_freq"] > 0).all()
        heads = {"none": 0, "kv_heads": case.num_kv_heads, "heads": case.num_heads}[case.delta]
        assert ("delta" in x) == bool(heads)
        assert not heads or x["delta"].shape == (heads, case.rotary_dim)
        for name in ("q_positions", "k_positions"):
            lead = (case.batch,) if case.positions == "per_batch" else ()
            assert x[name].shape == (*lead, getattr(case, f"seqlen_{name[0]}"))
            assert x[name].dtype.name == case.position_dtype


def test_positions_are_of_every_kind():
    far = 0
    for case in some(150, positions=POSITIONS, position_dtype=("int64",)):
        x = CONTRACT.inputs(case)
        q, k = (x[n].astype(np.int64) for n in ("q_positions", "k_positions"))
        if case.positions in ("range", "offset", "long"):
            assert (q == np.arange(case.seqlen_q) + case.q_offset + case.start).all()
            assert (k == np.arange(case.seqlen_k) + case.start).all()
            far += case.positions == "long" and abs(case.start) > 2**31
        elif case.positions == "per_batch":
            assert (np.diff(k, axis=1) == 1).all()
            assert (np.abs(k[:, :1]) <= abs(case.start)).all()
        else:
            assert (np.abs(np.concatenate([q, k])) <= 1 << 20).all()
    assert far > 2
    assert {c.positions for c in some(150, positions=POSITIONS)} == {*POSITIONS}
    assert "long" not in {c.positions for c in some(150)}  # only of those that claim it


def test_int32_positions_stay_int32():
    for start in (2**31 - 3, -(2**31) + 2):
        case = PopeAttentionCase(
            seqlen_k=9, seqlen_q=2, positions="long", start=start, position_dtype="int32"
        )
        at = CONTRACT.inputs(case)["k_positions"]
        assert at.dtype == np.int32
        assert (np.diff(at.astype(np.int64)) >= 0).all()


def test_every_value_of_every_field_is_drawn():
    cases = [*some(400, positions=POSITIONS), *some(200, positions=POSITIONS, size="large")]
    for name, values in DOMAIN.items():
        if isinstance(values, tuple) and name not in ("window_left", "window_right"):
            missing = set(values) - {getattr(c, name) for c in cases}
            # scales and caps beside which logits would say nothing are for limits that name them
            assert not missing - {0.25}, (name, missing)


def pairs(build):
    shape = tuple(build[1:4])
    return set(combinations(enumerate((build[0], shape, *build[4:])), 2))


def test_every_legal_pair_of_compile_time_values_occurs():
    every = [b for b in free(CONTRACT.limits({})) if b[1:4] in SHAPES]
    every = [b for b in every if b[0] != "float32" or b[FIELDS.index("bias_dtype")] == "float32"]
    missing = set().union(*map(pairs, every)) - set().union(*map(pairs, BUILDS))
    assert not missing
    assert len(set(BUILDS)) == len(BUILDS) <= 33
    assert set(BUILDS) <= set(every)
    assert {b[1] for b in BUILDS} >= {40, 64, 72, 80, 96, 128, 192, 256}
    assert any(b[3] == b[1] for b in BUILDS)
    assert any(2 * b[3] == b[1] for b in BUILDS)
    assert any(b[3] % 2 and b[3] < b[1] for b in BUILDS)
    assert any(b[1] != b[2] for b in BUILDS)


def test_limits_without_a_committed_build_make_rows():
    def built(where=(), **given):
        return builds(CONTRACT.limits(given, where))

    assert {b[3] for b in built(head_dim=(88,))} == {88, 44}
    assert {b[3] for b in built(rotary_dim=(200,))} == {200}
    assert {b[-1] for b in built(delta=("none",))} == {False}
    assert {b[-1] for b in built(delta=("heads",))} == {True}
    assert {b[1] for b in built(("wide256",))} >= {16, 40, 64, 96, 128, 192}
    assert all(b[1] + b[3] <= 256 for b in built(("wide256",)))
    assert set(built()) == set(BUILDS)
    with pytest.raises(ValueError, match="no combination"):
        built(head_dim=(16,), rotary_dim=(32,))
    with pytest.raises(ValueError, match="no combination"):
        built(("wide256",), head_dim=(256,))


HOLDS = {
    "wide256": lambda c: c.head_dim + c.rotary_dim <= 256,
    "full_rotary": lambda c: c.head_dim == c.rotary_dim,
    "same_head_dim": lambda c: c.head_dim == c.head_dim_v,
    "square": lambda c: c.seqlen_q == c.seqlen_k and c.q_offset == 0,
    "contiguous": lambda c: (
        {v for f, v in vars(c).items() if f.startswith("layout_")} == {"contiguous"}
    ),
    "aligned16": lambda c: (
        c.head_dim % 8 == c.head_dim_v % 8 == c.rotary_dim % 8 == 0
        and c.layout_delta == "contiguous"
        and not {c.layout_q, c.layout_k, c.layout_v} & {"strided", "offset", "expanded"}
    ),
}


@pytest.mark.parametrize("relation", HOLDS)
@pytest.mark.parametrize("limited", [{}, {"head_dim": (64, 88)}, {"delta": ("kv_heads",)}])
def test_relations_construct_cases(relation, limited):
    for case in some(25, (relation,), **limited):
        assert HOLDS[relation](case), case
        assert all(getattr(case, n) in values for n, values in limited.items())


def test_no_row_is_empty_unless_the_case_allows_it_and_hidden_keys_do_not_matter():
    poisoned = empty = 0
    plain = {"hidden": ("nan", "inf"), "layout_v": ("contiguous",), "head_dim": (16, 40)}
    often = some(100, **plain, empty_rows=(True,), causal=(True,))
    for case in (*some(60, **plain), *often):
        inputs = CONTRACT.inputs(case)
        lse = CONTRACT.oracle(case, inputs)["lse"]
        empty += bool(np.isneginf(lse).any())
        assert case.empty_rows or np.isfinite(lse).all()
        bad = {n: ~np.isfinite(inputs[n].astype(np.float64)) for n in ("k", "v")}
        poisoned += any(x.any() for x in bad.values())
        before = CONTRACT.oracle(case, inputs)
        for name, at in bad.items():
            inputs[name][at] = 3.0
        after = CONTRACT.oracle(case, inputs)
        assert all(np.array_equal(before[n], after[n]) for n in before)
    assert poisoned > 12
    assert empty > 2
