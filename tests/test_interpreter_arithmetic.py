"""Arithmetic of the faithful interpreter: each prescribed rounding once, against rationals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tightrope.interpreter import install

DTYPES = {
    torch.bfloat16: (8, -126),
    torch.float16: (11, -14),
    torch.float32: (24, -126),
    torch.float64: (53, -1022),
}


@pytest.fixture(autouse=True)
def faithful():
    with install(contract=True):
        yield


def nearest(x, precision, emin):
    """The rational x rounded to nearest even (no overflow), as a rational."""
    if x == 0:
        return x
    exponent = max(emin, abs(x.numerator).bit_length() - x.denominator.bit_length() - 1)
    while abs(x) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    unit = Fraction(2) ** (exponent - precision + 1)
    return round(x / unit) * unit


def draw(dtype, n=256, seed=0, spread=2.0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(n) * np.exp(rng.standard_normal(n) * spread)
    return torch.from_numpy(x).to(dtype)


def rationals(x):
    return [Fraction(v) for v in x.double().tolist()]


@triton.jit
def binary_kernel(X, W, Z, Y, OP: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(X + i)
    w = tl.load(W + i)
    z = tl.load(Z + i)
    if OP == "x+w":
        y = x + w
    elif OP == "x-w":
        y = x - w
    elif OP == "x*w":
        y = x * w
    elif OP == "fma(x,w,z)":
        y = tl.fma(x, w, z)
    elif OP == "x*w+z":
        y = x * w + z
    elif OP == "z+x*w":
        y = z + x * w
    elif OP == "x*w-z":
        y = x * w - z
    elif OP == "z-x*w":
        y = z - x * w
    elif OP == "-(x*w)+z":
        y = -(x * w) + z
    elif OP == "x*w+z*z":
        y = x * w + z * z
    elif OP == "(x*w)[:,None]+z[:,None]":
        y = tl.reshape((x * w)[:, None] + z[:, None], (N,))
    elif OP == "div_rn":
        y = tl.div_rn(x, w)
    elif OP == "sqrt_rn":
        y = tl.sqrt_rn(tl.abs(x))
    elif OP == "x%w":
        y = x % w
    tl.store(Y + i, y)


def apply(op, x, w=None, z=None, **options):
    w, z = x if w is None else w, x if z is None else z
    y = torch.empty_like(x)
    binary_kernel[(1,)](x, w, z, y, op, x.numel(), **options)
    return y


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("op", "exact"),
    [("x+w", lambda x, w: x + w), ("x-w", lambda x, w: x - w), ("x*w", lambda x, w: x * w)],
)
def test_sums_and_products_round_once(dtype, op, exact):
    x, w = draw(dtype), draw(dtype, seed=1)
    expected = [
        nearest(exact(a, b), *DTYPES[dtype]) for a, b in zip(*map(rationals, (x, w)), strict=True)
    ]
    assert rationals(apply(op, x, w)) == expected


FUSED = {
    "fma(x,w,z)": lambda x, w, z: x * w + z,
    "x*w+z": lambda x, w, z: x * w + z,
    "z+x*w": lambda x, w, z: x * w + z,
    "x*w-z": lambda x, w, z: x * w - z,
    "z-x*w": lambda x, w, z: z - x * w,
    "(x*w)[:,None]+z[:,None]": lambda x, w, z: x * w + z,
}


def close_products(dtype, seed=0):
    """x, w and z near x*w: the sum cancels, so that one and two roundings differ nearly always."""
    x, w = draw(dtype, seed=seed), draw(dtype, seed=seed + 1)
    z = (x.double() * w.double() * (1 + draw(torch.float64, seed=seed + 2, spread=0) / 16)).to(
        dtype
    )
    signs = torch.where(torch.arange(len(z)) % 2 == 0, 1, -1).to(dtype)
    return x, w, z * signs


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", FUSED)
def test_contraction_rounds_once(dtype, op):
    x, w, z = close_products(dtype)
    exact = [FUSED[op](*v) for v in zip(*map(rationals, (x, w, z)), strict=True)]
    got = apply(op, x, w, z)
    assert rationals(got) == [nearest(v, *DTYPES[dtype]) for v in exact]
    if op == "x*w+z":
        assert (got != x * w + z).float().mean() > 0.2


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_launch_without_fusion_rounds_twice(dtype):
    x, w, z = close_products(dtype)
    assert torch.equal(apply("x*w+z", x, w, z, enable_fp_fusion=False), x * w + z)
    once = [
        nearest(a * b + c, *DTYPES[dtype])
        for a, b, c in zip(*map(rationals, (x, w, z)), strict=True)
    ]
    assert rationals(apply("fma(x,w,z)", x, w, z, enable_fp_fusion=False)) == once


def test_contraction_can_be_off_and_a_launch_can_ask_for_it():
    x, w, z = close_products(torch.float32)
    with install(contract=False):
        assert torch.equal(apply("x*w+z", x, w, z), x * w + z)
        assert torch.equal(
            apply("x*w+z", x, w, z, enable_fp_fusion=True), apply("fma(x,w,z)", x, w, z)
        )


def test_contraction_by_default_follows_triton(monkeypatch):
    x, w, z = close_products(torch.float32)
    for default, expected in ((True, apply("fma(x,w,z)", x, w, z)), (False, x * w + z)):
        monkeypatch.setattr(triton.knobs.language, "default_fp_fusion", default)
        with install():
            assert torch.equal(apply("x*w+z", x, w, z), expected)


def test_of_two_products_the_left_one_is_fused():
    x, w, z = close_products(torch.float32)
    assert torch.equal(apply("x*w+z*z", x, w, z), apply("fma(x,w,z)", x, w, z * z))


@triton.jit
def broadcast_kernel(X, W, Z, Y, N: tl.constexpr):
    i = tl.arange(0, N)
    tile = i[:, None] * N + i[None, :]
    z = tl.load(Z + tile)
    tl.store(Y + tile, (tl.load(X + i) * tl.load(W + i))[:, None] + z)
    tl.store(Y + N * N + tile, z - tl.load(X) * tl.load(W))


def test_a_broadcast_product_is_fused():
    (x, w, _), z = close_products(torch.float32), torch.empty(16, 16)
    x, w = x[:16], w[:16]
    z[:] = -(x * w)[:, None] * (1 + torch.arange(16) / 64)
    y = torch.empty(2, 16, 16)
    broadcast_kernel[(1,)](x, w, z, y, 16)
    (a, b), c = (rationals(v) for v in (x, w)), [rationals(row) for row in z]
    for i in range(16):
        assert rationals(y[0, i]) == [nearest(a[i] * b[i] + v, 24, -126) for v in c[i]]
        assert rationals(y[1, i]) == [nearest(v - a[0] * b[0], 24, -126) for v in c[i]]


def test_a_negated_product():
    """Where Triton has fneg (3.9), one fma; before, 0 - x*w is the fma and the sum rounds again."""
    x, w, z = close_products(torch.float32)
    exact = [c - a * b for a, b, c in zip(*map(rationals, (x, w, z)), strict=True)]
    once, twice = [nearest(v, 24, -126) for v in exact], rationals(z - x * w)
    assert once != twice
    version = tuple(map(int, triton.__version__.split(".")[:2]))
    assert rationals(apply("-(x*w)+z", x, w, z)) == (once if version >= (3, 9) else twice)
