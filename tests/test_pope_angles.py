"""The float64 pieces of `pope_attention`'s oracle: angles and softplus, and their own errors."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from attention_limits import rational
from flint import arb, ctx

from tightrope.oracles.pope_attention_angles import TRIG_ERROR, reduced, turn
from tightrope.oracles.pope_attention_problem import MU_ERROR, MU_LEAST, softplus


def test_two_pi_is_known_to_its_last_place():
    with ctx.workprec(1000):
        for places in (8, 192, 700):
            exact = 2 * arb.pi() * arb((1, places))
            assert abs(exact - turn(places)) < 1


@pytest.mark.parametrize("frequency", [1.0, 8660.254, 1e-4, 0.1, 2.0**-140, 1e30, 3e300])
@pytest.mark.parametrize("delta", [0.0, -6.28, 40000.1, -(2.0**80)])
def test_angles_are_exact_at_every_position(frequency, delta):
    positions = np.array([0, 1, -1, 4095, 2**24 + 1, -(2**31), 2**40 + 3, 2**62 - 1, 1 - 2**63])
    found = reduced(positions, np.array(frequency), np.array(delta))
    with ctx.workprec(2000):
        for m, angle in zip(positions.tolist(), found.tolist(), strict=True):
            exact = arb(m) * arb(frequency) + arb(delta)
            turns = ((exact - arb(angle)) / (2 * arb.pi())).mid().floor().unique_fmpz()
            off = [abs(exact - arb(angle) - 2 * arb.pi() * t) for t in (turns, turns + 1)]
            assert any(o < 2.0**-52 + 2.0**-120 for o in off)
            for mine, true in ((np.cos(angle), exact.cos()), (np.sin(angle), exact.sin())):
                assert abs(arb(float(mine)) - true) < TRIG_ERROR


def test_softplus_is_within_its_own_error_everywhere():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-45, 45, 300), 10.0 ** rng.uniform(-30, 3, 60)])
    x = np.concatenate([x, -x, [0.0, -745.2, -708.5, 709.8, 2.0**-149, 1e38, -1e4]])
    assert softplus(np.array(-1e38)) == 0
    with mpmath.workdps(60):
        for value, mu in zip(x.tolist(), softplus(x).tolist(), strict=True):
            true = rational(mpmath.log1p(mpmath.exp(mpmath.mpf(value))))
            bound = Fraction(MU_ERROR) * true + Fraction(MU_LEAST)
            assert abs(Fraction(mu) - true) <= bound
