"""Every term of PoPE's table is needed, and its own are tight where they dominate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from rope_table_kernels import EXACT, F32, Tables, budgets, float32_kernel, frequencies
from test_pope_table_budget import grant, largest_share
from test_pope_table_frequencies import RETURNED

from tightrope.arithmetic import Arithmetic
from tightrope.formats import Array
from tightrope.oracles.pope_table import PopeTableCase
from tightrope.oracles.pope_table_exact import inv_freq
from tightrope.polar import EXPONENT_AS_CODED, EXPONENT_SIGNS

SEEDS = range(40)


def builder(case: PopeTableCase, a: Arithmetic) -> Tables:
    """Float32 throughout, every stage rounded once; the power displaced as far as it may be."""
    theta = frequencies(case, a)
    return {"inv_freq": theta, **float32_kernel(case, a)}


def narrowed(case: PopeTableCase, a: Arithmetic) -> Tables:
    """Exact frequencies, returned in float32."""
    exact = inv_freq(case.rotary_dim, case.rope_theta, case.exponent_sign)
    return {"inv_freq": F32.round(exact)}


@dataclass(frozen=True)
class Family:
    """A designated family of docs/error-budgets.md, where the term of this name dominates."""

    term: str
    arithmetic: Arithmetic
    case: PopeTableCase
    bases: tuple[float, ...] = (10000.0,)
    kernel: Callable[[PopeTableCase, Arithmetic], Tables] = builder


NEAR = PopeTableCase(tokens=16, rotary_dim=64, positions="powers", start=1, span=17)
FAR = replace(NEAR, start=2**10, span=2**16 - 2**10 + 1)
FAMILIES = {
    "inv_freq": Family("inv_freq rounded", grant(inv_freq_ulp=0), NEAR, (1e4, 5e5, 1e6)),
    "exponent": Family(
        "exponent c/", grant(inv_freq_ulp=1), replace(NEAR, rotary_dim=40), (1e7,)
    ),
    "power": Family("power within", grant(), NEAR),
    "returned": Family(
        "returned inv_freq", grant(**RETURNED["exact, returned in float32"]), NEAR,
        kernel=narrowed,
    ),
}  # fmt: skip


def worst_tightness(family: Family, sign: int, output: str, factor: float = 1.0) -> Array:
    """Per case the largest tightness of an output, with the family's term multiplied."""
    found, positions = [], NEAR if sign > 0 else FAR
    for seed in SEEDS:
        case = replace(
            family.case, start=positions.start, span=positions.span, seed=seed,
            exponent_sign=sign, rope_theta=family.bases[seed % len(family.bases)],
        )  # fmt: skip
        b = budgets(case, family.arithmetic)[output]
        name = next(name for name in b.terms if name.startswith(family.term))
        actual = family.kernel(case, family.arithmetic)[output]
        found.append(float(b.scaled(name, factor).tightness(actual).max()))
    return np.array(found)


SHOWN = [
    *((which, sign, "inv_freq") for which in FAMILIES for sign in EXPONENT_SIGNS),
    # As printed, the exponent's family turns by 10^8 radians, where every term is at its ceiling.
    ("exponent", EXPONENT_AS_CODED, "sin"),
    *((which, sign, "sin") for which in ("inv_freq", "power") for sign in EXPONENT_SIGNS),
]


@pytest.mark.parametrize(("which", "sign", "output"), SHOWN)
def test_each_term_is_tight_where_it_dominates(which: str, sign: int, output: str) -> None:
    tightness = worst_tightness(FAMILIES[which], sign, output)
    assert np.median(tightness) >= 0.5
    assert tightness.max() <= 1


@pytest.mark.parametrize(("which", "sign", "output"), SHOWN)
def test_a_term_four_times_too_wide_is_noticed(which: str, sign: int, output: str) -> None:
    assert np.median(worst_tightness(FAMILIES[which], sign, output, 4.0)) < 0.5


@pytest.mark.parametrize("sign", EXPONENT_SIGNS)
@pytest.mark.parametrize("which", FAMILIES)
def test_deleting_a_term_of_inv_freq_is_noticed(which: str, sign: int) -> None:
    family, worst = FAMILIES[which], 0.0
    for seed in range(4):
        case = replace(family.case, seed=seed, exponent_sign=sign, rope_theta=family.bases[0])
        b = budgets(case, family.arithmetic)["inv_freq"]
        error = np.abs(family.kernel(case, family.arithmetic)["inv_freq"] - b.expected) - b.oracle
        name = next(name for name in b.terms if name.startswith(family.term))
        assert (error <= b.bound + b.format.half_ulp(b.expected)).all()
        worst = max(worst, float(b.without(name).tightness(b.expected + error).max()))
    assert worst > 1


ANGLES = {
    "position rounded": grant(position="bfloat16", inv_freq_ulp=0),
    "angle rounded": grant(**{**EXACT, "angle": "float32"}),
    "angle within": grant(**EXACT, angle_error=2.0**-10, trig_ulp=0.5 + 2.0**-26),
    "cos, sin": grant(**EXACT, trig_ulp=2.5),
}


@pytest.mark.parametrize("sign", EXPONENT_SIGNS)
@pytest.mark.parametrize("term", ANGLES)
def test_deleting_a_term_of_the_table_is_noticed(term: str, sign: int) -> None:
    case = replace(NEAR, positions="random", start=2**10, span=2**16, exponent_sign=sign)
    assert largest_share(case, ANGLES[term]) <= 1
    assert largest_share(case, ANGLES[term], without=term) > 1
