"""Verdicts where float64 is not sure: many elements, wrong oracles, infinite bounds, ties."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tightrope.budget import Budget, Replay
from tightrope.formats import FORMATS, stored, widen
from tightrope.verdict import judge


def budget(x, e, dtype="float16", **more):
    return Budget(np.asarray(x, np.float64), {"a term": np.asarray(e, np.float64)}, dtype, **more)


def test_every_undecided_element_is_settled():
    n, last = 5000, 4999
    tie = np.full(n, 1.0 + 2.0**-11)
    out = stored(np.ones(n), "float16")

    def exact(at):  # just below the tie, but for the last one
        return [Fraction(1) + Fraction(1, 2**11) + (1 if i == last else -1) * Fraction(1, 2**80)
                for i in at]  # fmt: skip

    verdict = judge("y", out, budget(tie, np.zeros(n), oracle=1e-15), exact)
    assert not verdict.ok
    assert verdict.wrong == 1
    assert verdict.detail["index"] == [last]


def test_only_what_ball_arithmetic_confirms_is_told():
    shaky = budget([1.0, 2.0, 3.0], [1e-6] * 3)  # the oracle is wrong in the first two
    out = stored([1.5, 2.5, 3.5], "float16")
    truth = [Fraction(3, 2), Fraction(5, 2), Fraction(3)]
    verdict = judge("y", out, shaky, lambda at: [truth[i] for i in at])
    assert verdict.detail["index"] == [2]
    assert verdict.wrong == 1
    assert judge("y", out[:2], budget([1.0, 2.0], [1e-6] * 2), lambda at: [truth[i] for i in at]).ok


def test_without_ball_arithmetic_what_is_not_proved_wrong_is_not_called_wrong():
    tie = 1.0 + 2.0**-11
    assert judge("y", stored([1.0 + 2.0**-10], "float16"), budget([tie], [0.0], oracle=1e-12)).ok


def test_an_infinite_bound_accepts_every_number_and_no_nan():
    for oracle in (0.0, np.inf):
        unbounded = budget([1.0, 1.0], [np.inf, np.inf], oracle=oracle)
        out = np.array([7.0, np.inf], np.float16)
        assert judge("y", out, unbounded, lambda at: [Fraction(1)] * len(at)).ok
        out[1] = np.nan
        assert not judge("y", out, unbounded, lambda at: [Fraction(1)] * len(at)).ok


def test_a_wrong_element_that_meets_the_declared_roundings_is_told_by_its_error():
    tie = np.array([1.0 + 2.0**-11])
    out = stored([1.0 + 2.0**-10], "float16")
    verdict = judge("y", out, budget(tie, [0.0], replay=Replay(tie, 1.0)))
    assert not verdict.ok
    assert "off by 1 ulp of float16" in verdict.message


@pytest.mark.parametrize("dtype", FORMATS)
def test_verdicts_agree_with_rational_arithmetic(dtype):
    """Near ties, overflow, subnormals and powers of two, also where float64 is not sure."""
    fmt, rng, seen = FORMATS[dtype], np.random.default_rng(1), set()
    for exponent in (0, fmt.emin - 2, fmt.emin, min(fmt.emax, 1022), -5):
        x = fmt.round(np.ldexp(rng.uniform(1, 1.99, 12), exponent))
        x += rng.choice([0, 0.5], 12) * fmt.ulp(x) * (fmt.precision < 53)
        e = fmt.ulp(x) * rng.choice([0, 2.0**-20, 0.25, 0.5, 1, 3], 12)
        moved = [Fraction(float(u)) * int(s) / 2**60 for u, s in zip(fmt.ulp(x), rng.integers(-2, 3, 12), strict=True)]  # fmt: skip  # noqa: E501
        oracle = fmt.ulp(x) * 2.0**-58 + (np.abs(x) + e) * 2.0**-52 + 5e-324
        near = fmt.round(x)
        for out in (near, *fmt.neighbours(near), fmt.round(x + e), np.full(12, np.inf), -x):
            out = out if dtype == "float64" else fmt.round(out)
            for i in range(12):
                one = budget(x[i : i + 1], e[i : i + 1], dtype, oracle=oracle[i : i + 1])
                exact, bound = Fraction(float(x[i])) + moved[i], Fraction(float(one.bound[0]))
                low, high = (fmt.round_fraction(exact + s * bound) for s in (-1, 1))
                with np.errstate(over="ignore"):
                    array = out[i : i + 1].astype(fmt.dtype)
                verdict = judge("y", array, one, lambda at, exact=exact: [exact])
                assert verdict.ok == (low <= float(widen(array)[0]) <= high)
                assert (verdict.share <= 1) if verdict.ok else (verdict.share >= 1)
                seen.add(verdict.ok)
    assert seen == {True, False}
