"""The audit's float64 functions keep the error derived for them, and use some of it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from tightrope import audit_exact
from tightrope.audit_angles import SLACK, of_pope, of_rope
from tightrope.audit_reference import REFERENCES, Reference, sin_cos_radians, turn_words

PROVED = [name for name, reference in REFERENCES.items() if reference.proved]
POSITIVE = ("log2", "log", "sqrt", "rsqrt")
# The last float32 before a multiple of pi/2 that no other comes nearer to (Muller et al., Handbook
# of Floating-Point Arithmetic, range reduction): cos is 1.6e-9 there.
NEAREST_TO_A_ZERO = 16367173 * 2.0**72


def numbers(name: str) -> np.ndarray:
    """float32 numbers of every binade, near 1, near multiples of pi/4, where results are finite."""
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 1 << 31, 600, dtype=np.uint32).view(np.float32)
    near = np.concatenate([
        bits[np.isfinite(bits)], 1 + rng.integers(-9, 9, 50) * 2.0**-23, rng.standard_normal(300),
        rng.integers(1, 1 << 20, 200) * (np.pi / 4), 30 * rng.standard_normal(300),
        [NEAREST_TO_A_ZERO, 2.0**127, 2.0**-149, 2.0**-126],
    ])  # fmt: skip
    x = np.float32(near).astype(np.float64)
    x = np.abs(x) if name in POSITIVE else np.concatenate([x, -x])
    if name in ("exp", "exp2", "softplus", "sigmoid"):
        x = x[np.abs(x) < 150]
    return x[x != 0]


def shares(reference: Reference, name: str) -> np.ndarray:
    """Error over its bound, of every number."""
    x = numbers(name)
    y = reference.of(np, x)
    slack = reference.slack(np, x, y)
    exact = [audit_exact.value(name, v) for v in x]
    off = [abs(Fraction(a) - b) for a, b in zip(y, exact, strict=True)]
    return np.array([float(e / Fraction(s)) if e else 0.0 for e, s in zip(off, slack, strict=True)])


@pytest.mark.parametrize("name", PROVED)
def test_a_function_keeps_its_derived_error_and_uses_some_of_it(name):
    found = shares(REFERENCES[name], name)
    assert 0.05 < found.max() <= 1


@pytest.mark.parametrize("name", PROVED)
def test_a_last_bit_that_is_wrong_exceeds_the_error(name):
    right = REFERENCES[name]
    wrong = Reference(
        lambda xp, x: right.of(xp, x) * (1 + 2.0**-48), right.relative, right.absolute
    )
    assert shares(wrong, name).max() > 1


@pytest.mark.parametrize("name", PROVED)
def test_numpy_and_torch_give_the_same_bits(name):
    x = numbers(name)
    ours = REFERENCES[name].of(np, x)
    assert np.array_equal(ours, REFERENCES[name].of(torch, torch.from_numpy(x)).numpy())


def test_what_is_not_finite_stays_so():
    x = np.array([np.inf, -np.inf, np.nan])
    with np.errstate(invalid="ignore"):
        assert np.isnan(REFERENCES["sin"].of(np, x)).all()
        assert REFERENCES["log2"].of(np, x)[0] == np.inf
        assert np.isnan(REFERENCES["log2"].of(np, x)[1:]).all()
        assert np.isnan(REFERENCES["softplus"].of(np, x)[2])


def test_the_words_of_a_turn_are_its_bits():
    upper, middle, lower = (int(w[100]) for w in turn_words())
    from flint import arb, ctx

    with ctx.workprec(400):
        turns = arb(2) ** (100 - 173) / (2 * arb.pi()) * arb(2) ** 128
        exact = int(turns.floor().unique_fmpz()) % 2**128
    assert (upper % 2**64 << 64) + (middle << 32) + lower == exact


@pytest.mark.parametrize("frequencies", [of_rope(8, 10000.0), of_pope(6, 500000.0, 1)])
def test_angles_of_positions_are_within_their_slack(frequencies):
    rng = np.random.default_rng(0)
    positions = np.concatenate([rng.integers(-(2**31) + 1, 2**31, 30), [0, 1, 2**24 + 1]])
    both = frequencies.sin_cos(positions[:, None])
    for row, m in enumerate(positions.tolist()):
        for column in range(len(frequencies.balls)):
            exact = frequencies.exact(m, column)
            for ours, ball in zip(both, exact, strict=True):
                assert abs(ours[row, column] - float(ball.mid())) <= SLACK


def test_differences_of_angles_lose_nothing_that_counts():
    frequencies, rng = of_rope(64, 10000.0), np.random.default_rng(0)
    m = rng.integers(1, 2**26, 200)
    angle = np.float32(m[:, None] * np.float32(frequencies.rounded("float32"))).astype(np.float64)
    off = frequencies.difference(angle, m[:, None])
    from tightrope.oracles.rope_table_exact import fraction

    exact = [fraction(x) for x in frequencies.balls]
    for row in range(0, 200, 10):
        for c in range(0, 32, 5):
            right = Fraction(angle[row, c]) - int(m[row]) * exact[c]
            assert abs(Fraction(off[row, c]) - right) <= abs(right) / 2**50 + Fraction(2) ** -70


def test_sines_of_any_angle_are_within_their_error():
    from flint import arb, ctx

    rng = np.random.default_rng(0)
    x = rng.standard_normal(300) * np.exp2(rng.integers(-30, 40, 300))
    s, c = sin_cos_radians(np, x)
    with ctx.workprec(256):
        for i, v in enumerate(x.tolist()):
            exact = [float(b.mid()) for b in arb(v).sin_cos()]
            allowed = 2.0**-49 + abs(v) * 2.0**-52
            assert abs(s[i] - exact[0]) <= allowed
            assert abs(c[i] - exact[1]) <= allowed
