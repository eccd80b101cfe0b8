"""Launches on the faithful interpreter: arguments, threads, failures, autotuning, descriptors."""

from __future__ import annotations

import threading
import warnings

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from test_interpreter_patch import muladd, once, snapshot, stock

from tightrope.interpreter import install

assert stock  # the fixture serves here too


def test_kernels_overflow_in_silence():
    with install(), warnings.catch_warnings():
        warnings.simplefilter("error")
        x = torch.tensor([3e38, float("inf"), float("nan"), 0.0] * 16)
        y = torch.empty(64, dtype=torch.float16)
        extremes_kernel[(1,)](x, y, 64)
        assert y[:4].isnan().tolist() == [False, True, True, False]


@triton.jit
def extremes_kernel(X, Y, N: tl.constexpr):
    x = tl.load(X + tl.arange(0, N))
    nothing = tl.max(tl.where(x == x, float("nan"), x), 0)
    tl.store(
        Y + tl.arange(0, N), (x * x - x + tl.where(nothing == 0, 1.0, 0.0)).to(Y.dtype.element_ty)
    )


@triton.autotune(configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["n"])
@triton.jit
def autotuned_kernel(X, Y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(Y + i, tl.load(X + i, mask=i < n), mask=i < n)


def test_autotuning_needs_no_driver_and_takes_the_first_configuration():
    x, y = torch.randn(300).to(torch.bfloat16), torch.zeros(300, dtype=torch.bfloat16)
    with install():
        autotuned_kernel[lambda meta: (triton.cdiv(300, meta["BLOCK"]),)](x, y, 300)
    assert autotuned_kernel.best_config.kwargs == {"BLOCK": 64}
    assert torch.equal(x, y)


@triton.jit
def descriptor_kernel(X, Y, M, N, ROWS: tl.constexpr, COLS: tl.constexpr):
    source = tl.make_tensor_descriptor(X, shape=[M, N], strides=[N, 1], block_shape=[ROWS, COLS])
    target = tl.make_tensor_descriptor(Y, shape=[M, N], strides=[N, 1], block_shape=[ROWS, COLS])
    for i in tl.range(0, M, ROWS):
        target.store([i, 0], source.load([i, 0]) * 2.0)


def test_tensor_descriptors():
    x = torch.randn(32, 16).to(torch.bfloat16)
    y = torch.zeros_like(x)
    with install():
        descriptor_kernel[(1,)](x, y, 32, 16, 16, 16)
    assert torch.equal(y, 2 * x)


def test_launches_of_several_threads_take_turns():
    found = []

    def work():
        for _ in range(20):
            found.append(torch.equal(muladd(), once()))

    with install(contract=True):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [True] * 80


@triton.jit
def annotated_kernel(
    Y, n: tl.int64, f: tl.float64, b: tl.bfloat16, plain, real, SIZE: tl.constexpr
):
    i = tl.arange(0, SIZE)
    tl.store(Y + i, (i * (n * SIZE)).to(tl.float64))
    tl.store(Y + SIZE, f)
    tl.store(Y + SIZE + 1, b.to(tl.float64))
    tl.store(Y + SIZE + 2, (plain * SIZE).to(tl.float64))
    tl.store(Y + SIZE + 3, real.to(tl.float64))


def test_scalar_arguments_have_the_annotated_type():
    """Unannotated, an integer is as narrow as its value allows, and then it wraps, as on a GPU."""
    y = torch.zeros(20, dtype=torch.float64)
    with install():
        annotated_kernel[(1,)](y, 2**28, 0.1, b=0.1, plain=2**28, real=0.1, SIZE=16)
    assert y[:16].tolist() == [i * 2.0**32 for i in range(16)]
    assert y[16:].tolist() == [0.1, float(torch.tensor(0.1).bfloat16()), 0, float(np.float32(0.1))]
    with install(), pytest.raises(OverflowError):
        annotated_kernel[(1,)](y, 2**63, 0.1, 0.1, 1, 0.1, 16)
    with install(), pytest.raises(TypeError, match=r"too many|positional"):
        annotated_kernel[(1,)](y, 1, 0.1, 0.1, 1, 0.1, 16, 17)


@triton.jit
def failing_kernel(X, N: tl.constexpr):
    x = tl.load(X + tl.arange(0, N))
    tl.static_assert(N < 4, "too many")
    tl.store(X + tl.arange(0, N), x)


def test_a_kernel_that_raises_leaves_nothing_behind():
    with install(contract=True):
        before = snapshot()
        for _ in range(2):
            with pytest.raises(Exception, match="too many"):
                failing_kernel[(1,)](torch.zeros(16), 16, enable_fp_fusion=False)
        assert snapshot() == before
        assert torch.equal(muladd(), once())
