"""Casts of the faithful interpreter, against torch's CPU casts and against rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tightrope.interpreter import install

BLOCK = 65536
ALL_BF16 = torch.arange(-32768, 32768).to(torch.int16).view(torch.bfloat16)
ALL_FP16 = ALL_BF16.view(torch.float16)


@pytest.fixture(autouse=True)
def faithful():
    with install():
        yield


@triton.jit
def cast_kernel(X, Y, n, TOWARD_ZERO: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + i, mask=i < n)
    if TOWARD_ZERO:
        y = x.to(Y.dtype.element_ty, fp_downcast_rounding="rtz")
    else:
        y = x.to(Y.dtype.element_ty)
    tl.store(Y + i, y, mask=i < n)


def cast(x, dtype, toward_zero=False):
    y = torch.empty(x.shape, dtype=dtype)
    cast_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, y, x.numel(), toward_zero, BLOCK=BLOCK)
    return y


def bits(x):
    return x.view(
        {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    )


def assert_same(got, expected):
    """Same bits; NaN wherever NaN is expected, of any payload."""
    nan = expected.isnan()
    assert torch.equal(got.isnan(), nan)
    differ = (bits(got) != bits(expected)) & ~nan
    assert not differ.any(), (got[differ][:5], expected[differ][:5])


def tie_heavy_float32():
    """Every bfloat16 and fp16 number, ties between neighbours, one ulp beside them, random bits."""
    top = np.arange(65536, dtype=np.uint32) << 16
    parts = [top + d for d in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]
    half = np.arange(65536, dtype=np.uint16).view(np.float16)
    with np.errstate(all="ignore"):
        tie = (
            half.astype(np.float32) + np.nextafter(half, np.float16(np.inf)).astype(np.float32)
        ) / 2
        sides = [np.nextafter(tie, np.float32(s)) for s in (-np.inf, np.inf)]
    parts += [v.view(np.uint32) for v in (tie, *sides)]
    special = [
        np.inf,
        -np.inf,
        np.nan,
        -0.0,
        65504,
        65519.996,
        65520,
        3.3895314e38,
        3.3961776e38,
        1e-45,
    ]
    parts.append(np.array(special, np.float32).view(np.uint32))
    parts.append(np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint32))
    return torch.from_numpy(np.concatenate(parts).view(np.float32))


def nearest(x, precision, emin):
    """The rational x rounded to nearest even (no overflow): scaled to an integer, Python rounds."""
    if x == 0:
        return 0.0
    exponent = emin
    while abs(x) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    unit = Fraction(2) ** (exponent - precision + 1)
    return float(round(x / unit) * unit)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_every_bf16_value_converts_as_in_torch(dtype):
    assert_same(cast(ALL_BF16, dtype), ALL_BF16.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_fp16_value_converts_as_in_torch(dtype):
    assert_same(cast(ALL_FP16, dtype), ALL_FP16.to(dtype))


def test_bf16_bits_survive_load_and_store():
    assert torch.equal(bits(cast(ALL_BF16, torch.bfloat16)), bits(ALL_BF16))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_float32_rounds_to_nearest_even(dtype):
    x = tie_heavy_float32()
    assert_same(cast(x, dtype), x.to(dtype))


def test_bf16_rounding_equals_integer_arithmetic_on_bits():
    x = tie_heavy_float32()
    x = x[~x.isnan()]
    b = x.view(torch.int32).long() & 0xFFFFFFFF
    expected = (b + 0x7FFF + (b >> 16 & 1)) >> 16
    assert torch.equal(bits(cast(x, torch.bfloat16)).long() & 0xFFFF, expected)


def test_rounding_toward_zero_drops_the_low_bits():
    x = tie_heavy_float32()
    x = x[x.isfinite()]
    expected = (x.view(torch.int32).long() & 0xFFFFFFFF) >> 16
    assert torch.equal(bits(cast(x, torch.bfloat16, True)).long() & 0xFFFF, expected)


@pytest.mark.parametrize(
    ("dtype", "precision", "emin"),
    [(torch.bfloat16, 8, -126), (torch.float16, 11, -14), (torch.float32, 24, -126)],
)
def test_float64_rounds_once(dtype, precision, emin):
    """A float64 just beside a tie is the case in which going through float32 rounds twice."""
    rng = np.random.default_rng(1)
    x = []
    for exponent in (0, 1, 7, emin, emin - 1, emin - 3, emin - precision):
        unit = 2.0 ** (max(exponent, emin) - precision + 1)
        tie = (np.floor(2.0**exponent / unit) + rng.integers(0, 60, 30) + 0.5) * unit
        for side in (-1, 0, 1):
            x += [tie * (1 + side * 2.0**-e) for e in (26, 40, 51)]
    x = np.concatenate(x)
    x = np.concatenate([x, -x])
    expected = [nearest(Fraction(float(v)), precision, emin) for v in x]
    assert cast(torch.from_numpy(x), dtype).double().tolist() == expected


def test_float64_beyond_the_range():
    x = torch.tensor(
        [1e300, -1e300, 1e-300, -1e-300, float("inf"), float("nan")], dtype=torch.float64
    )
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        assert_same(cast(x, dtype), x.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8_rounds_and_saturates(dtype):
    x = tie_heavy_float32()
    x = x[~x.isnan()]
    largest = torch.finfo(dtype).max
    assert_same(cast(x, dtype).float(), x.clamp(-largest, largest).to(dtype).float())
    every = torch.arange(256).to(torch.uint8).view(dtype)
    for wide in (torch.float32, torch.bfloat16, torch.float16):
        assert_same(cast(every, wide), every.to(wide))


def test_float_to_integer_truncates_and_saturates():
    x = torch.tensor([1.9, -1.9, 3e9, -3e9, float("nan"), float("inf"), 2147483520.0, -0.5])
    low, high = -(2**31), 2**31 - 1
    assert cast(x, torch.int32).tolist() == [1, -1, high, low, 0, high, 2147483520, 0]
    assert cast(x, torch.int64).tolist() == [
        1, -1, 3000000000, -3000000000, -(2**63), 2**63 - 1, 2147483520, 0,
    ]  # fmt: skip
    assert cast(torch.tensor([300.0, -300.0, 70000.0]), torch.int8).tolist() == [44, -44, -1]


@pytest.mark.parametrize(
    ("dtype", "precision"), [(torch.bfloat16, 8), (torch.float32, 24), (torch.float64, 53)]
)
def test_integers_round_once(dtype, precision):
    rng = np.random.default_rng(2)
    shift = rng.integers(precision + 1, 62, 500)
    tie = (2 * rng.integers(0, 64, 500) + 1 + (1 << precision)) << (shift - precision)
    x = np.concatenate([tie, tie + 1, tie - 1, -tie, [2**63 - 1, -(2**63), 257, 2**53 + 1]])
    expected = [nearest(Fraction(int(v)), precision, -126) for v in x]
    assert cast(torch.from_numpy(x), dtype).double().tolist() == expected
