"""Cases of `attention_varlen_backward`: what they hold, and that they tell a useless model."""

from __future__ import annotations

import json

import numpy as np
import pytest
from attention_case_draws import CONTRADICTIONS, NARROW, drawn, known

from tightrope import Arithmetic
from tightrope.contract import contract
from tightrope.formats import stored
from tightrope.frozen import freeze, thaw
from tightrope.layouts import place
from tightrope.oracles.attention_varlen_backward_cases import forward
from tightrope.oracles.attention_varlen_backward_inputs import sequences

NAME = "attention_varlen_backward"
SPEC, FORWARD = contract(NAME), contract("attention_varlen")
COUNTED = {"sequences": (2, 3), "seqlen_q": range(1, 9), "seqlen_k": (7, 8)}


def test_a_case_is_its_json_and_its_repr_and_every_layout_fits():
    for case in drawn(NAME)[:20]:
        assert thaw(json.loads(json.dumps(freeze(case))), SPEC) == case
        assert eval(repr(case), {type(case).__name__: type(case)}) == case
        inputs = SPEC.inputs(case)
        assert {*SPEC.layouts(case)} == {*inputs} - {"q_offset"}
        for argument, layout in SPEC.layouts(case).items():
            if not layout.startswith("view of "):
                place(layout, inputs[argument].shape)


def test_what_limits_say_of_lengths_holds():
    for case in drawn(NAME, 10, where=("no_empty_member",), **COUNTED):
        assert len(case.seqlens_q) in COUNTED["sequences"]
        assert set(case.seqlens_q) <= set(COUNTED["seqlen_q"])
        assert set(case.seqlens_k) <= set(COUNTED["seqlen_k"])
    for where, limited in known(NAME, CONTRADICTIONS):
        with pytest.raises(ValueError, match=r"limits|relations|satisf"):
            SPEC.cases(SPEC.limits(limited, where))
    with pytest.raises(KeyError):  # it has none
        SPEC.limits({"sink": (True,)}).values("sink")


def test_cases_of_narrow_limits_are_within_them():
    for where, limited in known(NAME, NARROW):
        allowed, cases = SPEC.limits(limited, where), drawn(NAME, 2, where, **limited)
        named = [n for n in limited if n in SPEC.case.__dataclass_fields__]
        assert all(allowed.allows(n, getattr(case, n)) for case in cases for n in named)
        if "contiguous" in where:
            assert {x for case in cases for x in SPEC.layouts(case).values()} == {"contiguous"}


def test_out_and_lse_are_those_of_the_forward_pass():
    """Of rows of a sequence; dout differs from one to the next, and is 0 in no whole sequence."""
    told = 0
    for case in drawn(NAME, 20, data_v=("normal",), state=("exact",), spare=(0,)):
        x, call = SPEC.inputs(case), forward(case)
        given = {n: x[n] for n in FORWARD.inputs(call)}
        truth = FORWARD.oracle(call, given)
        for name, dtype in (("out", case.dtype), ("lse", "float32")):
            assert np.array_equal(x[name], stored(truth[name], dtype))
        for one in sequences(case, x):
            assert not one.inputs["dout"].size or one.inputs["dout"].any()
        first, *others = [one.inputs["dout"][0, 0, :1] for one in sequences(case, x)] or [0]
        told += any(not np.array_equal(first, other) for other in others)
    assert told


def test_rows_of_no_sequence_hold_what_must_not_matter():
    for hidden, is_hidden in (("nan", np.isnan), ("inf", np.isinf), ("finite", np.isfinite)):
        for case in drawn(NAME, 5, spare=(1, 3, 17), hidden=(hidden,)):
            x = SPEC.inputs(case)
            for name in ("dout", "q", "out"):
                assert is_hidden(x[name][-case.spare :].astype(float)).all()
            if hidden != "finite":
                assert is_hidden(x["lse"][:, -case.spare :]).all()


def test_hardly_any_case_would_let_a_useless_model_pass():
    useless = count = 0
    for case in drawn(NAME, 60):
        inputs = SPEC.inputs(case)
        spent = SPEC.budget(case, inputs, Arithmetic().over(SPEC.stages))
        for model in SPEC.nulls(case, inputs).values():
            count += 1
            useless += all(spent[out].inside(model[out], 1.0).all() for out in SPEC.outputs)
    assert count > 100
    assert useless <= 0.05 * count
