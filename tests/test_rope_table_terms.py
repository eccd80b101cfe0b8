"""The budget of rope_table element by element: no wider anywhere than its derivation says."""

from __future__ import annotations

import numpy as np
import pytest
from rope_table_kernels import EXACT, F32, budgets, grant, long_angle
from test_rope_scaling_budget import amplified

from tightrope.oracles.rope_table import RopeTableCase
from tightrope.oracles.rope_table_budget import _trig

ONCE = 0.5 + 2.0**-26
CASE = RopeTableCase(tokens=16, rotary_dim=64, positions="random", start=1, span=2**17)


@pytest.mark.parametrize("d", [0.5, 2.0**-10])
def test_an_angle_off_by_all_it_may_be_spends_the_budget_of_every_element(d: float) -> None:
    """|s| sin d + |x| (1 - cos d), of |s| d + |x| d^2/2: at least sin d/d, also where s is 0."""
    angle = long_angle(CASE)[2]
    for name, b in budgets(CASE, grant(**EXACT, angle_error=d, trig_ulp=ONCE)).items():
        f = np.cos if name == "cos" else np.sin
        error = np.maximum(abs(f(angle + d) - f(angle)), abs(f(angle - d) - f(angle)))
        assert (error / b.bound).min() >= np.sin(d) / d * (1 - 2.0**-12)
        assert (error / b.bound).max() <= 1


def test_an_angle_off_by_a_turn_costs_all_there_is_and_no_more() -> None:
    for b in budgets(CASE, grant(**EXACT, angle_error=7.0, trig_ulp=ONCE)).values():
        assert (b.bound >= 1 + np.abs(b.expected)).all()
        assert (b.bound <= 1 + np.abs(b.expected) + 2.0**-40).all()


def test_the_function_may_end_in_the_next_binade_but_not_above_one() -> None:
    """2 ulp of a result just below 1/2 are 2 of those above it; below 1 they stay what they are."""
    for below, ulp in ((0.5, 2.0**-24), (0.4, 2.0**-25), (1.0, 2.0**-24)):
        value = np.array([below - 2.0**-27])
        assert _trig(value, np.ones(1), "float32", 2.5) == 2 * ulp
        assert _trig(value, np.zeros(1), "float32", 2.5) == 0


def test_a_correctly_rounded_function_is_replayed_to_numpy_s_own_error() -> None:
    for b in budgets(CASE, grant(inv_freq_ulp=0, trig_ulp=0.5)).values():
        assert b.replay is not None
        assert (np.asarray(b.replay.radius) == 2.0**-50).all()


def test_powers_of_two_may_push_a_frequency_into_subnormals_of_the_angle() -> None:
    """theta = 2^-20 (1 + 2^-7) of bfloat16 times 2 has 12 bits more than float16 has there."""
    case = RopeTableCase(tokens=1, start=2, rotary_dim=4, rope_theta=(2.0**20 / (1 + 2.0**-7)) ** 2)
    low = {"position": "float16", "inv_freq": "bfloat16", "inv_freq_ulp": 0, "angle": "float16"}
    assert budgets(case, grant(**low))["sin"].terms["angle rounded to float16"][0, 1] > 2.0**-27


def test_an_exponent_that_the_format_holds_costs_nothing() -> None:
    """2c/64 is a float32 number for every c, 2c/80 only where 5 divides c."""
    for rotary_dim, held in ((64, np.arange(32) >= 0), (80, np.arange(40) % 5 == 0)):
        case = RopeTableCase(tokens=4, start=3, rotary_dim=rotary_dim)
        for b in budgets(case, grant()).values():
            term = np.asarray(b.terms["exponent 2c/rotary_dim rounded to float32"])
            assert np.array_equal((term == 0).all(0), held)


def test_a_power_outside_a_format_leaves_an_empty_promise() -> None:
    """10^7^(62/64) overflows float16 and its reciprocal is 0, for any error of the power."""
    case = RopeTableCase(tokens=2, start=9, rotary_dim=64, rope_theta=1e7)
    bound = budgets(case, grant(inv_freq="float16"))["sin"].bound
    assert np.isfinite(bound).all()
    assert (bound[:, -1] >= 1).all()
    assert (bound[:, 1] < 0.5).all()


def test_functions_rounded_before_attention_factor_need_their_term() -> None:
    """cos and sin rounded and 1.5 ulp off, away from zero, then multiplied."""
    worst = 0.0
    for factor, budget in amplified("float32"):
        near, value = float(np.float32(factor)), np.abs(budget.expected) / factor
        moved = value + 1.5 * F32.ulp(np.minimum(value, 1 - F32.unit))
        error = np.abs(near * moved - factor * value) - 2.0**-48
        assert (error <= budget.bound).all()
        name = next(term for term in budget.terms if term.startswith("cos, sin"))
        worst = max(worst, float((error - budget.without(name).bound).max()))
    assert worst > 0
