"""The contract rope_table: three oracles held against each other, cases, null models, diagnosis."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import table_checks
from hypothesis import given
from rope_table_kernels import budgets, float32_kernel, grant

from tightrope.formats import FORMATS
from tightrope.oracles import rope_table_exact, rope_table_mpmath
from tightrope.oracles.rope_table import (
    BASES,
    BEYOND_INT32,
    CONTRACT,
    HUGE,
    KINDS,
    RopeTableCase,
    oracle_error,
)

QUIET = table_checks.quiet(300)
EVERYTHING = CONTRACT.limits({"positions": (*KINDS, HUGE)})
CASES = [
    RopeTableCase(tokens=3, rotary_dim=8),
    RopeTableCase(tokens=3, rotary_dim=96, rope_theta=5e5, positions="random", seed=1),
    RopeTableCase(tokens=3, rotary_dim=6, rope_theta=0.5, positions="negative", start=77),
    RopeTableCase(tokens=3, rotary_dim=10, rope_theta=2.5, positions="long", start=2**24 - 17),
    RopeTableCase(tokens=3, rotary_dim=4, positions=HUGE, start=2**53 + 1, seed=2),
    RopeTableCase(tokens=3, rotary_dim=8, rope_theta=1e7, positions=HUGE, start=2**62 - 17),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.positions}-{c.rotary_dim}")
def test_ball_arithmetic_and_mpmath_agree(case: RopeTableCase) -> None:
    positions = CONTRACT.inputs(case)["positions"].tolist()
    second = rope_table_mpmath.table(positions, case.rotary_dim, case.rope_theta)
    flat = range(len(positions) * case.rotary_dim // 2)
    for which, output in enumerate(("cos", "sin")):
        first = CONTRACT.exact(case, CONTRACT.inputs(case), output, flat)
        for a, b in zip(first, (pair[which] for row in second for pair in row), strict=True):
            assert abs(a - b) <= (abs(b) + Fraction(1, 2**100)) / 2**99


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.positions}-{c.rotary_dim}")
def test_expected_is_the_exact_value_but_for_its_declared_error(case: RopeTableCase) -> None:
    for name, b in budgets(case, grant()).items():
        exact = CONTRACT.exact(case, CONTRACT.inputs(case), name, range(b.expected.size))
        off = [
            abs(Fraction(x) - y) for x, y in zip(b.expected.ravel().tolist(), exact, strict=True)
        ]
        assert all(d <= Fraction(e) for d, e in zip(off, b.oracle.ravel().tolist(), strict=True))


@given(case=CONTRACT.cases(EVERYTHING))
@QUIET
def test_float64_is_within_its_own_bound(case: RopeTableCase) -> None:
    inputs = CONTRACT.inputs(case)
    bound = oracle_error(case, inputs)
    for name, b in budgets(case, grant()).items():
        assert (np.abs(CONTRACT.oracle(case, inputs)[name] - b.expected) <= bound + b.oracle).all()


def test_the_float64_bound_is_not_empty() -> None:
    case = RopeTableCase(tokens=17, rotary_dim=128, positions="random", start=2**30, span=2**30)
    inputs = CONTRACT.inputs(case)
    off = np.abs(CONTRACT.oracle(case, inputs)["cos"] - budgets(case, grant())["cos"].expected)
    assert 0.02 < (off / oracle_error(case, inputs)).max() <= 1


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("base", BASES)
def test_inv_freq_is_correctly_rounded(base: float, dtype: str) -> None:
    """Against integer arithmetic: theta_c**24 = base**(-2c), compared at both midpoints."""
    fmt, power = FORMATS[dtype], Fraction(base)
    for c, theta in enumerate(rope_table_exact.inv_freq(24, base, dtype).tolist()):
        exact = 1 / power ** (2 * c)
        below, above = (Fraction(float(v)) for v in fmt.neighbours(np.float64(theta)))
        if dtype == "float64":  # neighbours are those of float64 itself
            below, above = (Fraction(float(np.nextafter(theta, w))) for w in (0, np.inf))
        low, high = ((Fraction(theta) + other) / 2 for other in (below, above))
        assert low**24 <= exact <= high**24


def test_precision_rises_until_it_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 24 bits, of which an angle of 2**53 leaves none, the same numbers are reached."""
    case, rounded = CASES[4], rope_table_exact.inv_freq(24, 1e4, "float32")
    inputs = CONTRACT.inputs(case)
    wide = {n: CONTRACT.exact(case, inputs, n, range(6)) for n in ("cos", "sin")}
    monkeypatch.setattr(rope_table_exact, "BITS", 24)
    assert np.array_equal(rope_table_exact.inv_freq.__wrapped__(24, 1e4, "float32"), rounded)
    for n, values in wide.items():
        for a, b in zip(CONTRACT.exact(case, inputs, n, range(6)), values, strict=True):
            assert abs(a - b) <= abs(b) / 2**99


def test_two_frequencies_known_in_closed_form() -> None:
    """theta = 1: q . k = cos 3 at positions 2 and 5; base 2^4: frequencies 1 and 1/4."""
    case = RopeTableCase(tokens=1, rotary_dim=4, rope_theta=16.0, start=3)
    b = budgets(case, grant())
    assert b["cos"].expected[0].tolist() == [np.cos(3.0), np.cos(0.75)]
    assert b["sin"].expected[0].tolist() == [np.sin(3.0), np.sin(0.75)]


@given(case=CONTRACT.cases(EVERYTHING))
@QUIET
def test_cases_are_what_they_say(case: RopeTableCase) -> None:
    positions = CONTRACT.inputs(case)["positions"]
    largest = max(map(abs, positions.tolist()), default=0)
    assert positions.shape == (case.tokens,)
    assert positions.dtype.name == case.position_dtype
    assert np.array_equal(positions, CONTRACT.inputs(case)["positions"])
    assert CONTRACT.from_json(CONTRACT.to_json(case)) == case
    assert largest < 2**62
    if case.positions != HUGE:
        assert largest <= (2**24 if case.positions == "long" else 2**18)
    elif case.tokens:
        assert largest > 2**23


def test_huge_positions_are_drawn_only_by_those_that_claim_them() -> None:
    assert HUGE not in counted({}, "positions")
    assert counted({"positions": (*KINDS, HUGE)}, "positions").keys() == {*KINDS, HUGE}
    narrow = counted({"rotary_dim": (88,), "position_dtype": ("int32",)}, "rotary_dim")
    assert narrow.keys() == {88}


def counted(given_limits: dict, field: str) -> Counter:
    cases = table_checks.drawn(CONTRACT, CONTRACT.limits(given_limits), 300)
    return Counter(getattr(case, field) for case in cases)


@pytest.mark.parametrize(
    ("arithmetic", "limits"),
    [
        (grant(), CONTRACT.limits({})),
        (grant(inv_freq_ulp=0), CONTRACT.limits({})),
        (grant(position="exact", inv_freq="exact", angle="exact", angle_error=1e-17), EVERYTHING),
    ],
    ids=["stranger", "float32", "fixed point"],
)
def test_hardly_a_case_is_uninformative(arithmetic, limits) -> None:
    assert table_checks.uninformative(CONTRACT, limits, arithmetic, 300) < 0.02


def test_the_simplest_case_is_informative_and_found_by_shrinking() -> None:
    case = table_checks.simplest(CONTRACT)
    assert case == replace(case, tokens=1, positions="range", start=1, rotary_dim=8)
    assert not table_checks.says_nothing(CONTRACT, case, grant())


SHOWS = [
    RopeTableCase(tokens=6, rotary_dim=8, rope_theta=5e5, start=2),
    RopeTableCase(tokens=4, rotary_dim=8, positions="negative", start=3),
    RopeTableCase(tokens=8, rotary_dim=8, start=4095),
    RopeTableCase(tokens=8, rotary_dim=8, start=8190),
    RopeTableCase(tokens=4, rotary_dim=8, positions=HUGE, start=2**32 + 1),
    RopeTableCase(tokens=4, rotary_dim=8, positions=HUGE, start=2**25 + 12345),
]


@pytest.mark.parametrize("sentence", table_checks.mistakes(CONTRACT, SHOWS[0]))
def test_every_known_mistake_is_rejected_and_named(sentence: str) -> None:
    exact = grant(position="exact", inv_freq="exact", angle="exact", angle_error=1e-17, trig_ulp=1)
    assert table_checks.named(CONTRACT, sentence, SHOWS, exact)


@given(case=CONTRACT.cases(CONTRACT.limits({})))
@QUIET
def test_the_usual_torch_builder_is_a_right_stranger(case: RopeTableCase) -> None:
    import torch

    d = case.rotary_dim
    powers = case.rope_theta ** (torch.arange(0, d, 2, dtype=torch.int64).float() / d)
    positions = torch.from_numpy(CONTRACT.inputs(case)["positions"])
    angles = positions.float()[:, None] * (1.0 / powers)[None, :]
    out = {"cos": angles.cos().numpy(), "sin": angles.sin().numpy()}
    assert table_checks.all_right(CONTRACT, case, out, grant())


@given(case=CONTRACT.cases(CONTRACT.limits({})))
@QUIET
def test_a_right_float32_builder_passes_t0_and_t1(case: RopeTableCase) -> None:
    promise = grant(inv_freq_ulp=0, trig_ulp=1.5)
    assert table_checks.all_right(CONTRACT, case, float32_kernel(case, promise), promise)


def test_int32_limits_are_reached() -> None:
    case = RopeTableCase(tokens=17, positions=HUGE, start=2**31 - 1, position_dtype="int32", seed=3)
    found = CONTRACT.inputs(case)["positions"]
    assert {found.min(), found.max()} == {-(2**31), 2**31 - 1}
    assert max(BEYOND_INT32) + 17 <= 2**62
