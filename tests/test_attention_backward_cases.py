"""Cases of `attention_backward`: what they hold, and that they tell a kernel from a null model."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from attention_case_draws import CONTRADICTIONS, NARROW, drawn, known, useless

from tightrope import Arithmetic
from tightrope.contract import contract
from tightrope.formats import stored
from tightrope.frozen import freeze, thaw
from tightrope.layouts import place
from tightrope.oracles import attention_backward_cases as cases_of
from tightrope.oracles.attention_backward_cases import DATA_DOUT, LAYOUTS_OUT, STATES

NAME = "attention_backward"
SPEC = contract(NAME)
DECLARED = Arithmetic(state="given", logits="scaled", heads="summed", dot="hopper_mma")


def test_a_case_is_its_json_and_its_repr():
    for case in drawn(NAME)[:20]:
        assert thaw(json.loads(json.dumps(freeze(case))), SPEC) == case
        assert eval(repr(case), {type(case).__name__: type(case)}) == case


@pytest.mark.parametrize("size", ["small", "large"])
def test_oracles_and_budgets_are_numbers_of_the_right_shapes(size):
    for case in drawn(NAME, 40 if size == "small" else 3, size=size):
        inputs = SPEC.inputs(case)
        truth = SPEC.oracle(case, inputs)
        for promise in (Arithmetic(), DECLARED):
            spent = SPEC.budget(case, inputs, promise.over(SPEC.stages))
            for output, of in zip(SPEC.outputs, ("q", "k", "v"), strict=True):
                assert truth[output].shape == inputs[of].shape
                off = np.abs(spent[output].expected - truth[output])
                assert (off <= 2 * np.asarray(spent[output].oracle)).all()
                assert not np.isnan(spent[output].bound).any()
        for argument, layout in SPEC.layouts(case).items():
            if not layout.startswith("view of "):
                place(layout, inputs[argument].shape)


def test_every_kind_of_gradient_and_state_is_drawn():
    cases = drawn(NAME, 150)
    for name, kinds in (("data_dout", DATA_DOUT), ("state", STATES), ("layout_out", LAYOUTS_OUT)):
        assert {getattr(case, name) for case in cases} == set(kinds)
    assert any(case.offsets == "tensor" and case.batch > 1 for case in cases)
    assert any(case.num_heads > case.num_kv_heads for case in cases)


def test_out_and_lse_are_those_of_a_forward_pass():
    """Rounded once they are the exact ones; in low precision they are others, and right ones."""
    forward, differ = contract("attention"), dict.fromkeys(STATES, 0)
    for case in drawn(NAME, 60, data_v=("normal",)):
        x, call = SPEC.inputs(case), cases_of.forward(case)
        spent = forward.budget(call, x, Arithmetic().over(forward.stages))
        for name, dtype in (("out", case.dtype), ("lse", "float32")):
            budget = replace(spent[name], dtype=dtype)
            assert budget.inside(x[name], 1.0).all()
            once = stored(budget.expected, dtype)
            differ[case.state] += not np.array_equal(x[name], once)
    assert differ["exact"] == 0
    assert differ["low_precision"] > 20


def test_narrow_limits_leave_cases_within_them():
    for where, limited in known(NAME, NARROW):
        allowed = SPEC.limits(limited, where)
        for case in drawn(NAME, 3, where, **limited):
            for name in limited:
                assert allowed.allows(name, getattr(case, name)), (name, case)


def test_limits_that_contradict_are_refused():
    for where, limited in known(NAME, CONTRADICTIONS):
        with pytest.raises(ValueError, match=r"limits|relations|satisf"):
            SPEC.cases(SPEC.limits(limited, where))


def test_hardly_any_case_would_let_a_useless_model_pass():
    inside, told = useless(NAME, 100)
    assert inside < 0.1 * told


def test_alternatives_are_outputs_and_none_is_right():
    sentences = set()
    for case in drawn(NAME, 25):
        inputs = SPEC.inputs(case)
        truth = SPEC.oracle(case, inputs)
        for sentence, wrong in SPEC.alternatives(case, inputs):
            sentences.add(sentence)
            assert {n: y.shape for n, y in wrong.items()} == {n: y.shape for n, y in truth.items()}
    assert {"no rowsum(dout out)", "softmax_scale twice", "no causal mask"} <= sentences
