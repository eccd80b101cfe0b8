"""Cases of `pope_attention_backward`, its mistakes, and the output that may be absent."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from attention_case_draws import drawn, useless
from pope_backward_calls import SETTINGS, SPEC, call

from tightrope.budget import Violation
from tightrope.device import run
from tightrope.formats import stored
from tightrope.frozen import freeze, thaw
from tightrope.implementation import Implementation
from tightrope.oracles.pope_attention_backward_cases import forward

NAME = SPEC.name


def test_cases_are_calls_of_the_forward_pass_and_what_comes_from_upstream():
    cases = drawn(NAME, 60)
    for case in cases[:10]:
        assert thaw(json.loads(json.dumps(freeze(case))), SPEC) == case
        assert eval(repr(case), {type(case).__name__: type(case)}) == case
    assert {c.delta for c in cases} == {"none", "kv_heads", "heads"}
    assert {c.state for c in cases} == {"exact", "low_precision"}
    assert len({c.data_dout for c in cases}) > 4
    assert not any(forward(c).sink for c in cases)


def test_oracles_and_budgets_are_numbers_of_the_right_shapes():
    for case in drawn(NAME, 15):
        inputs = SPEC.inputs(case)
        truth, spent = SPEC.oracle(case, inputs), SPEC.budget(case, inputs, SPEC.stages)
        for output in SPEC.outputs:
            shape = inputs[output[1:]].shape if output[1:] in inputs else (0,)
            assert truth[output].shape == spent[output].expected.shape == shape
            off = np.abs(spent[output].expected - truth[output])
            finite = np.isfinite(spent[output].bound)
            assert (off <= 2 * np.asarray(spent[output].oracle))[finite].all()
            assert not np.isnan(spent[output].bound).any()


def test_hardly_any_case_would_let_a_useless_model_pass():
    inside, told = useless(NAME, 40)
    assert inside < 0.1 * told


TOLD = {
    "softcap": ("no derivative of the softcap", "no rowsum(dout out)", "softmax_scale twice"),
    "shared": (
        "ddelta negated",
        "ddelta of the first sequence alone",
        "ddelta averaged over",
    ),
    "tall": ("no causal mask", "q_offset one more"),
    "plain": ("keys of 0 (softplus ln 2) seen past the end", "the scale of the expanded width"),
    "growing": ("no sigmoid", "relu's derivative", "frequencies of the exponent's other sign"),
    "groups": ("dk and dv of the last query head alone", "k_positions one late", "the imaginary"),
}


@pytest.mark.parametrize("name", TOLD)
def test_alternatives_are_outputs_and_none_is_right(name):
    case, inputs = call(**{**SETTINGS[name], "hidden": "finite"})
    truth, told = SPEC.oracle(case, inputs), []
    for sentence, wrong in SPEC.alternatives(case, inputs):
        told.append(sentence)
        assert {n: y.shape for n, y in wrong.items()} == {n: y.shape for n, y in truth.items()}
    for sentence in TOLD[name]:
        assert any(x.startswith(sentence) for x in told), (sentence, told)


def returning(absent, width=0):
    """A kernel that returns what the oracle says, and something for an absent ddelta."""

    def kernel(*tensors, **options):
        found = [torch.zeros(tensors[i].shape, dtype=tensors[i].dtype) for i in (1, 2, 3)]
        delta = tensors[7]
        ddelta = absent() if delta is None else torch.zeros(delta.shape)
        return (*found, ddelta)[: 4 - width]

    return Implementation(contract_name=NAME, name="zeros", fn=kernel)


@pytest.mark.parametrize("delta", ["none", "heads"])
def test_without_delta_its_gradient_is_none_and_counts_as_empty(delta):
    case, inputs = call(delta=delta)
    found = run(returning(lambda: None), case, inputs)
    expected = SPEC.oracle(case, inputs)["ddelta"]
    assert found["ddelta"].shape == expected.shape
    assert found["ddelta"].dtype == stored(expected, "float32").dtype


def test_three_outputs_are_refused_where_there_are_four():
    case, inputs = call(delta="heads")
    with pytest.raises(Violation, match="3 tensors, expected 4"):
        run(returning(lambda: None, 1), case, inputs)
