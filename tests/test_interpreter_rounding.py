"""Single roundings at the extremes: fma, division, square root, remainder, against rationals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from test_interpreter_arithmetic import apply, draw, faithful, nearest, rationals

assert faithful  # the fixture serves here too


def test_float64_fma_at_extreme_exponents():
    rng = np.random.default_rng(3)
    exponents = rng.integers(-1074, 1023, (3, 512))
    exponents[1, :256] = -1000 - exponents[0, :256] // 1 + rng.integers(-80, 80, 256)
    values = np.ldexp(1 + rng.random((3, 512)), np.clip(exponents, -1074, 1023)) * rng.choice(
        [-1, 1], (3, 512)
    )
    x, w, z = (torch.from_numpy(v) for v in values)
    z[:256] = (x * w)[:256] * -(1 + 2.0**-50)
    z = torch.where(z.isfinite(), z, torch.ones_like(z))
    got = apply("fma(x,w,z)", x, w, z)
    for a, b, c, y in zip(x.tolist(), w.tolist(), z.tolist(), got.tolist(), strict=True):
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        if abs(exact) >= Fraction(2) ** 1024 - Fraction(2) ** 970:
            assert y == (float("inf") if exact > 0 else float("-inf"))
        else:
            assert Fraction(y) == nearest(exact, 53, -1022), (a, b, c)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fma_of_zeros_and_infinities(dtype):
    v = torch.tensor(
        [0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan"), 2.0**-60], dtype=dtype
    )
    x, w = (t.reshape(-1) for t in torch.meshgrid(v, v, indexing="ij"))
    for z in v.tolist():
        z = torch.full_like(x, z)
        expected = x * w + z  # exact, or a sign, an infinity or a NaN, but for 2^-60 * 2^-60 + 1
        got = apply("fma(x,w,z)", x, w, z)
        assert torch.equal(got.isnan(), expected.isnan())
        assert torch.equal(got.nan_to_num(7), expected.nan_to_num(7))
        assert torch.equal(got.signbit() & ~got.isnan(), expected.signbit() & ~expected.isnan())


def test_float64_fma_beside_ties():
    """z is odd in its last place, x*w half an ulp of it but for 2^-104: two roundings show."""
    k = torch.arange(256, dtype=torch.float64)
    z = (2.0**53 + 2 + 4 * k) * torch.where(k % 2 == 0, 1, -1) * 2.0 ** (k - 128)
    x = torch.full_like(z, 1 - 2.0**-52) * 2.0 ** (k - 128)
    w = torch.full_like(z, 1 + 2.0**-52) * torch.where(k % 3 == 0, 1, -1)
    expected = [
        nearest(a * b + c, 53, -1022) for a, b, c in zip(*map(rationals, (x, w, z)), strict=True)
    ]
    assert rationals(apply("fma(x,w,z)", x, w, z)) == expected


def test_float32_fma_with_subnormal_results():
    x, w = draw(torch.float32) * 2.0**-70, draw(torch.float32, seed=1) * 2.0**-70
    z = draw(torch.float32, seed=2) * 2.0**-140
    expected = [
        nearest(a * b + c, 24, -126) for a, b, c in zip(*map(rationals, (x, w, z)), strict=True)
    ]
    assert rationals(apply("fma(x,w,z)", x, w, z)) == expected


def test_div_rn_is_correctly_rounded():
    x, w = draw(torch.float32), draw(torch.float32, seed=1)
    expected = [nearest(a / b, 24, -126) for a, b in zip(*map(rationals, (x, w)), strict=True)]
    assert rationals(apply("div_rn", x, w)) == expected


def test_sqrt_rn_is_correctly_rounded():
    """By squares of the neighbouring midpoints (torch's own float32 sqrt can be an ulp off)."""
    x = draw(torch.float32).abs()
    y = apply("sqrt_rn", x)
    below, above = (
        rationals(torch.nextafter(y, torch.full_like(y, end))) for end in (0, torch.inf)
    )
    for square, root, low, high in zip(rationals(x), rationals(y), below, above, strict=True):
        assert ((root + low) / 2) ** 2 < square < ((root + high) / 2) ** 2


def test_remainder_is_the_compiled_formula():
    x, w = draw(torch.float32) * 2.0**20, draw(torch.float32, seed=1)
    n = (x / w).trunc()
    exact = zip(*map(rationals, (x, n, w)), strict=True)
    got = apply("x%w", x, w)
    assert rationals(got) == [nearest(a - k * b, 24, -126) for a, k, b in exact]
    assert not torch.equal(got, x.fmod(w))
