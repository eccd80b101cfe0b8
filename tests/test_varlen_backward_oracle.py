"""`attention_varlen_backward`: its oracles against one another, and against mistakes in packing."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from attention_backward_calls import DECLARED, OUTPUTS, mpmath_limits
from attention_case_draws import QUICK
from attention_limits import apart, flat
from hypothesis import given, settings
from hypothesis import strategies as st

from tightrope.arithmetic import Arithmetic
from tightrope.contract import contract
from tightrope.oracles.attention_varlen_backward_inputs import sequences
from tightrope.oracles.attention_varlen_backward_mpmath import attention_varlen_backward

SPEC, ALONE = contract("attention_varlen_backward"), contract("attention_backward")
SETTINGS = {
    "lengths": {"seqlens_q": (3, 0, 2, 1, 0), "seqlens_k": (4, 2, 0, 3, 0), "empty_rows": True},
    "spare": {"spare": 2, "hidden": "nan", "causal": True, "dtype": "bfloat16"},
    "groups": {"num_heads": 4, "num_kv_heads": 2, "spare": 1, "hidden": "inf"},
    "offsets": {"offsets": "tensor", "causal": True, "empty_rows": True, "hidden": "nan"},
    "window": {"window_left": 1, "window_right": 0, "seqlens_q": (4, 3), "seqlens_k": (4, 5)},
    "softcap": {"softcap": 1.5, "softmax_scale": 0.7, "state": "low_precision"},
    "one": {"seqlens_q": (3,), "seqlens_k": (2,), "dtype": "float32"},
    "none": {"seqlens_q": (), "seqlens_k": (), "spare": 2, "hidden": "nan"},
}
NAMED = pytest.mark.parametrize("name", SETTINGS)


def call(**changes):
    sizes = {"seqlens_q": (2, 3), "seqlens_k": (3, 4), "head_dim": 3, "head_dim_v": 2}
    case = SPEC.case(**{**sizes, "num_heads": 2, **changes})
    return case, SPEC.inputs(case)


def exact(case, inputs, output):
    size = inputs[output.removeprefix("d")].size
    return SPEC.exact(case, inputs, output, range(size))


def limits_of(case, inputs):
    """How far mpmath's differences may be off in any sequence."""
    each = [mpmath_limits(one.case, one.inputs) for one in sequences(case, inputs)]
    return {out: max((found[out] for found in each), default=Fraction(0)) for out in OUTPUTS}


def check_layers(case, inputs):
    """Ball arithmetic, mpmath and float64 agree on every element."""
    limits, differences = limits_of(case, inputs), attention_varlen_backward(case, inputs)
    spent, values = SPEC.budget(case, inputs, Arithmetic(**DECLARED)), SPEC.oracle(case, inputs)
    for out in OUTPUTS:
        truth = exact(case, inputs, out)
        assert not list(apart(differences[out], truth, limits[out]))
        own = np.broadcast_to(spent[out].oracle, values[out].shape)
        assert not list(apart(flat(values[out]), truth, own))
        assert not list(apart(flat(spent[out].expected), truth, own))


@NAMED
def test_arb_mpmath_and_float64_agree(name):
    check_layers(*call(**SETTINGS[name]))


KINDS = {
    "dtype": ["float16", "bfloat16", "float32"], "state": ["exact", "low_precision"],
    "hidden": ["finite", "nan", "inf"], "softcap": [None, 0.5], "causal": [False, True],
    "window_left": [None, 0, 2], "window_right": [None, 0, 2], "spare": [0, 1],
    "offsets": ["default", "tensor"], "num_heads": [1, 2], "seed": range(2**16),
}  # fmt: skip


@st.composite
def calls(draw):
    fields = {name: draw(st.sampled_from(values)) for name, values in KINDS.items()}
    members = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=3))
    lengths = {f"seqlens_{x}": tuple(m[i] for m in members) for i, x in enumerate("qk")}
    return call(**fields, **lengths, empty_rows=True)


@settings(QUICK, max_examples=15)
@given(calls())
def test_arb_mpmath_and_float64_agree_on_every_combination(drawn):
    check_layers(*drawn)


@pytest.mark.parametrize("name", ["lengths", "groups", "offsets", "softcap"])
def test_a_packed_sequence_has_the_gradients_of_that_sequence_alone(name):
    """Bit for bit, in ball arithmetic, in float64 and in every term of the budget."""
    case, inputs = call(**SETTINGS[name])
    declared, values = Arithmetic(**DECLARED), SPEC.oracle(case, inputs)
    spent = SPEC.budget(case, inputs, declared)
    for one in sequences(case, inputs):
        its = ALONE.budget(one.case, one.inputs, declared)
        for out, found in ALONE.oracle(one.case, one.inputs).items():
            at = one.at(out)
            assert np.array_equal(values[out][at], found[0].swapaxes(0, 1))
            numbers = np.arange(values[out].size).reshape(values[out].shape)[at].ravel()
            wanted = ALONE.exact(one.case, one.inputs, out, range(found.size))
            wanted = np.array(wanted, object).reshape(found.shape)[0].swapaxes(0, 1).ravel()
            assert SPEC.exact(case, inputs, out, numbers) == list(wanted)
            terms = {**its[out].terms, "oracle": its[out].oracle}
            packed = {**spent[out].terms, "oracle": spent[out].oracle}
            for term, bound in terms.items():
                bound = np.broadcast_to(bound, found.shape)[0].swapaxes(0, 1)
                assert np.array_equal(packed[term][at], bound), term


def test_tokens_of_no_sequence_must_be_zero():
    case, inputs = call(**SETTINGS["spare"])
    for out, budget in SPEC.budget(case, inputs, Arithmetic(**DECLARED)).items():
        assert np.isnan(inputs["q"][-case.spare :].astype(float)).all()
        assert not budget.expected[-case.spare :].any()
        assert not budget.bound[-case.spare :].any()
        assert exact(case, inputs, out)[-1] == 0


def moved(ends, *by):
    return ends + np.array(by, ends.dtype)


MISTAKES = {
    "keys of the neighbour": lambda i: {**i, "cu_seqlens_k": moved(i["cu_seqlens_k"], 0, 1, 0)},
    "a query too many": lambda i: {**i, "cu_seqlens_q": moved(i["cu_seqlens_q"], 0, 1, 0)},
    "upper left corner": lambda i: {**i, "q_offset": np.zeros(2, np.int32)},
    "lse tokens first": lambda i: {**i, "lse": i["lse"].T.reshape(i["lse"].shape)},
    "dout of the neighbour": lambda i: {**i, "dout": np.roll(i["dout"], 1, axis=0)},
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("layer", ["mpmath", "float64"])
def test_a_mistake_in_packing_is_noticed(layer, mistake):
    case, inputs = call(causal=True)
    changed = MISTAKES[mistake](inputs)
    if layer == "mpmath":
        found, limits = attention_varlen_backward(case, changed), limits_of(case, inputs)
    else:
        found = {out: flat(x) for out, x in SPEC.oracle(case, changed).items()}
        limits = dict.fromkeys(OUTPUTS, Fraction(1, 10**9))
    assert all(list(apart(found[out], exact(case, inputs, out), limits[out])) for out in OUTPUTS)


def test_what_is_computed_instead_is_told():
    case, inputs = call(causal=True, spare=1, seqlens_q=(3, 2), offsets="tensor", seed=1)
    told = dict(SPEC.alternatives(case, inputs))
    assert {
        "each sequence sees one key of its successor", "lse read as (tokens, heads)",
        "dout and out of the next token", "cu_seqlens_q used for the keys as well",
        "softmax_scale twice", "the mask aligned top-left (q_offset 0)", "zeros",
        "dk and dv of the last query head alone",
    } <= set(told)  # fmt: skip
    right = SPEC.oracle(case, inputs)
    for outputs in told.values():
        assert {out: x.shape for out, x in outputs.items()} == {
            o: x.shape for o, x in right.items()
        }
