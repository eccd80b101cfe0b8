"""The budget of the frequencies that pope_table returns: sound, needed, replayed where given."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from rope_table_kernels import EXACT, F32, LONG, budgets, long_angle
from test_pope_table_budget import MIXED, POWERS, grant, spent

from tightrope.arithmetic import Arithmetic
from tightrope.formats import FORMATS, Array
from tightrope.oracles.pope_table import CONTRACT, PopeTableCase
from tightrope.oracles.pope_table_exact import inv_freq
from tightrope.polar import EXPONENT_AS_PRINTED, EXPONENT_SIGNS
from tightrope.verdict import judge


def chain(case: PopeTableCase, a: Arithmetic, pattern: float) -> Array:
    """Returned frequencies in extended precision, every inexact rounding a full step one way.

    As printed the power is the frequency; as coded it is inverted, a rounding more.
    """
    fmt, exponent = FORMATS[a["inv_freq"]], np.arange(case.rotary_dim).astype(LONG)
    exponent = exponent / case.rotary_dim
    held = fmt.round(exponent.astype(np.float64)) == exponent
    step = np.where(held, 0, fmt.half_ulp(exponent.astype(np.float64)))
    printed = case.exponent_sign == EXPONENT_AS_PRINTED
    way = pattern if printed else -pattern
    power = LONG(case.rope_theta) ** (exponent + way * np.sign(np.log(case.rope_theta)) * step)
    half = fmt.half_ulp(power.astype(np.float64))
    power = power + way * (2 * a["inv_freq_ulp"] + 1) * half
    theta = power if printed else 1 / power
    if not printed:
        theta = theta + pattern * fmt.half_ulp(theta.astype(np.float64))
    first = np.arange(case.rotary_dim) == 0
    return np.where(first, LONG(1), theta)


@pytest.mark.parametrize("case", [*MIXED[::3], POWERS], ids=lambda c: f"{c.rotary_dim}")
@pytest.mark.parametrize("ulps", [1, 4])
@pytest.mark.parametrize("pattern", [1.0, -1.0])
def test_returned_frequencies_stay_within_their_budget(
    case: PopeTableCase, ulps: int, pattern: float
) -> None:
    a = grant(inv_freq_ulp=ulps)
    b, exact = budgets(case, a)["inv_freq"], long_angle(case)[1]
    own = 2.0**-63 * (abs(np.log(case.rope_theta)) + 4)  # of two chains in extended precision
    error = (np.abs(chain(case, a, pattern) - exact) - own * exact).astype(np.float64)
    assert spent(np.maximum(error, 0), b) <= 1


@pytest.mark.parametrize("sign", EXPONENT_SIGNS)
@pytest.mark.parametrize(("term", "ulps"), [("exponent c/", 1), ("power within", 4)])
def test_deleting_a_term_of_the_frequencies_is_noticed(term: str, ulps: int, sign: int) -> None:
    case, a = replace(POWERS, exponent_sign=sign), grant(inv_freq_ulp=ulps)
    b, exact = budgets(case, a)["inv_freq"], long_angle(case)[1]
    assert any(
        spent(np.abs(chain(case, a, way) - exact).astype(np.float64), b, without=term) > 1
        for way in (1.0, -1.0)
    )


RETURNED = {
    "exact": {**EXACT, "inv_freq_output": "float64"},
    "exact, returned in float32": {**EXACT, "inv_freq_output": "float32"},
    "float64": {"inv_freq": "float64", "inv_freq_ulp": 0, "inv_freq_output": "float64"},
    "float64, returned in float32": {"inv_freq": "float64", "inv_freq_ulp": 0},
    "float32": {"inv_freq_ulp": 0},
    "bfloat16, returned in float32": {"inv_freq": "bfloat16", "inv_freq_ulp": 0},
}


def returned(case: PopeTableCase, a: Arithmetic) -> Array:
    held, output = a["inv_freq"], a["inv_freq_output"]
    kept = inv_freq(
        case.rotary_dim, case.rope_theta, case.exponent_sign, output if held == "exact" else held
    )
    return FORMATS[output].round(kept)


@pytest.mark.parametrize("which", RETURNED)
@pytest.mark.parametrize("case", MIXED[:8], ids=lambda c: f"{c.rotary_dim}")
def test_correctly_rounded_frequencies_are_one_number_and_no_other(
    which: str, case: PopeTableCase
) -> None:
    a = grant(**RETURNED[which])
    b, out, inputs = budgets(case, a)["inv_freq"], returned(case, a), CONTRACT.inputs(case)
    assert judge("inv_freq", out, b, lambda at: CONTRACT.exact(case, inputs, "inv_freq", at)).ok
    assert b.replay is not None
    assert not np.any(b.replay.radius)
    narrow = FORMATS["bfloat16"] if "bfloat16" in which else F32
    other = narrow.neighbours(narrow.round(out))[1]
    assert not (b.inside(other, 1.0) & b.replayed(other)).any()


INEXACT = {
    "stranger": ({}, ["exponent c/", "power within"]),
    "exact": ({**EXACT, "inv_freq_output": "float64"}, []),
    "float64": (RETURNED["float64"], []),
    "float64, returned in float32": (
        RETURNED["float64, returned in float32"],
        ["inv_freq rounded to float64", "returned inv_freq rounded to float32"],
    ),
    "float32": (RETURNED["float32"], ["inv_freq rounded to float32"]),
    "bfloat16": (RETURNED["bfloat16, returned in float32"], ["inv_freq rounded to bfloat16"]),
    "bfloat16, returned in float16": (
        {"inv_freq": "bfloat16", "inv_freq_ulp": 0, "inv_freq_output": "float16"},
        ["inv_freq rounded to bfloat16", "returned inv_freq rounded to float16"],
    ),
}


@pytest.mark.parametrize("which", INEXACT)
def test_a_rounding_that_changes_nothing_is_no_term(which: str) -> None:
    stages, names = INEXACT[which]
    terms = budgets(POWERS, grant(**stages))["inv_freq"].terms
    assert len(terms) == len(names)
    assert all(term.startswith(name) for term, name in zip(terms, names, strict=True))


def test_a_returned_frequency_rounded_once_more_costs_half_an_ulp_of_it() -> None:
    case = replace(POWERS, exponent_sign=EXPONENT_AS_PRINTED)
    a = grant(**RETURNED["exact, returned in float32"])
    b = budgets(case, a)["inv_freq"]
    error = np.abs(returned(case, a) - b.expected)
    assert list(b.terms) == ["returned inv_freq rounded to float32"]
    assert 0.5 < spent(error, b) <= 1
    assert spent(error, b, without="returned") == np.inf


def test_a_power_of_float64_is_held_to_float64() -> None:
    """NumPy's power is within 4 ulp; one of float32 is 2^29 times as far off."""
    case = PopeTableCase(rotary_dim=80, exponent_sign=EXPONENT_AS_PRINTED)
    a = grant(inv_freq="float64", inv_freq_ulp=4, inv_freq_output="float64")
    b = budgets(case, a)["inv_freq"]
    power = case.rope_theta ** (np.arange(80) / 80)
    assert b.inside(power, -1.0)[1:].all()
    assert not (b.inside(F32.round(power), 1.0) & (F32.round(power) != power)).any()
