"""The cases of every attention contract: how limits, relations and builds construct them."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import combinations, product

import pytest
from attention_case_draws import CONTRADICTIONS, DENSE, NAMES, NARROW, SEQUENCES, drawn, known

from tightrope.contract import contract
from tightrope.formats import FORMATS
from tightrope.oracles import (
    attention_builds,
    attention_draw_lengths,
    attention_varlen_builds,
    rope_attention_builds,
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("last", [0, -1])
def test_limits_construct_cases(name, last):
    spec = contract(name)
    dtype = spec.domain["dtype"][last]
    limited = {"dtype": (dtype,), "head_dim": (64, 88), "num_heads": (2, 4)}
    for case in drawn(name, 15, **limited):
        assert all(getattr(case, field) in values for field, values in limited.items())
    known = {f.name for f in fields(spec.case)} | {"sequences", "seqlen_q", "seqlen_k"}
    assert set(spec.domain) <= known
    assert set(spec.axes) <= {f.name for f in fields(spec.case)}


@pytest.mark.parametrize("name", [*DENSE, *SEQUENCES])
def test_a_kernel_may_have_a_softcap_a_scale_and_a_window_of_its_own(name):
    own = {"softcap": (30.0,), "softmax_scale": (0.2,), "window_left": (1000,)}
    for case in drawn(name, 10, **own):
        assert (case.softcap, case.softmax_scale, case.window_left) == (30.0, 0.2, 1000)


HOLDS = {
    "out_dtype=input": lambda c: c.out_dtype == "input",
    "same_head_dim": lambda c: c.head_dim == c.head_dim_v,
    "equal_heads": lambda c: c.num_heads == c.num_kv_heads,
    "same_kv_layout": lambda c: c.layout_k == c.layout_v,
    "no_offset": lambda c: c.q_offset == 0 and c.offsets == "int",
    "bottom_right": lambda c: c.q_offset == c.seqlen_k - c.seqlen_q and c.offsets == "int",
    "full_rotary": lambda c: c.rotary_dim == c.head_dim,
    "same_dtype_table": lambda c: c.dtype == "float32" or c.table_dtype == "input",
    "no_empty_member": lambda c: 0 not in (*c.seqlens_q, *c.seqlens_k),
    "without_lse": lambda c: (
        c.data not in ("repeated_keys", "near_ties")
        and c.data_v != "constant"
        and c.window_left not in (0, 1)
    ),
    "wide256": lambda c: c.head_dim + c.rotary_dim <= 256,
    "usual_page_size": lambda c: c.page_size in (16, 32, 64, 128, 256),
    "contiguous": lambda c: (
        {v for f, v in vars(c).items() if f.startswith("layout_")} == {"contiguous"}
    ),
}


def square(case):
    if hasattr(case, "seqlens_q"):
        return case.seqlens_q == case.seqlens_k and case.offsets == "default"
    return case.seqlen_q == case.seqlen_k and case.q_offset == 0


def decode(case):
    if hasattr(case, "seqlens_q"):
        return set(case.seqlens_q) <= {1} and case.offsets == "default"
    return case.seqlen_q == 1 and case.q_offset == case.seqlen_k - 1


def aligned(case):
    rows = (case.head_dim, getattr(case, "head_dim_v", 16))
    size = FORMATS[case.dtype].dtype.itemsize
    named = [v for f, v in vars(case).items() if f in ("layout_q", "layout_k", "layout_v")]
    inner = {"strided", "offset", "expanded"} & {*named}
    return not inner and all(n * size % 16 == 0 for n in rows)


def every_relation():
    return {**HOLDS, "square": square, "decode": decode, "aligned16": aligned}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", ["small", "large"])
def test_narrow_limits_hold_for_every_field_and_every_member(name, size):
    spec, holds = contract(name), every_relation()
    for where, limited in known(name, NARROW):
        limits = spec.limits(limited, where)
        for case in drawn(name, 40, where, size, **limited):
            values = {field: (value,) for field, value in vars(case).items()}
            if name in SEQUENCES:
                values |= {"seqlen_q": case.seqlens_q, "seqlen_k": case.seqlens_k}
                values["sequences"] = (len(case.seqlens_q),)
            assert all(limits.allows(f, v) for f in limited for v in values[f]), (where, case)
            assert all(holds[relation](case) for relation in where), (where, case)


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("size", ["small", "large"])
def test_narrow_limits_leave_cases_small(name, size):
    spec, holds = contract(name), every_relation()
    for where, limited in known(name, NARROW):
        limits = spec.limits(limited, where)
        short = [[n for n in range(129) if limits.allows(f, n)] for f in ("seqlen_q", "seqlen_k")]
        pairs = sorted((n * m, n, m) for n, m in product(*short) if n and m)
        for case in drawn(name, 40, where, size, **limited):
            work = case.batch * case.num_heads * case.seqlen_q * case.seqlen_k * case.head_dim_v
            if work <= attention_draw_lengths.WORK[size]:
                continue
            fields = [replace(case, seqlen_q=n, seqlen_k=m) for _, n, m in pairs]
            least = next(c for c in fields if all(holds[relation](c) for relation in where))
            assert (case.seqlen_q, case.seqlen_k) == (least.seqlen_q, least.seqlen_k), case
            assert case.batch == max(limited.get("batch", (1,))[0], 1)


@pytest.mark.parametrize("name", DENSE + SEQUENCES)
def test_limits_and_relations_that_contradict_one_another_leave_no_case(name):
    spec = contract(name)
    for where, limited in known(name, CONTRADICTIONS):
        with pytest.raises(ValueError, match=name):
            spec.cases(spec.limits(limited, where))


@pytest.mark.parametrize("name", NAMES)
def test_relations_construct_cases(name):
    holds = every_relation()
    for relation in contract(name).relations:
        cases = drawn(name, 15, (relation,))
        assert all(holds[relation](case) for case in cases), relation


BUILDS = {
    "attention": (attention_builds, 50),
    "attention_varlen": (attention_varlen_builds, 27),
    "rope_attention": (rope_attention_builds, 33),
}


@pytest.mark.parametrize("name", BUILDS)
def test_every_legal_pair_of_compile_time_values_occurs(name):
    module, count = BUILDS[name]
    spec, rows = contract(name), module.BUILDS
    dims = [i for i, field in enumerate(module.FIELDS) if "dim" in field]

    def pairs(build):
        shape = tuple(build[i] for i in dims)
        rest = [(i, x) for i, x in enumerate(build) if i not in dims]
        return set(combinations([("shape", shape), *rest], 2))

    shapes = {tuple(b[i] for i in dims) for b in rows}
    every = [b for b in module.free(spec.limits({})) if tuple(b[i] for i in dims) in shapes]
    at = module.FIELDS.index("dtype"), module.FIELDS.index("bias_dtype")
    # of float32 inputs a bias in float32 has the dtype of the input
    every = [b for b in every if (b[at[0]], b[at[1]]) != ("float32", "input")]
    if name == "attention":  # without a bias nothing but a sink has that dtype
        every = [b for b in every if b[-2] or b[-1] == "float32"]
    assert not set().union(*map(pairs, every)) - set().union(*map(pairs, rows))
    assert len(set(rows)) == len(rows) == count
    assert set(rows) <= set(every)
    for case in drawn(name, 40, builds=("committed",)):
        build = [getattr(case, field) for field in module.FIELDS]
        flags = {"softcap": case.softcap is not None, "bias": getattr(case, "bias", "") != "none"}
        build = [flags.get(f, x) for f, x in zip(module.FIELDS, build, strict=True)]
        assert tuple(build) in rows
