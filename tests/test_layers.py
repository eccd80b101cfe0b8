"""Of every attention-like contract: float64 and what budgets expect, against ball arithmetic.

Cases are drawn as laws draw them. The float64 oracle is a right kernel: rounded once, it must be
within the budget of a stranger; what a budget expects must be exact but for the error it declares.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tightrope.arithmetic import Arithmetic
from tightrope.contract import contract
from tightrope.formats import stored

NAMES = ("attention_varlen", "attention_paged", "merge_attention", "rope_attention",
         "ring_attention", "pope_attention")  # fmt: skip
CASES, ELEMENTS = 20, 12


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
