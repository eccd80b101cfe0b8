"""The tensor-core model: its fast path against its definition, both also for extreme numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from fractions import Fraction
from functools import partial
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from device_arithmetic_data import KINDS, Draw
from test_interpreter_dots import exponent, hopper_element

from tightrope.interpreter import dots, tensor_core
from tightrope.interpreter.rounding import fma, round_to
from tightrope.interpreter.tensor_core import HALF

DTYPES = {
    "fp16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "tf32": np.dtype(np.float32),
    "fp8": np.dtype(ml_dtypes.float8_e4m3fn),
}
# Kinds that the fast path must take, unless the instruction keeps fewer bits than an accumulator.
USUAL = ("spread 2^±0", "zeros", "padded", "signed zeros", "accumulator 2^24", "few bits")

# What an NVIDIA H200 gave (2026-11-30) for one output of 16 rows of fp8: type, a, b, accumulator,
# result, and the result with k in order. Bit patterns.
RECORDED = (
    (
        "float8_e4m3fn",
        "472db1ae301eaeb11f1897940a1737d1472db1ae301eaeb11f1897940a1737d1",
        "b337a3142638b822ad3b2518aa2b29b633b72394a6b838a22dbba5982aaba936",
        0x38cb583c, 0x38cb4000, 0x38cb0000,
    ),
    (
        "float8_e5m2",
        "0404048500078485840490898404070a81020483020089010300818d03848584",
        "b8b9bac030bab4c4b3c3acb239af2c3735253b3ac0342e3cb939c2b2bec63739",
        0x36e3f675, 0x39e75fda, 0x39e75fd9,
    ),
    (
        "float8_e5m2",
        "2d3c3c479aafb7c4a926459933c531b530baaeae3a4447323d3327c930252eb4",
        "ba382d3bbcb933a936363ea7b93a3fb93cb83f3cb9b6b540b5a7b740313cba3d",
        0x3e841589, 0xc152e48d, 0xc152e48e,
    ),
)  # fmt: skip


@pytest.fixture(autouse=True)
def silent():
    with np.errstate(all="ignore"):
        yield


def drawn(kind, name, m=16, n=16, k=64, out=np.float32):
    dtype = DTYPES[name]
    top = float(ml_dtypes.finfo(dtype).max)
    a, b, c = (x[0] for x in KINDS[kind](Draw(3, 1, m, n, k, dtype)))
    a, b = (round_to(np.where(np.isfinite(x), x.clip(-top, top), x), dtype) for x in (a, b))
    if name == "tf32":
        a, b = dots.drop_to_tf32(a), dots.drop_to_tf32(b)
    return a, b, c.astype(out)


def same(x, y):
    bits = f"i{x.itemsize}"
    return np.array_equal(
        np.where(np.isnan(x), 0, x.view(bits)), np.where(np.isnan(y), 0, y.view(bits))
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", DTYPES)
def test_the_fast_path_is_the_definition(name, kind):
    a, b, c = drawn(kind, name)
    core = tensor_core.core_for(a.dtype, 64, False)
    fast, slow = tensor_core._fast(a, b, c, core), tensor_core._stepwise(a, b, c, core)
    assert fast is None or same(fast, slow)
    assert fast is not None or kind not in USUAL or name == "fp8"


@pytest.mark.parametrize("name", ["fp16", "bf16", "tf32"])
@pytest.mark.parametrize(
    "kind", ["subnormal operand", "some subnormals", "products near 2^-134", "tiny accumulator"]
)
def test_subnormal_numbers_against_rationals(name, kind):
    a, b, c = drawn(kind, name, k=32)
    core = tensor_core.core_for(a.dtype, 16, False)
    got = tensor_core.tensor_core(a, b, c, core)
    lowest = -14 if name == "fp16" else -126
    x, y, z = (v.astype(float) for v in (a, b, c))
    for i in range(16):
        expected = hopper_element(x[i], y[:, 5], z[i, 5], core.group, core.bits, lowest)
        assert got[i, 5] == expected


def test_subnormal_operands_are_aligned_by_the_exponent_of_their_format():
    """2^-24 * 1 beside 2^-14 * 2^-14: by leading bits, 2^-28 is 4 places down; by format, 14."""
    a = np.zeros((1, 16), np.float16)
    a[0, :2] = 2.0**-24, 2.0**-14
    b = np.ones((16, 1), np.float16)
    b[1] = 2.0**-14 * (1 + 2.0**-10)
    c = np.zeros((1, 1), np.float32)
    by_format = tensor_core.tensor_core(a, b, c, tensor_core.HALF._replace(bits=20))
    by_bits = tensor_core.tensor_core(a, b, c, tensor_core.HALF._replace(bits=20, normalised=True))
    assert by_format == 2.0**-24 + 2.0**-28
    assert by_bits == 2.0**-24 + 2.0**-28 + 2.0**-38


def test_a_step_is_not_aligned_below_the_floor():
    a, b = (np.full((16, 16), 2.0**-79, ml_dtypes.bfloat16) for _ in "ab")
    c = np.zeros((16, 16), np.float32)
    core = tensor_core.HALF
    assert not tensor_core.tensor_core(a, b, c, core).any()  # 2^-158 is the last bit at 2^-133
    assert not tensor_core.tensor_core(2 * a, b, c, core).any()  # 16 * 2^-157 < 2^-149
    a = (a.astype(float) * 2.0**6).astype(a.dtype)
    assert (tensor_core.tensor_core(a, b, c, core) == 2.0**-148).all()


def test_float16_accumulators_are_rounded_to_nearest_after_each_step():
    a, b, c = drawn("spread 2^±4", "fp16", k=32, out=np.float16)
    a, b = (x / np.float16(16) for x in (a, b))
    got = tensor_core.tensor_core(a, b, c, tensor_core.HALF)
    for i in range(16):
        total = float(c[i, 3])
        for k in (slice(0, 16), slice(16, 32)):
            # The sum in a step is exact in 25 bits below its largest term; kept whole here.
            total = hopper_element(
                a[i, k].astype(float), b[k, 3].astype(float), total, 16, 25, -14, kept=60
            )
            total = float(np.float16(total))
        assert float(got[i, 3]) == total


@pytest.mark.parametrize(("name", "a", "b", "c", "device", "in_order"), RECORDED)
def test_fp8_of_16_rows_gives_the_bits_of_an_h200(name, a, b, c, device, in_order):
    a, b = (np.frombuffer(bytes.fromhex(v), np.dtype(getattr(ml_dtypes, name))) for v in (a, b))
    c = np.array([[c]], np.uint32).view(np.float32)
    got = dots.dot(a[None], b[:, None], c, precision="tf32", model="hopper")
    plain = tensor_core.tensor_core(a[None].astype("f2"), b[:, None].astype("f2"), c, HALF)
    assert [int(x.view(np.uint32)[0, 0]) for x in (got, plain)] == [device, in_order]


def test_lanes_take_places_along_k_in_turn():
    order = dots.by_lanes(np.arange(64), 0)
    assert list(order[:16]) == [0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29]
    assert list(order[16:32]) == [k + 2 for k in order[:16]]
    assert list(order[32:]) == [k + 32 for k in order[:32]]
    assert list(dots.by_lanes(np.arange(16), 0, run=1)) == [*range(0, 16, 2), *range(1, 16, 2)]
    assert list(dots.by_lanes(np.arange(24), 0)) == list(range(24))


@pytest.mark.parametrize(
    ("name", "out", "power", "least"), [("bf16", "f4", -76, -149), ("fp16", "f2", -14, -24)]
)
def test_a_negative_sum_underflows_to_positive_zero(name, out, power, least):
    """As on an H200; a sum of twice the least number keeps its sign."""
    a, b = np.zeros((1, 16), DTYPES[name]), np.zeros((16, 1), DTYPES[name])
    a[0, 0], b[0, 0] = -(2.0**power), 2.0**power
    c = np.full((1, 1), -0.0, out)
    got = tensor_core.tensor_core(a, b, c, HALF)
    assert got == 0
    assert not np.signbit(got)
    b[0, 0] = 2.0 ** (least + 1 - power)
    assert tensor_core.tensor_core(a, b, c, HALF) == -(2.0 ** (least + 1))


def test_infinities_and_nan_pass_through():
    a, b, c = drawn("spread 2^±0", "bf16")
    a[2, 7] = 0  # for 0 * -inf
    clean = tensor_core.tensor_core(a, b, c, tensor_core.HALF)
    a[0, 3], a[1, 40], b[7, 2], c[5, 5] = np.inf, np.nan, -np.inf, np.inf
    got = tensor_core.tensor_core(a, b, c, tensor_core.HALF)
    expected = a.astype(float) @ b.astype(float) + c
    touched = ~np.isfinite(expected)
    assert touched.sum() == 16 + 16 + 14 + 1
    assert np.array_equal(got[touched], expected[touched].astype("f4"), equal_nan=True)
    assert same(got[~touched], clean[~touched])


def test_overflow_gives_an_infinity_that_stays():
    """A step of 16 products of 2^124 is 2^128, too large; with -2^127 as accumulator it is not."""
    a, b = np.full((16, 32), 2.0**62, DTYPES["bf16"]), np.full((32, 16), 2.0**62, DTYPES["bf16"])
    c = np.full((16, 16), -(2.0**127), np.float32)
    core = tensor_core.HALF
    assert np.isposinf(tensor_core.tensor_core(a, b, c, core)).all()
    assert (tensor_core.tensor_core(a[:, :16], b[:16], c, core) == -c).all()
    a[:, 16:] = -a[:, 16:]
    assert np.isposinf(tensor_core.tensor_core(a, b, -c, core)).all()
    assert (tensor_core.tensor_core(a, b, c, core) == c).all()


@pytest.mark.parametrize("kind", ["spread 2^±8", "few bits", "products near 2^-134"])
def test_the_quick_chain_is_a_chain_of_fma(kind):
    a, b, c = (x[0].astype(np.float32) for x in KINDS[kind](Draw(3, 1, 16, 16, 64, DTYPES["tf32"])))
    quick, chain = dots._usual_chain(a, b, c), dots._fma_chain(a, b, c)
    assert quick is None or same(quick, chain)
    assert (quick is None) == (kind == "products near 2^-134")


def test_a_sum_on_a_tie_is_not_left_to_two_roundings():
    """1 + 2^-24 + 2^-60: float64 drops the last, and float32 would go to even."""
    x, y = np.float32([[1 + 2.0**-12]]), np.float32([[2.0**-24 * (1 - 2.0**-12)]])
    z = np.float32([[1]])
    exact = Fraction(float(x[0, 0])) * Fraction(float(y[0, 0])) + 1
    assert exponent(exact) == 0
    assert fma(x, y, z, np.dtype(np.float32)) == 1
    up = np.float32([[2.0**-24 * (1 + 2.0**-12)]])
    assert fma(np.float32([[1.0]]), up, z, np.dtype(np.float32)) == 1 + 2.0**-23


def test_float64_dots_are_a_chain_of_fma():
    rng = np.random.default_rng(0)
    a, b, c = (
        rng.standard_normal((16, 16)),
        rng.standard_normal((16, 16)),
        rng.standard_normal((16, 16)),
    )
    got = dots.dot(a, b, c, precision="ieee", model="hopper")
    for k in range(16):
        c = fma(a[:, k, None], b[None, k], c, np.dtype(np.float64))
    assert np.array_equal(got, c)


def test_the_recording_agrees_with_itself(tmp_path):
    """Without a GPU: all of its kernels and comparisons, on the interpreter."""
    script = Path(__file__).parent / "record_device_arithmetic.py"
    env = os.environ | {
        "TRITON_INTERPRET": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join([str(script.parents[1]), *sys.path]),
    }
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "found.json")],
        env=env, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    records = json.loads((tmp_path / "found.json").read_text())["records"]
    assert len(records) > 300
    assert [r for r in records if "error" in r or r.get("mismatches")] == []
    assert partial(max, key=len)([r["probe"] for r in records]) == "multiply and add"
