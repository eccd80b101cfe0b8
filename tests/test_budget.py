"""Acceptance is set membership: decided in float64 where it can be, in rationals where it must."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tightrope.budget import Budget, Replay, Violation
from tightrope.formats import FORMATS, stored
from tightrope.verdict import judge


def budget(x, e, dtype="bfloat16", **more):
    return Budget(np.asarray(x, np.float64), {"a term": np.asarray(e, np.float64)}, dtype, **more)


def test_the_nearest_number_is_right_and_its_neighbours_are_not():
    x = np.array([1.0 + 2.0**-10])
    near = stored(x, "bfloat16")
    below, above = FORMATS["bfloat16"].neighbours(near.astype(np.float64))
    assert judge("y", near, budget(x, [1e-9])).ok
    for other in (below, above):
        verdict = judge("y", stored(other, "bfloat16"), budget(x, [1e-9]))
        assert not verdict.ok
        assert verdict.wrong == 1


def test_both_neighbours_of_a_straddled_tie_are_right():
    tie = np.array([1.0 + 2.0**-8])
    for value in (1.0, 1.0 + 2.0**-7):
        assert judge("y", stored([value], "bfloat16"), budget(tie, [1e-9])).ok
    assert judge("y", stored([1.0], "bfloat16"), budget(tie, [0.0])).ok  # ties go to even
    assert not judge("y", stored([1.0 + 2.0**-7], "bfloat16"), budget(tie, [0.0])).ok


def test_the_share_is_the_smallest_multiple_of_the_budget_that_accepts():
    rng = np.random.default_rng(0)
    x, e = rng.standard_normal(500), 2.0 ** rng.integers(-12, -4, 500)
    out = stored(x + e * rng.uniform(-2, 2, 500), "float16")
    share = budget(x, e, "float16").share(out)
    for factor in (1 - 1e-9, 1 + 1e-9):
        inside = budget(x, share * e * factor, "float16").inside(out)
        assert np.array_equal(inside, (share == 0) | (factor > 1))


def test_overflow_rounds_to_infinity_and_nan_is_never_right():
    huge = budget([65519.0, 65521.0, 65504.0], [0.5, 0.5, 0.1], "float16")
    out = np.array([65504.0, np.inf, np.nan], np.float16)
    assert judge("y", out[:2], budget([65519.0, 65521.0], [0.5, 0.5], "float16")).ok
    assert huge.share(out).tolist() == [0.0, 0.0, np.inf]
    assert not judge("y", out, huge).ok


def test_minus_zero_is_zero():
    assert judge("y", stored([-0.0], "float16"), budget([0.0], [0.0], "float16")).ok


def test_what_float64_cannot_decide_is_settled_exactly():
    exact = Fraction(1) + Fraction(1, 2**8) + Fraction(1, 2**80)  # just above a tie
    x = np.array([float(exact)])
    up, down = stored([1.0 + 2.0**-7], "bfloat16"), stored([1.0], "bfloat16")
    unsure = budget(x, [0.0], oracle=1e-15)
    right = judge("y", up, unsure, lambda at: [exact for _ in at])
    assert right.ok
    assert right.settled == 1
    assert not judge("y", down, unsure, lambda at: [exact for _ in at]).ok


@pytest.mark.parametrize("sign", [1, -1])
def test_what_is_settled_exactly_has_the_whole_budget_and_no_more(sign):
    """Just inside and just outside, where float64 cannot tell; the share says by how much."""
    e, tie = Fraction(1, 2**10), Fraction(1) + Fraction(1, 2**8)
    out = stored([sign * (1.0 + 2.0**-7)], "bfloat16")
    for off, ok in ((e * (1 - Fraction(1, 2**40)), True), (e * (1 + Fraction(1, 2**40)), False)):
        value = sign * (tie - off)
        verdict = judge(
            "y", out, budget([float(value)], [2.0**-10], oracle=2.0**-20),
            lambda at, value=value: [value for _ in at],
        )  # fmt: skip
        assert verdict.ok == ok
        assert abs(verdict.share - 1) < 2.0**-39


@pytest.mark.parametrize("sign", [1, -1])
def test_a_replay_grants_its_radius_and_no_more(sign):
    x, out = np.array([sign * 1.0]), stored([sign * (1.0 + 2.0**-7)], "bfloat16")
    for radius, ok in ((2.0**-8 + 2.0**-20, True), (2.0**-8 - 2.0**-20, False)):
        assert judge("y", out, budget(x, [0.1], replay=Replay(x, radius))).ok == ok


def test_an_infinite_bound_admits_numbers_and_infinities_but_not_nan():
    exact = lambda at: [Fraction(1)] * len(at)  # noqa: E731
    wide = budget([1.0], [np.inf], oracle=np.nan)  # undecided in float64
    for value, ok in ((3.0, True), (np.inf, True), (np.nan, False)):
        assert judge("y", stored([value], "bfloat16"), wide, exact).ok == ok


def test_tightness_counts_the_bound_and_one_last_rounding():
    x, e = np.array([1.0]), [2.0**-9]
    out = stored([1.0 + 2.0**-7], "bfloat16")
    assert budget(x, e).tightness(out) == 2.0**-7 / (2.0**-9 * (1 + 2.0**-50) + 2.0**-8)


def test_a_failure_that_arb_refutes_is_not_reported():
    wrong_oracle = budget([1.5], [1e-6])
    assert judge(
        "y", stored([1.0], "bfloat16"), wrong_oracle, lambda at: [Fraction(1) for _ in at]
    ).ok


def test_the_declared_roundings_must_be_met_as_well():
    x = np.array([1.0 + 2.0**-8 + 2.0**-12])
    both = budget(x, [2.0**-10], replay=Replay(x))
    assert judge("y", stored(x, "bfloat16"), both).ok
    other = judge("y", stored([1.0], "bfloat16"), both)
    assert not other.ok
    assert "not the declared arithmetic" in other.message


def test_a_failure_tells_value_error_and_terms():
    many = Budget(np.ones(3), {"first": np.full(3, 1e-3), "second": np.full(3, 2e-3)}, "float32")
    verdict = judge(
        "q", np.array([1, 1, 1.5], np.float32), many, lambda at: [Fraction(1)] * len(at)
    )
    assert "q[2] = 1.5" in verdict.message
    assert "exact value 1.0" in verdict.message
    assert "1.000e-03  first" in verdict.message
    assert "1 of 3 elements" in verdict.message
    assert verdict.detail["terms"] == {"first": 1e-3, "second": 2e-3}
    assert verdict.detail["index"] == [2]


@pytest.mark.parametrize("array", [np.ones(2, np.float32), np.ones(3, np.float16)])
def test_a_wrong_shape_or_dtype_is_a_violation(array):
    with pytest.raises(Violation, match=r"expected float32\[3\]"):
        judge("y", array, Budget(np.ones(3), {}, "float32"))


def test_deleting_or_scaling_a_term_changes_the_bound():
    two = Budget(np.ones(1), {"a": np.ones(1), "b": 2.0}, "float32")
    nudge = 1 + 2.0**-50
    assert two.without("b").bound.tolist() == [1.0 * nudge]
    assert two.scaled("a", 4).bound.tolist() == [6.0 * nudge]
