"""Functions, comparisons, reductions and tiles of the faithful interpreter, against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from tightrope.interpreter import install

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


@pytest.fixture(autouse=True)
def faithful():
    with install():
        yield


def draw(dtype, n=256, seed=0, spread=2.0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(n) * np.exp(rng.standard_normal(n) * spread)
    return torch.from_numpy(x).to(dtype)


@triton.jit
def function_kernel(X, W, Z, Y, OP: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(X + i)
    w = tl.load(W + i)
    z = tl.load(Z + i)
    if OP == "max":
        y = tl.maximum(x, w)
    elif OP == "min":
        y = tl.minimum(x, w)
    elif OP == "where":
        y = tl.where(x < w, x, z)
    elif OP == "abs":
        y = tl.abs(x)
    elif OP == "neg":
        y = -x
    elif OP == "clamp":
        y = tl.clamp(x, w, z)
    elif OP == "exp":
        y = tl.exp(x)
    elif OP == "exp2":
        y = tl.exp2(x)
    elif OP == "log":
        y = tl.log(x)
    elif OP == "cos":
        y = tl.cos(x)
    elif OP == "sqrt":
        y = tl.sqrt(x)
    elif OP == "umulhi":
        y = tl.umulhi(x, w)
    elif OP == "tanh":
        y = libdevice.tanh(x)
    elif OP == "pow":
        y = libdevice.pow(tl.abs(x), 2.0)
    elif OP == "ilogb":
        y = libdevice.ilogb(x)
    tl.store(Y + i, y)


def apply(op, x, w=None, z=None, **options):
    w, z = x if w is None else w, x if z is None else z
    y = torch.empty_like(x)
    function_kernel[(1,)](x, w, z, y, op, x.numel(), **options)
    return y


def test_exp_multiplies_in_float32_first():
    x = torch.linspace(-80, 80, 256)
    log2_e = torch.tensor(1.4426950408889634)
    assert torch.equal(apply("exp", x), ((x * log2_e).double()).exp2().float())


def test_exp2_and_sqrt_flush_subnormals():
    x = torch.tensor([-126.0, -126.5, -149.0, -200.0])
    assert apply("exp2", x).tolist() == [2.0**-126, 0, 0, 0]
    assert apply("sqrt", torch.tensor([2.0**-126, 2.0**-128])).tolist() == [2.0**-63, 0]


@pytest.mark.parametrize(
    ("op", "function"), [("log", torch.log), ("cos", torch.cos), ("tanh", torch.tanh)]
)
def test_elementary_functions_are_rounded_from_float64(op, function):
    x = draw(torch.float32).abs() * 100
    assert torch.equal(apply(op, x), function(x.double()).float())


def test_libdevice_functions_without_a_stand_in_are_refused():
    assert torch.equal(
        apply("pow", draw(torch.float32)), (draw(torch.float32).double() ** 2).float()
    )
    with pytest.raises(Exception, match="ilogb has no stand-in"):
        apply("ilogb", draw(torch.float32))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_comparisons_and_signs(dtype):
    x, w, z = draw(dtype), draw(dtype, seed=1), draw(dtype, seed=2)
    x[0], w[1] = float("nan"), float("nan")
    assert torch.equal(apply("max", x, w), torch.fmax(x, w))
    assert torch.equal(apply("min", x, w), torch.fmin(x, w))
    assert torch.equal(
        apply("where", x, w, z).nan_to_num(9), torch.where(x < w, x, z).nan_to_num(9)
    )
    assert torch.equal(apply("abs", x)[1:], x.abs()[1:])
    assert torch.equal(apply("neg", x)[1:], -x[1:])
    assert torch.equal(apply("clamp", x, -z.abs(), z.abs())[1:], x.clamp(-z.abs(), z.abs())[1:])


def test_minus_zero_is_below_zero():
    x, w = torch.tensor([0.0, -0.0, -0.0, 0.0]), torch.tensor([-0.0, 0.0, -0.0, 0.0])
    assert apply("max", x, w).signbit().tolist() == [False, False, True, False]
    assert apply("min", x, w).signbit().tolist() == [True, True, True, False]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint32, torch.uint64])
def test_umulhi_is_the_high_half_of_the_unsigned_product(dtype):
    bits = torch.iinfo(dtype).bits
    signed = {32: np.int32, 64: np.int64}[bits]
    numpy_dtype = (
        {32: np.uint32, 64: np.uint64}[bits] if dtype in (torch.uint32, torch.uint64) else signed
    )
    rng = np.random.default_rng(4)
    x, w = (
        rng.integers(0, 2**bits, 64, dtype=np.uint64 if bits == 64 else np.uint32) for _ in "xw"
    )
    x[:4], w[:4] = 2**bits - 1, [0, 1, 2, 2**bits - 1]
    got = apply("umulhi", *(torch.from_numpy(v.view(numpy_dtype)) for v in (x, w)))
    expected = [int(a) * int(b) >> bits for a, b in zip(x, w, strict=True)]
    assert [v % 2**bits for v in got.tolist()] == expected


@triton.jit
def scalar_kernel(Y, a, b):
    tl.store(Y, a * b)
    tl.store(Y + 1, a)


def test_scalar_arguments_are_float32():
    y = torch.empty(2, dtype=torch.float64)
    a, b = np.float32(0.7), np.float32(1.3)
    assert a * b != np.float32(0.7 * 1.3)
    scalar_kernel[(1,)](y, 0.7, 1.3)
    assert y.tolist() == [float(a * b), float(a)]


@triton.jit
def sums_kernel(X, S, C, N: tl.constexpr):
    x = tl.load(X + tl.arange(0, N))
    tl.store(S, tl.sum(x, 0))
    tl.store(S + 1, tl.max(x, 0))
    tl.store(S + 2, tl.min(x, 0))
    tl.store(S + 3, tl.argmax(x, 0))
    tl.store(C + tl.arange(0, N), tl.cumsum(x, 0))
    tl.store(C + N + tl.arange(0, N), tl.sort(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_reductions_stay_in_the_type(dtype):
    x = draw(dtype, 128)
    s, c = torch.empty(4), torch.empty(256, dtype=dtype)
    sums_kernel[(1,)](x, s, c, 128)
    total = x
    while len(total) > 1:
        total = total[: len(total) // 2] + total[len(total) // 2 :]
    assert s.tolist() == [total.item(), x.max().item(), x.min().item(), x.argmax().item()]
    assert torch.equal(c[128:], x.sort().values)
    ones = torch.ones(128, dtype=dtype)
    sums_kernel[(1,)](ones, s, c, 128)
    assert torch.equal(c[:128], torch.arange(1, 129).to(dtype))


@triton.jit
def tile_kernel(A, B, Y, n, stride, ROWS: tl.constexpr, COLS: tl.constexpr):
    pid = tl.program_id(0)
    if pid < n:
        source = A
        row = pid
    else:
        source = B
        row = pid - n
    r = tl.arange(0, ROWS).to(tl.int64)
    offsets = r[:, None] * stride + tl.arange(0, COLS)[None, :]
    x = tl.load(source + row.to(tl.int64) * ROWS * stride + offsets)
    even, odd = tl.split(tl.reshape(x, (ROWS, COLS // 2, 2)))
    turned = tl.interleave(-odd, even)
    joined = tl.reshape(tl.join(even, odd), (ROWS, COLS))
    out = Y + pid * ROWS * COLS + r[:, None] * COLS + tl.arange(0, COLS)[None, :]
    tl.store(out, turned + joined * tl.sum(joined, 1)[:, None])


@pytest.mark.parametrize("dtype", DTYPES)
def test_tiles_views_and_pointers_chosen_by_program(dtype):
    a, b = draw(dtype, 2 * 4 * 8).reshape(2, 4, 8), draw(dtype, 4 * 8, seed=1).reshape(1, 4, 8)
    y = torch.empty(3, 4, 8, dtype=dtype)
    tile_kernel[(3,)](a, b, y, 2, 8, 4, 8, enable_fp_fusion=False)
    x = torch.cat([a, b])
    turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
    total = x
    while total.shape[-1] > 1:
        total = total[..., : total.shape[-1] // 2] + total[..., total.shape[-1] // 2 :]
    assert torch.equal(y, turned + x * total)
