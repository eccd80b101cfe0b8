"""The budget of pope_table: sound under worst-case roundings, every term needed, and tight.

Terms of the angles are those of rope_table, whose tests show each; here both signs of the exponent
are put through the same, and the terms of the returned frequencies are shown.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rope_table_kernels import EXACT, budgets, float32_kernel, stress

from tightrope.arithmetic import Arithmetic
from tightrope.budget import Budget
from tightrope.formats import Array
from tightrope.oracles.pope_table import CONTRACT, PopeTableCase
from tightrope.polar import EXPONENT_AS_PRINTED, EXPONENT_SIGNS


def grant(**stages: Any) -> Arithmetic:
    return Arithmetic(**stages).over(CONTRACT.stages)


ARITHMETICS = {
    "stranger": grant(),
    "float32": grant(inv_freq_ulp=0),
    "float64 angles": grant(position="float64", angle="float64", inv_freq_ulp=0),
    "bfloat16": grant(position="bfloat16", inv_freq="bfloat16", inv_freq_ulp=0, angle="bfloat16"),
    "fixed point": grant(**EXACT, angle_error=2.0**-60, trig_ulp=0.5 + 2.0**-26),
}
KINDS = [
    (64, 1e4, "range", 0), (31, 1e7, "range", 1), (3, 2.5, "random", 1), (40, 0.5, "negative", 9),
    (80, 1e6, "random", 2**12), (7, 5e5, "long", 2**17 - 1), (20, 10.0, "huge", 2**25 - 3),
    (96, 1e4, "powers", 1), (1, 100.0, "repeated", 4095), (33, 1e6, "descending", 131070),
]  # fmt: skip
MIXED = [
    PopeTableCase(
        tokens=16, rotary_dim=d, rope_theta=base, positions=kind, start=start, span=2**17,
        seed=seed, exponent_sign=sign,
    )
    for seed, (d, base, kind, start) in enumerate(KINDS)
    for sign in EXPONENT_SIGNS
]  # fmt: skip
POWERS = PopeTableCase(
    tokens=16, rotary_dim=80, rope_theta=1e7, positions="powers", start=1, span=16
)


def largest_share(case: PopeTableCase, a: Arithmetic, without: str = " ") -> float:
    """Over sign patterns and elements of cos and sin; optionally with one term deleted."""
    shares = [0.0]
    for pattern in ("up", "down", "random"):
        for name, error in stress(case, a, pattern).items():
            shares.append(spent(error, budgets(case, a)[name], without))
    return max(shares)


def spent(error: Array, budget: Budget, without: str = " ") -> float:
    bound = budget.without(*(t for t in budget.terms if t.startswith(without))).bound
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.where(error == 0, 0, error / bound).max(initial=0.0))


@pytest.mark.parametrize("name", ARITHMETICS)
def test_worst_case_roundings_stay_within_the_budget(name: str) -> None:
    for case in MIXED:
        assert largest_share(case, ARITHMETICS[name]) <= 1, case


@pytest.mark.parametrize("sign", EXPONENT_SIGNS)
@pytest.mark.parametrize(
    ("term", "more"),
    [("exponent c/", {"inv_freq_ulp": 1}), ("power within", {}), ("inv_freq rounded", None)],
)
def test_deleting_a_term_of_the_angles_is_noticed(term: str, more: dict | None, sign: int) -> None:
    a = grant(inv_freq_ulp=0) if more is None else grant(**more)
    assert largest_share(replace(POWERS, exponent_sign=sign), a, without=term) > 1


@pytest.mark.parametrize(
    "more",
    [
        {"inv_freq": "float16", "inv_freq_ulp": 0},
        {"inv_freq": "float16", "inv_freq_ulp": 1},
        {"inv_freq_output": "float16", "inv_freq_ulp": 0},
    ],
)
def test_frequencies_beyond_a_format_leave_an_empty_promise_not_a_nan(more: dict) -> None:
    """10^7^(62/64) is beyond float16."""
    case = PopeTableCase(
        tokens=2, start=0, rotary_dim=64, rope_theta=1e7, exponent_sign=EXPONENT_AS_PRINTED
    )
    for name, b in budgets(case, grant(**more)).items():
        assert np.isfinite(b.bound).all()
        if name == "inv_freq":
            assert b.replay is None
            assert b.bound[-1] > 1e7
        elif "inv_freq" in more:
            assert b.replay is None
            assert b.bound[1, -1] >= 1


@pytest.mark.parametrize("a", [grant(), grant(inv_freq_ulp=0), grant(**EXACT, angle_error=1e-6)])
@pytest.mark.parametrize("sign", EXPONENT_SIGNS)
def test_position_zero_and_frequency_one_are_exact(a: Arithmetic, sign: int) -> None:
    case = PopeTableCase(tokens=2, start=0, rotary_dim=33, exponent_sign=sign)
    b = budgets(case, a)
    for name, value in (("cos", 1.0), ("sin", 0.0)):
        out = np.full((2, 33), value, np.float32)
        assert (b[name].inside(out) & b[name].replayed(out))[0].all()
        assert not b[name].inside(out + np.float32(2**-23))[0].any()
    near = np.nextafter(np.ones(33), [2.0])
    assert not b["inv_freq"].inside(near)[0]


def test_as_printed_float32_angles_say_nothing_where_exact_ones_do() -> None:
    """At 2^17 the last of 64 frequencies is off by a radian and more in float32."""
    case = PopeTableCase(
        tokens=16, rotary_dim=64, positions="long", start=2**17,
        exponent_sign=EXPONENT_AS_PRINTED,
    )  # fmt: skip
    loose, sharp = (budgets(case, ARITHMETICS[n])["cos"].bound for n in ("stranger", "fixed point"))
    assert (loose[:, -1] >= 1).all()
    assert (sharp <= 2.0**-49).all()


@pytest.mark.parametrize("sign", EXPONENT_SIGNS)
def test_float32_angles_are_replayed_and_others_rejected(sign: int) -> None:
    case = PopeTableCase(
        tokens=16, rotary_dim=33, positions="random", start=1000, exponent_sign=sign
    )
    a = grant(inv_freq_ulp=0)
    out = float32_kernel(case, a)
    for name, b in budgets(case, a).items():
        if name == "inv_freq":
            continue
        wrong = float32_kernel(replace(case, rope_theta=np.nextafter(1e4, 2e4)), a)
        shifted = float32_kernel(replace(case, start=1001), a)
        assert b.replayed(out[name]).all()
        assert b.replayed(wrong[name]).all()  # the nearest base has the same float32 frequencies
        assert not b.replayed(shifted[name]).all()
