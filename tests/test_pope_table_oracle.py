"""The contract pope_table: three oracles held against each other, cases, null models, diagnosis."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import table_checks
from hypothesis import given
from rope_table_kernels import EXACT, budgets, float32_kernel, grant

from tightrope.arithmetic import Arithmetic
from tightrope.formats import FORMATS
from tightrope.oracles import pope_table_exact, pope_table_mpmath
from tightrope.oracles.pope_table import CONTRACT, PopeTableCase, oracle_error
from tightrope.oracles.rope_table import BASES, HUGE, KINDS
from tightrope.polar import EXPONENT_AS_CODED, EXPONENT_AS_PRINTED, EXPONENT_SIGNS

QUIET = table_checks.quiet(80)
EVERYTHING = CONTRACT.limits({"positions": (*KINDS, HUGE)})
FIXED = Arithmetic(**EXACT, angle_error=1e-17, trig_ulp=1.0, inv_freq_output="float64")
SHAPES = [
    {"rotary_dim": 8},
    {"rotary_dim": 7, "rope_theta": 5e5, "positions": "random", "seed": 1},
    {"rotary_dim": 6, "rope_theta": 0.5, "positions": "negative", "start": 77},
    {"rotary_dim": 1, "rope_theta": 2.5, "positions": "long", "start": 2**24 - 17},
    {"rotary_dim": 5, "rope_theta": 1e7, "positions": HUGE, "start": 2**62 - 17, "seed": 2},
]
CASES = [
    PopeTableCase(tokens=3, exponent_sign=sign, **shape)
    for shape, sign in product(SHAPES, EXPONENT_SIGNS)
]
NAMED = {"ids": lambda c: f"{c.positions}-{c.rotary_dim}-{c.exponent_sign}"}


def exactly(case: PopeTableCase, output: str) -> list[Fraction]:
    inputs = CONTRACT.inputs(case)
    size = case.rotary_dim * (1 if output == "inv_freq" else case.tokens)
    return list(CONTRACT.exact(case, inputs, output, range(size)))


@pytest.mark.parametrize("case", CASES, **NAMED)
def test_ball_arithmetic_and_mpmath_agree(case: PopeTableCase) -> None:
    positions = CONTRACT.inputs(case)["positions"].tolist()
    theta, table = pope_table_mpmath.table(
        positions, case.rotary_dim, case.rope_theta, case.exponent_sign
    )
    pairs = [pair for row in table for pair in row]
    second = {"inv_freq": theta, "cos": [p[0] for p in pairs], "sin": [p[1] for p in pairs]}
    for output, values in second.items():
        for a, b in zip(exactly(case, output), values, strict=True):
            assert abs(a - b) <= (abs(b) + Fraction(1, 2**100)) / 2**99


@pytest.mark.parametrize("case", CASES, **NAMED)
def test_expected_is_the_exact_value_but_for_its_declared_error(case: PopeTableCase) -> None:
    for name, b in budgets(case, grant()).items():
        given = zip(b.expected.ravel(), b.oracle.ravel(), exactly(case, name), strict=True)
        assert all(abs(Fraction(float(x)) - y) <= Fraction(float(e)) for x, e, y in given)


@given(case=CONTRACT.cases(EVERYTHING))
@QUIET
def test_float64_is_within_its_own_bound(case: PopeTableCase) -> None:
    inputs = CONTRACT.inputs(case)
    own, bound = CONTRACT.oracle(case, inputs), oracle_error(case, inputs)
    for name, b in budgets(case, grant()).items():
        assert (np.abs(own[name] - b.expected) <= bound[name] + b.oracle).all()


@pytest.mark.parametrize("sign", EXPONENT_SIGNS)
def test_the_float64_bound_is_not_empty(sign: int) -> None:
    case = PopeTableCase(
        tokens=17, rotary_dim=65, positions="random", start=2**20, exponent_sign=sign
    )
    inputs = CONTRACT.inputs(case)
    own, bound = CONTRACT.oracle(case, inputs), oracle_error(case, inputs)
    for name, b in budgets(case, grant()).items():
        assert 0.02 < (np.abs(own[name] - b.expected) / bound[name]).max() <= 1


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("sign", EXPONENT_SIGNS)
def test_inv_freq_is_correctly_rounded(base: float, dtype: str, sign: int) -> None:
    """Against integer arithmetic: theta_c**13 = base**(sign c), compared at both midpoints."""
    fmt, power = FORMATS[dtype], Fraction(base) ** sign
    for c, theta in enumerate(pope_table_exact.inv_freq(13, base, sign, dtype).tolist()):
        below, above = (Fraction(float(v)) for v in fmt.neighbours(np.float64(theta)))
        low, high = ((Fraction(theta) + other) / 2 for other in (below, above))
        assert low**13 <= power**c <= high**13


@pytest.mark.parametrize("base", BASES)
def test_no_frequency_is_too_near_to_a_midpoint(base: float) -> None:
    """Where rope_theta**(c/d) is rational it may be one; of these bases it never is."""
    for d, dtype in product((1, 2, 3, 4, 5, 6, 7, 8, 12, 14, 28, 60), FORMATS):
        assert len(pope_table_exact.inv_freq(d, base, EXPONENT_AS_PRINTED, dtype)) == d


@pytest.mark.parametrize("sign", EXPONENT_SIGNS)
def test_frequencies_known_in_closed_form(sign: int) -> None:
    """Base 16, four features: 1, 2, 4, 8 as printed, 1, 1/2, 1/4, 1/8 as coded; none is paired."""
    case = PopeTableCase(tokens=1, rotary_dim=4, rope_theta=16.0, start=3, exponent_sign=sign)
    theta = 2.0 ** (sign * np.arange(4))
    b = budgets(case, FIXED)
    assert b["inv_freq"].expected.tolist() == theta.tolist()
    assert b["cos"].expected[0].tolist() == np.cos(3 * theta).tolist()
    assert b["sin"].expected[0].tolist() == np.sin(3 * theta).tolist()


def test_the_two_conventions_are_what_their_names_say() -> None:
    """arXiv 2509.10534, eq. 4: theta^((c-1)/d); 1/theta of it in code (d = 2, base 100: 10)."""
    printed = pope_table_exact.inv_freq(2, 100.0, EXPONENT_AS_PRINTED)
    coded = pope_table_exact.inv_freq(2, 100.0, EXPONENT_AS_CODED)
    assert printed.tolist() == [1.0, 10.0]
    assert coded.tolist() == [1.0, 0.1]


@given(case=CONTRACT.cases(EVERYTHING))
@QUIET
def test_cases_are_what_they_say(case: PopeTableCase) -> None:
    positions = CONTRACT.inputs(case)["positions"]
    assert positions.shape == (case.tokens,)
    assert positions.dtype.name == case.position_dtype
    assert case.exponent_sign in EXPONENT_SIGNS
    assert 1 <= case.rotary_dim <= 256
    assert CONTRACT.from_json(CONTRACT.to_json(case)) == case


def test_odd_widths_and_both_signs_are_drawn() -> None:
    cases = table_checks.drawn(CONTRACT, CONTRACT.limits({}), 80)
    shapes = {(case.exponent_sign, case.rotary_dim % 2) for case in cases}
    assert shapes == set(product(EXPONENT_SIGNS, (0, 1)))
    assert {case.positions for case in cases} == set(KINDS)


@pytest.mark.parametrize(
    ("arithmetic", "limits"),
    [
        (grant(), CONTRACT.limits({})),
        (grant(inv_freq_ulp=0), CONTRACT.limits({"exponent_sign": (EXPONENT_AS_PRINTED,)})),
        (FIXED, EVERYTHING),
    ],
    ids=["stranger", "float32 as printed", "fixed point"],
)
def test_hardly_a_case_is_uninformative(arithmetic, limits) -> None:
    assert table_checks.uninformative(CONTRACT, limits, arithmetic, 80) < 0.02


def test_the_simplest_case_is_informative_and_found_by_shrinking() -> None:
    case = table_checks.simplest(CONTRACT)
    assert case == replace(case, tokens=1, positions="range", start=1, rotary_dim=8)
    assert not table_checks.says_nothing(CONTRACT, case, grant())


def test_without_positions_the_frequencies_still_say_something() -> None:
    assert not table_checks.says_nothing(CONTRACT, PopeTableCase(tokens=0), FIXED)


SHOWS = [
    PopeTableCase(tokens=6, rope_theta=5e5, start=2),
    PopeTableCase(tokens=4, rotary_dim=7, positions="negative", start=3),
    PopeTableCase(tokens=8, start=4095),
    PopeTableCase(tokens=8, start=8190),
    PopeTableCase(tokens=4, positions=HUGE, start=2**32 + 1),
    PopeTableCase(tokens=4, positions=HUGE, start=2**25 + 12345),
]


@pytest.mark.parametrize("sign", EXPONENT_SIGNS)
@pytest.mark.parametrize("sentence", table_checks.mistakes(CONTRACT, SHOWS[0]))
def test_every_known_mistake_is_rejected_and_named(sentence: str, sign: int) -> None:
    cases = [replace(shown, exponent_sign=sign) for shown in SHOWS]
    assert table_checks.named(CONTRACT, sentence, cases, FIXED)


@given(case=CONTRACT.cases(CONTRACT.limits({})))
@QUIET
def test_the_usual_torch_builder_is_a_right_stranger(case: PopeTableCase) -> None:
    """theta ** (sign c/d) in float32, as the buffers of public implementations are made."""
    import torch

    exponents = torch.arange(case.rotary_dim).float() / case.rotary_dim
    inv_freq = case.rope_theta ** (case.exponent_sign * exponents)
    positions = torch.from_numpy(CONTRACT.inputs(case)["positions"])
    angles = positions.float()[:, None] * inv_freq[None, :]
    out = {"inv_freq": inv_freq.double(), "cos": angles.cos(), "sin": angles.sin()}
    assert table_checks.all_right(CONTRACT, case, {n: t.numpy() for n, t in out.items()}, grant())


@given(case=CONTRACT.cases(CONTRACT.limits({})))
@QUIET
def test_a_right_float32_builder_passes_t0_and_t1(case: PopeTableCase) -> None:
    promise = grant(inv_freq_ulp=0, trig_ulp=1.5)
    sign = case.exponent_sign
    theta = pope_table_exact.inv_freq(case.rotary_dim, case.rope_theta, sign, "float32")
    out = {"inv_freq": theta, **float32_kernel(case, promise)}
    assert table_checks.all_right(CONTRACT, case, out, promise)
