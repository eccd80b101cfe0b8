"""Dot models of the faithful interpreter, against rational arithmetic on single elements."""

from __future__ import annotations

from fractions import Fraction
from math import floor, log2

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tightrope.interpreter import DOT_MODELS, install


@triton.jit
def dot_kernel(
    A,
    B,
    C,
    O,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    HOW: tl.constexpr,
    PRECISION: tl.constexpr,
):
    m = tl.arange(0, M)[:, None]
    n = tl.arange(0, N)[None, :]
    a = tl.load(A + m * K + tl.arange(0, K)[None, :])
    b = tl.load(B + tl.arange(0, K)[:, None] * N + n)
    c = tl.load(C + m * N + n)
    if HOW == "accumulator":
        o = tl.dot(a, b, c, input_precision=PRECISION, out_dtype=C.dtype.element_ty)
    elif HOW == "added left":
        o = c + tl.dot(a, b, input_precision=PRECISION)
    elif HOW == "added right":
        o = tl.dot(a, b, input_precision=PRECISION) + c
    elif HOW == "chained":
        o = tl.dot(a, b, tl.dot(a, b, c, input_precision=PRECISION), input_precision=PRECISION)
    else:
        o = tl.dot(a, b, input_precision=PRECISION)
    tl.store(O + m * N + n, o)


def run(a, b, c, how="accumulator", precision="tf32"):
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty_like(c)
    dot_kernel[(1,)](a, b, c, out, m, n, k, how, precision)
    return out


def operands(dtype, m=16, n=16, k=64, spread=2.0, scale=1.0, seed=0):
    rng = np.random.default_rng(seed)

    def draw(*shape):
        x = rng.standard_normal(shape) * np.exp(rng.standard_normal(shape) * spread) * scale
        return torch.from_numpy(x.astype(np.float32))

    return draw(m, k).to(dtype), draw(k, n).to(dtype), draw(m, n)


def exponent(x):
    """floor(log2 |x|) of a non-zero rational."""
    e = floor(log2(abs(x.numerator)) - log2(x.denominator))
    while abs(x) < Fraction(2) ** e:
        e -= 1
    while abs(x) >= Fraction(2) ** (e + 1):
        e += 1
    return e


def toward_zero(x, unit):
    return (-1 if x < 0 else 1) * (abs(x) // unit) * unit


def hopper_element(row, column, c, group, bits, lowest=-126, kept=23):
    """One output of the tensor-core model, in rationals (exponents add, unnormalised).

    lowest: the exponent of the operands' smallest normal number, which subnormal ones have too.
    """
    total = Fraction(c)
    for k in range(0, len(row), group):
        pairs = [
            (Fraction(x), Fraction(y))
            for x, y in zip(row[k : k + group], column[k : k + group], strict=True)
        ]
        pairs = [(x, y) for x, y in pairs if x and y]
        largest = [max(exponent(x), lowest) + max(exponent(y), lowest) for x, y in pairs]
        largest += [max(exponent(total), -126)] if total else [-133]
        unit = Fraction(2) ** (max(largest) - bits)
        total = sum((toward_zero(x * y, unit) for x, y in pairs), toward_zero(total, unit))
        if total:
            total = toward_zero(total, Fraction(2) ** (max(exponent(total), -126) - kept))
    return float(total)


def nearest32(x):
    """A rational of the normal range rounded to float32, to nearest even."""
    if x == 0:
        return x
    unit = Fraction(2) ** (exponent(x) - 23)
    return round(x / unit) * unit


def some_elements(m=16, n=16):
    return [(i, (5 * i + 3 * j) % n) for i in range(m) for j in range(6)]


def doubles(*tensors):
    return (t.double().numpy() for t in tensors)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [1.0, 1e-4, 30.0])
def test_hopper_model_equals_rational_arithmetic(dtype, scale):
    a, b, c = operands(dtype, scale=scale)
    a[2] = 0
    b[:16, 3] = 0
    with install(dot="hopper"):
        out = run(a, b, c)
    x, y, z = doubles(a, b, c)
    lowest = -14 if dtype == torch.float16 else -126
    for i, j in some_elements():
        assert out[i, j] == hopper_element(x[i], y[:, j], z[i, j], 16, 25, lowest), (i, j)


def test_hopper_model_truncates_where_rounding_would_not():
    a, b, c = operands(torch.bfloat16, spread=3.0)
    with install(dot="hopper"):
        truncated = run(a, b, c)
    with install(dot="ieee"):
        rounded = run(a, b, c)
    assert (truncated != rounded).float().mean() > 0.2


@pytest.mark.parametrize("model", DOT_MODELS)
@pytest.mark.parametrize("how", ["added left", "added right"])
def test_an_addition_is_folded_into_the_accumulator(model, how):
    a, b, c = operands(torch.bfloat16)
    with install(dot=model):
        assert torch.equal(run(a, b, c, how), run(a, b, c, "accumulator"))


def test_chained_accumulators():
    a, b, c = operands(torch.float16)
    with install(dot="hopper"):
        assert torch.equal(run(a, b, c, "chained"), run(a, b, run(a, b, c)))


@pytest.mark.parametrize("model", ["ieee", "tf32"])
def test_half_operands_are_rounded_once_from_a_float64_sum(model):
    a, b, c = operands(torch.bfloat16, spread=0.5)
    x, y, z = doubles(a, b, c)
    with install(dot=model):
        out = run(a, b, c)
    for i, j in some_elements():
        exact = sum(
            Fraction(p) * Fraction(q) for p, q in zip(x[i], y[:, j], strict=True)
        ) + Fraction(z[i, j])
        assert Fraction(float(out[i, j])) == nearest32(exact)


def dropped(x):
    return (x.view(torch.int32) & -8192).view(torch.float32)


def test_tf32_reads_float32_without_the_low_bits():
    a, b, c = operands(torch.float32, k=32)
    x, y, z = doubles(dropped(a), dropped(b), c)
    with install(dot="tf32"):
        assert np.array_equal(run(a, b, c).numpy(), (x @ y + z).astype(np.float32))
    with install(dot="hopper"):
        out = run(a, b, c)
    for i, j in some_elements():
        assert out[i, j] == hopper_element(x[i], y[:, j], z[i, j], 8, 25)


def test_ieee_precision_is_a_chain_of_fma():
    a, b, c = operands(torch.float32, k=32, spread=1.0)
    with install(dot="hopper"):
        out = run(a, b, c, precision="ieee")
    for i, j in some_elements():
        total = Fraction(float(c[i, j]))
        for k in range(32):
            total = nearest32(total + Fraction(float(a[i, k])) * Fraction(float(b[k, j])))
        assert Fraction(float(out[i, j])) == total


@pytest.mark.parametrize("model", ["tf32", "hopper"])
def test_tf32x3_lies_between_tf32_and_float32(model):
    a, b, c = operands(torch.float32, k=32)
    x, y, z = doubles(a, b, c)
    size = np.abs(x) @ np.abs(y) + np.abs(z)
    error = {}
    for precision in ("tf32", "tf32x3", "ieee"):
        with install(dot=model):
            out = run(a, b, c, precision=precision).double().numpy()
        error[precision] = (np.abs(out - (x @ y + z)) / size).max()
    # Dropping 13 bits of each operand costs up to 2 * 2^-10; the split leaves lo*lo and sums.
    assert 2.0**-15 < error["tf32"] < 2.0**-9
    assert error["tf32x3"] < 34 * 2.0**-23
    assert error["ieee"] < 33 * 2.0**-24


def test_integer_and_float64_operands():
    rng = np.random.default_rng(0)
    a, b = (
        torch.from_numpy(rng.integers(-128, 128, s).astype(np.int8)) for s in ((16, 32), (32, 16))
    )
    c = torch.from_numpy(rng.integers(-1000, 1000, (16, 16)).astype(np.int32))
    with install():
        assert torch.equal(run(a, b, c), a.int() @ b.int() + c)
        x, y, z = (t.double() for t in (a, b, c))
        assert torch.equal(run(x, y, z), x @ y + z)


@pytest.mark.parametrize(("m", "model"), [(64, (32, 13, -6, 13)), (16, (16, 25, -14, 23))])
def test_fp8_operands(m, model):
    """An instruction of their own takes 64 rows; with fewer they go as fp16, by pairs."""
    a, b, c = operands(torch.float8_e4m3fn, m=m, k=64, spread=0.5)
    with install(dot="hopper"):
        out = run(a, b, c)
    x, y, z = doubles(a.float(), b.float(), c)
    if m < 64:
        order = sorted(range(64), key=lambda k: (k // 32, k // 2 % 2))
        x, y = x[:, order], y[order]
    for i, j in some_elements():
        assert out[i, j] == hopper_element(x[i], y[:, j], z[i, j], *model)


@triton.jit
def batched_kernel(A, B, O, Z: tl.constexpr, M: tl.constexpr, K: tl.constexpr):
    z = tl.arange(0, Z)[:, None, None]
    m = tl.arange(0, M)
    k = tl.arange(0, K)
    a = tl.load(A + z * M * K + m[None, :, None] * K + k[None, None, :])
    b = tl.load(B + z * K * M + k[None, :, None] * M + m[None, None, :])
    tl.store(O + z * M * M + m[None, :, None] * M + m[None, None, :], tl.dot(a, b))


def test_batched_dot_equals_single_dots():
    (a, b, c), (d, e, _) = (operands(torch.bfloat16, k=32, seed=s) for s in (0, 1))
    out = torch.empty(2, 16, 16)
    with install(dot="hopper"):
        batched_kernel[(1,)](torch.stack([a, d]), torch.stack([b, e]), out, 2, 16, 32)
        assert torch.equal(out, torch.stack([run(a, b, c, "alone"), run(d, e, c, "alone")]))
