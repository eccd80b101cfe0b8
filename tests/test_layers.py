"""Of every attention-like contract: float64, mpmath and what budgets expect, against arb.

Cases are drawn as laws draw them. The float64 oracle is a right kernel: rounded once, it must be
within the budget of a stranger; what a budget expects must be exact but for the error it declares.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from attention_limits import apart, mpmath_limits
from hypothesis import HealthCheck, Phase, given, settings
from test_rope_scaling import test_three_derivations_agree as of_scalings

from tightrope.arithmetic import Arithmetic
from tightrope.contract import contract
from tightrope.formats import stored
from tightrope.oracles import (
    attention_paged_mpmath,
    attention_varlen_mpmath,
    merge_attention_mpmath,
    rope_scaling,
)
from tightrope.oracles.rope_table import RopeTableCase
from tightrope.oracles.rope_table_scaling import scaling_of

NAMES = ("attention_varlen", "attention_paged", "merge_attention", "rope_attention",
         "ring_attention", "pope_attention")  # fmt: skip
CASES, ELEMENTS = 20, 12


# what random cases seldom hold: members without keys, tokens of no sequence, one state alone
EDGES = {
    "attention_varlen": {"seqlens_q": (2, 1), "seqlens_k": (0, 3), "spare": 1, "head_dim_v": 3},
    "attention_paged": {
        "seqlens_q": (2, 1), "seqlens_k": (0, 3), "spare": 1, "page_size": 2, "head_dim_v": 3,
    },
    "merge_attention": {"splits": 1, "rows": 2, "num_heads": 1, "head_dim": 3},
}  # fmt: skip
MPMATH = {
    "attention_varlen": attention_varlen_mpmath.attention_varlen,
    "attention_paged": attention_paged_mpmath.attention_paged,
    "merge_attention": merge_attention_mpmath.merge_attention,
}


def some(size, rng):
    return sorted(rng.choice(size, min(size, ELEMENTS), replace=False).tolist())


def check(spec, case):
    """The number of elements looked at."""
    inputs, looked = spec.inputs(case), 0
    found = spec.oracle(case, inputs)
    budgets = spec.budget(case, inputs, Arithmetic().over(spec.stages))
    for name, budget in budgets.items():
        at = some(budget.expected.size, np.random.default_rng(case.seed))
        actual = stored(found[name], budget.dtype)
        assert actual.shape == budget.expected.shape
        truth = spec.exact(case, inputs, name, at)
        own = np.broadcast_to(budget.oracle, budget.expected.shape).ravel()
        for index, value in zip(at, truth, strict=True):
            expected = float(budget.expected.ravel()[index])
            assert budget.settle(actual, index, value)[0], (case, name, index)
            assert (value is None) == np.isneginf(expected)
            if value is not None and np.isfinite(budget.bound.ravel()[index]):
                off = abs(Fraction(expected) - value)
                assert off <= Fraction(float(own[index])), (case, name, index)
            looked += 1
    return looked


@pytest.mark.parametrize("name", NAMES)
def test_float64_and_what_budgets_expect_are_exact_but_for_their_error(name):
    spec, looked = contract(name), []

    @settings(
        max_examples=CASES, deadline=None, database=None, derandomize=True,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(spec.cases(spec.limits({"size": ("small",)})))
    def compare(case):
        looked.append(check(spec, case))

    compare()
    assert sum(looked) > CASES * ELEMENTS


@pytest.mark.parametrize("name", EDGES)
def test_all_three_layers_agree_at_the_edges(name):
    spec = contract(name)
    case = spec.case(**EDGES[name])
    inputs = spec.inputs(case)
    assert check(spec, case)
    found, limits = MPMATH[name](case, inputs), mpmath_limits(1000.0, 4, 100.0)
    for output, expected in spec.oracle(case, inputs).items():
        truth = spec.exact(case, inputs, output, range(expected.size))
        assert apart(found[output], truth, limits[output]) == []
        empty = [value is None for value in truth]
        assert empty == np.isneginf(expected).ravel().tolist()


def test_yarn_s_ramp_without_a_width_is_the_same_step_in_all_layers():
    """Of a model trained for 6 tokens, where no column turns once: both ends are column 0."""
    case = RopeTableCase(rope_scaling="yarn", rotary_dim=8, length=6, factor=4.0)
    ends = rope_scaling.corrections(case.rotary_dim, case.rope_theta, scaling_of(case))
    assert ends == (0.0, 0.001)
    of_scalings.hypothesis.inner_test(case)
