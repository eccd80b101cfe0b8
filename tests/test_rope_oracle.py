"""`rope`: its three oracles against one another, and against the paper."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from rope_draws import DTYPES, QUICK, STRANGER, drawn, limits

from tightrope.formats import widen
from tightrope.oracles import rope_exact, rope_mpmath
from tightrope.oracles.rope import CONTRACT, RopeCase, rotate

FEW = {"head_dim": (6, 8, 16), "tokens": (1, 2, 3), "num_heads": (1, 2), "table_rows": (64,)}


@pytest.mark.parametrize("dtype", DTYPES)
def test_arb_and_mpmath_agree_exactly_and_float64_within_its_own_bound(dtype):
    @QUICK
    @given(CONTRACT.cases(limits(dtype=(dtype,), **FEW)))
    def agree(case):
        inputs = CONTRACT.inputs(case)
        float64, budgets = CONTRACT.oracle(case, inputs), CONTRACT.budget(case, inputs, STRANGER)
        for name in ("q", "k"):
            exact = rope_exact.exact(case, inputs, name, range(inputs[name].size))
            assert exact == rope_mpmath.rotated(case, inputs, name)
            bound = np.broadcast_to(budgets[name].oracle, float64[name].shape).ravel()
            for x, e, value in zip(float64[name].ravel(), bound, exact, strict=True):
                assert abs(Fraction(float(x)) - value) <= Fraction(float(e))

    agree()


@pytest.mark.parametrize("interleaved", [False, True])
def test_the_definition_is_the_paper_s_block_diagonal_matrix(interleaved):
    """RoFormer eq. 15 on adjacent pairs; half-split is the same after permuting the features."""
    rng = np.random.default_rng(0)
    x, angles = rng.standard_normal((1, 1, 12)), rng.uniform(-4, 4, (1, 4))
    blocks = [[[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]] for a in angles[0]]
    matrix = scipy.linalg.block_diag(*blocks, np.eye(4))
    order = np.arange(12) if interleaved else np.array([0, 4, 1, 5, 2, 6, 3, 7, 8, 9, 10, 11])
    y = rotate(x, np.cos(angles), np.sin(angles), np.zeros(1, np.int64), interleaved)
    error = np.abs(y[0, 0][order] - matrix @ x[0, 0][order])
    # each side is two products and a sum: at most 3 u (|x1| + |x2|) apart from the exact value
    scale = np.abs(matrix) @ np.abs(x[0, 0][order])
    assert (error <= 6 * 2.0**-53 * scale).all()


def test_the_definition_and_the_budget_s_expected_value_are_the_same_float64_numbers():
    for case in drawn(40):
        inputs = CONTRACT.inputs(case)
        budgets = CONTRACT.budget(case, inputs, STRANGER)
        for name, y in CONTRACT.oracle(case, inputs).items():
            assert np.array_equal(y, budgets[name].expected)


def test_features_beyond_rotary_dim_pass_unchanged_and_have_no_budget():
    case = RopeCase(tokens=3, head_dim=72, rotary_dim=64, dtype="bfloat16", out_dtype="float32")
    inputs = CONTRACT.inputs(case)
    found = CONTRACT.budget(case, inputs, STRANGER)["q"]
    assert np.array_equal(found.expected[..., 64:], widen(inputs["q"])[..., 64:])
    assert not found.bound[..., 64:].any()
    assert found.bound[..., :64].all()


def test_exact_spans_all_of_float64():
    """Sums of terms more than 160 bits apart, and the widest there are, have no rounding either."""
    case = RopeCase(head_dim=2, rotary_dim=2, table_rows=1, dtype="float64", table_dtype="float64")
    inputs = CONTRACT.inputs(case)
    for x, c, s in ((2.0**300, 1.0, 2.0**-100), (1.5 * 2.0**1023, 1.75, 5e-324)):
        inputs["q"][...], inputs["cos"][...], inputs["sin"][...] = [x, 5e-324], c, s
        small, large = Fraction(5e-324) * Fraction(s), Fraction(x) * Fraction(c)
        second = Fraction(5e-324) * Fraction(c) + Fraction(x) * Fraction(s)
        assert rope_exact.exact(case, inputs, "q", [0, 1]) == [large - small, second]
        assert rope_mpmath.rotated(case, inputs, "q") == [large - small, second]


def test_exact_refuses_what_is_not_finite():
    case = RopeCase()
    inputs = CONTRACT.inputs(case)
    inputs["q"][0, 0, 0] = np.inf
    with pytest.raises(ArithmeticError, match="infinite or NaN"):
        rope_exact.exact(case, inputs, "q", [0])
