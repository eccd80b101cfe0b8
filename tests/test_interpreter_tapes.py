"""Noted calls of `triton.language` give what Triton's own way gives, and stand for nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl
import triton.runtime.interpreter as ip
from test_interpreter_patch import stock

from tightrope.interpreter import install, tapes
from tightrope.interpreter.state import STATE

assert stock  # the fixture serves here too


@pytest.fixture
def faithful(stock):
    with install():
        yield


@triton.jit
def kernel(X, Y, Z, n, N: tl.constexpr, FACTOR: tl.constexpr):
    row, column = tl.arange(0, N), tl.arange(0, 16)
    at = row[:, None] * 16 + column[None, :]
    x = tl.load(X + at, mask=(row < n)[:, None] & (column[None, :] >= 0), other=-0.0)
    y = tl.load(Y + at)
    s = tl.dot(x, tl.trans(y), input_precision="ieee")
    top = tl.max(s, 1)
    s = tl.where(s == top[:, None], FACTOR, s - top[:, None]) + (x * 2.0 + top[:, None]).to(s.dtype)
    z = tl.fma(s, FACTOR, -tl.maximum(top, 0.5)[:, None]) / (1.0 + tl.exp2(-tl.abs(s)))
    tl.store(Z + at, z.to(Z.dtype.element_ty), mask=(at % 3 != 0) | (row[:, None] > n // 2))


def called(dtype=torch.float32, factor=3.0, fuse=False, n=11):
    torch.manual_seed(0)
    x, y = (torch.randn(16, 16).to(dtype) for _ in range(2))
    z = torch.zeros(16, 16, dtype=dtype)
    kernel[(2,)](x, y, z, n, 16, factor, enable_fp_fusion=fuse)
    return z.view(torch.int16 if dtype.itemsize == 2 else torch.int32).clone()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("fuse", [False, True])
def test_a_kernel_gives_the_same_bits_with_tapes_and_without(faithful, monkeypatch, dtype, fuse):
    STATE.tapes.clear()
    noted = [called(dtype, fuse=fuse) for _ in range(2)]
    assert sum(tape is not None for tape in STATE.tapes.values()) > 20
    monkeypatch.setattr(tapes, "_taped", tapes._direct)
    direct = called(dtype, fuse=fuse)
    assert torch.equal(noted[0], direct)
    assert torch.equal(noted[1], direct)


@triton.jit
def viewed_kernel(X, Z, N: tl.constexpr):
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    s = (tl.load(X + at) * 0.1)[:, :, None] + tl.load(X + i)[None, None, :]
    tl.store(Z + at[:, :, None] * N + i[None, None, :], s)


def test_a_product_with_a_number_is_fused_through_a_view(faithful):
    x, z = torch.randn(16, 16), torch.empty(16, 16, 16)
    viewed_kernel[(2,)](x, z, 16, enable_fp_fusion=True)  # the second program plays the tapes
    factor = torch.tensor(0.1).double()
    assert torch.equal(z, (x.double()[:, :, None] * factor + x[0].double()).float())


def test_numbers_of_equal_hash_have_tapes_of_their_own():
    keys = [tapes._kind(x) for x in (0, False, 0.0, -0.0, 1, True, 1.0, None, "0", tl.constexpr(1))]
    assert len(set(keys)) == len(keys)
    nan = float("nan")
    assert tapes._kind(nan) == tapes._kind(-nan + 0.0)
    with pytest.raises(tapes.Unknown):
        tapes._kind(object())


@triton.jit
def product_kernel(X, Y, Z, SAME: tl.constexpr):
    i = tl.arange(0, 16)
    x, y = tl.load(X + i), tl.load(Y + i)
    tl.store(Z + i, x - (x if SAME else y))


@pytest.mark.parametrize("first", [True, False])
def test_an_operand_in_two_places_is_not_taken_for_two(faithful, first):
    x, y, z = torch.arange(16.0), torch.ones(16), torch.empty(16)
    STATE.tapes.clear()
    for same in (first, not first):
        product_kernel[(1,)](x, y, z, same)
        assert torch.equal(z, x - (x if same else y))


def test_other_settings_of_the_builder_forget_the_tapes(faithful, monkeypatch):
    called()
    before = STATE.tapes
    called()
    assert STATE.tapes is before
    options = replace(ip.interpreter_builder.options, debug=True)
    monkeypatch.setattr(ip.interpreter_builder, "options", options)
    called()
    assert STATE.tapes is not before


def test_what_cannot_be_noted_is_refused():
    handle = ip.TensorHandle(torch.zeros(1).numpy(), tl.float32)
    with pytest.raises(tapes.Unknown):
        tapes.Recorder(ip.interpreter_builder, [handle, handle])
    recorder = tapes.Recorder(ip.interpreter_builder, [handle])
    stranger = ip.TensorHandle(handle.data, tl.float32)
    for call in (
        lambda: recorder.create_fadd(handle, stranger),  # an operand from nowhere
        lambda: recorder.binary_op,  # around the notes
        lambda: recorder.create_cat([handle], [handle]),
    ):
        with pytest.raises((tapes.Unknown, AttributeError)):
            call()
    assert recorder.create_fadd(handle, handle).data == 0


def test_only_elementwise_steps_do_without_a_view():
    view, add = ("create_broadcast", [0, 1], 2), ("create_add", [2, 3], 4)
    assert tapes._shortened([view, add], 4) == [("create_add", [0, 3], 4)]
    assert tapes._shortened([view, add], 2) == [view, add]
    load = ("create_load", [2, 3], 5)
    assert tapes._shortened([view, add, load], 4) == [view, add, load]


def test_the_number_of_tapes_is_bounded(faithful, monkeypatch):
    monkeypatch.setattr(tapes, "MOST", 8)
    STATE.tapes.clear()
    assert torch.equal(called(factor=1.5), called(factor=1.5))
    assert len(STATE.tapes) <= 8
