"""The bundled gradients of PoPE attention where equality is exact: bytes against bytes.

How far they may be from the truth is for laws and budgets, and for test_autograd_pope.py, where
autograd's of the formula in float64 are near.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from attention_calls import HOME, normal, same, seen
from pope_calls import polar
from test_attention_backward_kernels import GENERAL, INF, LAYOUTS, MASKS, NAN
from test_pope_attention_kernels import Allocated

from tightrope import attention_tiles, pope_backward_call, sequence_call
from tightrope.attention_backward_tiles import Config, Tile
from tightrope.impls.attention_backward import attention_backward
from tightrope.impls.pope_attention import pope_attention
from tightrope.impls.pope_attention_backward import pope_attention_backward
from tightrope.pope_backward_steps import SIGMOID_ULP, sigmoid
from tightrope.pope_backward_tiles import config

Given = dict[str, Any]
FULL: Given = {"delta": 4, "head_dim": 40, "rotary_dim": 17, "head_dim_v": 24, "per_batch": True}
NAMES = ("q", "k", "v", "delta")


def given(options: Given | None = None, **shape: Any) -> Given:
    """dout, and the tensors of `pope_attention` with what it makes of them."""
    tensors = polar(**shape)
    out, lse = pope_attention(**tensors, **(options or {}))
    dout = normal(*out.shape, dtype=str(out.dtype).removeprefix("torch."), seed=3)
    return {"dout": dout, **tensors, "out": out, "lse": lse}


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_a_row_and_a_key_do_not_feel_their_tiles(mask: Any) -> None:
    m, offset, options, _ = mask
    options = {**options, "q_offset": offset}
    x = given(options, seqlen_q=m, delta=4)
    usual = pope_attention_backward(**x, **options)[:3]
    wide = Config(Tile(64, 16, 4, 1), Tile(32, 16, 4, 1))
    assert same(pope_attention_backward(**x, **options, blocks=wide)[:3], usual)


def test_a_phase_of_zero_is_no_phase() -> None:
    x = given(delta=2, head_dim=32)
    none = pope_attention_backward(**{**x, "delta": None})
    zero = pope_attention_backward(**{**x, "delta": torch.zeros_like(x["delta"])})
    assert same(zero[:3], none[:3])
    assert none[3] is None
    assert zero[3].any()


@pytest.mark.skipif(HOME != "cpu", reason="tiles differ, and with them the order of sums on a GPU")
def test_plain_features_are_attention_s() -> None:
    """One polar feature has a magnitude of 0 on both sides, so that only the plain ones count."""
    x = given(rotary_dim=1, head_dim=17, dtype="float32")
    for name in ("q", "k"):
        x[name][..., 0] = -200.0
    names = ("dout", "q", "k", "v", "out", "lse")
    grads = pope_attention_backward(**x)[:3]
    assert not any(grad[..., 0].any() for grad in grads[:2])
    rest = {n: x[n][..., 1:] if n in "qk" else x[n] for n in names}
    plain = attention_backward(**rest, softmax_scale=17**-0.5)
    assert same([*(grad[..., 1:] for grad in grads[:2]), grads[2]], plain)


@triton.jit
def sigmoid_kernel(x, y, length, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, sigmoid(tl.load(x + at, mask=at < length, other=0.0)), mask=at < length)


def test_a_sigmoid_is_as_declared() -> None:
    """Of every finite float16, and of float32 between and beyond; NaN stays NaN."""
    every = torch.arange(2**16).to(torch.uint16).view(torch.float16).float()
    between = torch.linspace(-90, 90, 2**15) * (1 + 2.0**-12)
    x = torch.cat([every[every.isfinite()], between, torch.tensor([INF, -INF, 3e38, -3e38])])
    x = x.to(HOME)
    found = torch.empty_like(x)
    sigmoid_kernel[(triton.cdiv(len(x), 1024),)](x, found, len(x), 1024)
    exact = torch.where(x < 0, x.double().exp(), 1) / (1 + (-x.double().abs()).exp())
    off = (found.double() - exact).abs() / exact.clamp(min=2.0**-126)
    kept = exact >= 2.0**-126
    assert (off[kept] <= SIGMOID_ULP * 2.0**-24).all()
    assert (off[~kept] <= 1).all()
    coarse = (1 / (1 + (x * -1.4426950216293335).exp2())).double()  # the product rounded once
    assert ((coarse - exact).abs()[kept] / exact[kept] > SIGMOID_ULP * 2.0**-24).any()
    spoilt = torch.full_like(x[:1], NAN)
    sigmoid_kernel[(1,)](spoilt, spoilt, 1, 16)
    assert spoilt.isnan().all()


@pytest.mark.parametrize(("mask", "bad"), [*zip(MASKS, [NAN, INF] * 3, strict=True)], ids=str)
def test_what_no_row_sees_may_hold_anything_and_gets_nothing(mask: Any, bad: float) -> None:
    m, offset, options, sides = mask
    options = {**options, "q_offset": offset}
    x = given(options, seqlen_q=m, delta=4, head_dim=24)
    nobody = ~seen(m, 37, offset, *sides).any(0).to(HOME)
    hidden = {n: x[n].masked_fill(nobody[:, None], bad) for n in ("k", "v")}
    usual = pope_attention_backward(**x, **options)
    assert same(pope_attention_backward(**{**x, **hidden}, **options), usual)
    assert all((grad[:, :, nobody] == 0).all() for grad in usual[1:3])


@pytest.mark.parametrize("bad", [64.0, NAN])
def test_an_empty_row_gets_and_gives_nothing(bad: float) -> None:
    options: Given = {"causal": True, "q_offset": -9}
    x = given(options, delta=4, head_dim=24)
    assert (x["lse"][:, :, :9] == -INF).all()
    usual = pope_attention_backward(**x, **options)
    assert (usual[0][:, :, :9] == 0).all()
    odd = {n: x[n].clone() for n in ("q", "dout")}
    for t in odd.values():
        t[:, :, :9] = bad
    assert same(pope_attention_backward(**{**x, **odd}, **options), usual)


def test_a_key_of_zeros_counts_and_none_lies_past_the_last() -> None:
    """softplus(0) is ln 2: such a key has weight and a gradient, one that is not there has none."""
    x = given(delta=2, seqlen_k=33)
    x["k"][:, :, 32:] = 0
    state = dict(zip(("out", "lse"), pope_attention(**{n: x[n] for n in TENSORS}), strict=True))
    grads = pope_attention_backward(**{**x, **state})
    assert grads[1][:, :, 32:].any()
    fewer = {n: x[n][:, :, :32] for n in ("k", "v")} | {"k_positions": x["k_positions"][:32]}
    shorter = pope_attention_backward(**{**x, **state, **fewer})
    assert same([grad[:, :, :32] for grad in grads[1:3]], shorter[1:3])


TENSORS = ("q", "k", "v", "inv_freq", "delta", "q_positions", "k_positions")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_do_not_matter(layout: str) -> None:
    """The contiguous call takes the aligned build; most of these take the general one."""
    x = given({"causal": True}, delta=4, head_dim=24, per_batch=True, seqlen_k=20)
    usual = pope_attention_backward(**x, causal=True)
    if HOME != "cpu" and layout in GENERAL:
        pytest.skip("a GPU build has its own bits; test_strided_equals_contiguous judges them")
    odd = {
        name: LAYOUTS[layout](t) if t.ndim == 4 or layout in GENERAL else t for name, t in x.items()
    }
    assert same(pope_attention_backward(**odd, causal=True), usual)
    for name in ("dout", "delta", "k_positions"):
        assert same(pope_attention_backward(**{**x, name: odd[name]}, causal=True), usual)


def test_offsets_in_a_tensor_are_those_of_its_sequences() -> None:
    offsets = torch.tensor([17, -5], dtype=torch.int32, device=HOME)
    x = given({"causal": True, "q_offset": offsets}, delta=2, per_batch=True)
    whole = pope_attention_backward(**x, causal=True, q_offset=offsets)
    for i, n in enumerate(offsets.tolist()):
        one = {m: t if m in ("inv_freq", "delta") else t[i : i + 1] for m, t in x.items()}
        alone = pope_attention_backward(**one, causal=True, q_offset=n)
        assert same([grad[i : i + 1] for grad in whole[:3]], alone[:3])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_are_rounded_once_and_repeat(dtype: str) -> None:
    x = given({"causal": True}, dtype=dtype, **FULL)
    *full, phases = pope_attention_backward(**x, causal=True, out_dtype=torch.float32)
    rounded = [*(grad.to(x["q"].dtype) for grad in full), phases]
    assert phases.dtype == torch.float32
    assert same(pope_attention_backward(**x, causal=True), rounded)
    assert same(pope_attention_backward(**x, causal=True), rounded)


@pytest.mark.parametrize(("rows", "keys", "batch"), [(0, 5, 1), (5, 0, 1), (5, 5, 0)])
def test_without_rows_or_keys_gradients_are_zero(rows: int, keys: int, batch: int) -> None:
    x = given(delta=2, batch=batch, seqlen_q=rows, seqlen_k=keys)
    for grad, name in zip(pope_attention_backward(**x), NAMES, strict=True):
        assert grad.shape == x[name].shape
        assert (grad == 0).all()


def test_heads_may_run_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, as many as a cache holds the other side of, or all at once."""
    x, found = given({"causal": True}, delta=4, num_kv_heads=2, seqlen_q=40), []
    for cache in (1, attention_tiles.L2_BYTES, 2**40):
        with monkeypatch.context() as patched:
            patched.setattr(attention_tiles, "L2_BYTES", cache)
            patched.setattr(sequence_call, "_PLANS", {})
            found.append(pope_attention_backward(**x, causal=True))
    assert same(found[0], found[1])
    assert same(found[2], found[1])


@pytest.mark.parametrize("rows", [32, 64])
def test_allocations_are_linear_in_the_length(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs, tables, two numbers a row, and a few a tile: no tensor of rows and keys."""
    x = given(delta=2, num_heads=2, batch=1, seqlen_q=rows, seqlen_k=64)
    pope_attention_backward(**x)  # plans, which hold no memory
    monkeypatch.setattr(pope_backward_call, "check_values", lambda *_: None)  # on the CPU only
    with Allocated() as made:
        grads = pope_attention_backward(**x)
    gpu = None if HOME == "cpu" else torch.cuda.get_device_capability()
    tile = config(16, 2, gpu).queries.OWN
    rest = [2 * rows * 16 * 2, 2 * 64 * 16 * 2, 2 * rows * 4, 2 * rows * 4]
    outputs = [grad.numel() * grad.element_size() for grad in grads]
    parts = 2 * -(-rows // tile) * 16 * 4
    assert sorted(made.bytes) == sorted([*outputs, *rest, parts])


@pytest.mark.parametrize("capability", [None, (8, 0), (8, 9), (9, 0), (10, 0)])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_every_width_has_tiles_that_ptxas_builds_right(
    capability: tuple[int, int] | None, itemsize: int
) -> None:
    for width in (1, 16, 64, 65, 128, 192, 256):
        for tile in config(width, itemsize, capability):
            assert not any(n & (n - 1) for n in tile[:3])
            assert min(tile.OWN, tile.WALKED) >= 16
            assert (tile.OWN, tile.num_warps) != (64, 4) or tile.WALKED > 32
