"""PyTorch's attention as a peer: every mask says what the contract says, and nothing is hidden."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch

from tightrope.implementation import registered
from tightrope.impls import peer_torch
from tightrope.oracles.attention_problem import visible

CPU = ["math", "flash"]
PLAIN = (None, None)


@pytest.fixture(autouse=True)
def on_the_cpu():
    if peer_torch.ON_GPU:
        pytest.skip("the CPU's backends and what they lack; a GPU's are put to the laws instead")


def drawn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def tensors(dtype=torch.float32, heads=4, kv_heads=2, n=5, m=7, width=16, width_v=16):
    q = drawn(2, heads, n, width, dtype=dtype, seed=1)
    k = drawn(2, kv_heads, m, width, dtype=dtype, seed=2)
    return q, k, drawn(2, kv_heads, m, width_v, dtype=dtype, seed=3)


def softmax(q, k, v, seen, scale, bias=0.0):
    """The definition in float64, a row without a key 0."""
    q, k, v = (x.double().numpy() for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    t = np.where(seen, scale * q @ k.swapaxes(-1, -2) + np.asarray(bias, np.float64), -np.inf)
    top = np.max(t, axis=-1, keepdims=True, initial=-np.inf)
    p = np.exp(t - np.where(np.isfinite(top), top, 0.0))
    total = p.sum(axis=-1, keepdims=True)
    return (p / np.where(total == 0, 1.0, total)) @ v


def off(out, expected):
    """Largest distance in units of 2^-23.

    Right: e^x off by 20 in numerator and denominator, |v| below 4, some 20 roundings beside it.
    Wrong: a key too many or too few has a weight of some 10^5 units at least.
    """
    return np.abs(out.double().numpy() - expected).max(initial=0.0) * 2.0**23


LIMIT = 4 * (2 * 20 + 20)


CAUSAL = [(c, o, w) for c, o, w in product(
    (False, True), (0, 2, -1, 40), (PLAIN, (2, None), (None, 1), (1, 0), (0, 3))
)]  # fmt: skip


@pytest.mark.parametrize("backend", CPU)
@pytest.mark.parametrize(("causal", "q_offset", "window"), CAUSAL)
def test_masks_are_the_contracts(backend, causal, q_offset, window):
    q, k, v = tensors()
    out = peer_torch.attention(
        backend, q, k, v, causal=causal, q_offset=q_offset, window_size=window
    )
    seen = visible(5, 7, q_offset, causal, *window)
    assert off(out, softmax(q, k, v, seen, 0.25)) < LIMIT
    assert not out[:, :, ~seen.any(axis=1)].any()


@pytest.mark.parametrize("backend", CPU)
@pytest.mark.parametrize(("n", "m"), [(5, 7), (7, 5), (6, 6), (1, 9)])
def test_the_causal_flag_and_the_mask_agree(backend, n, m):
    q, k, v = tensors(n=n, m=m)
    flag = peer_torch.attention(backend, q, k, v, causal=True)
    masked = peer_torch.attention(
        backend, q, k, v, causal=True, q_offset=torch.zeros(2, dtype=torch.int32)
    )
    assert off(flag, masked.double().numpy()) < LIMIT


@pytest.mark.parametrize("backend", CPU)
def test_offsets_are_one_a_sequence(backend):
    q, k, v = tensors()
    out = peer_torch.attention(
        backend, q, k, v, causal=True, q_offset=torch.tensor([0, 2], dtype=torch.int32)
    )
    seen = np.stack([visible(5, 7, o, True, None, None) for o in (0, 2)])[:, None]
    assert off(out, softmax(q, k, v, seen, 0.25)) < LIMIT


@pytest.mark.parametrize("backend", CPU)
@pytest.mark.parametrize("q_offset", [2, -1])
@pytest.mark.parametrize("shape", [(2, 4, 5, 7), (1, 4, 5, 1), (2, 1, 1, 7), (1, 4, 1, 7)])
def test_a_bias_is_added_beside_a_window(backend, q_offset, shape):
    q, k, v = tensors()
    bias = drawn(*shape, seed=4)
    out = peer_torch.attention(
        backend, q, k, v, bias=bias, causal=True, q_offset=q_offset, softmax_scale=0.5
    )
    seen = visible(5, 7, q_offset, True, None, None)
    assert off(out, softmax(q, k, v, seen, 0.5, bias.numpy())) < LIMIT
    assert not out[:, :, ~seen.any(axis=1)].any()


@pytest.mark.parametrize("backend", CPU)
@pytest.mark.parametrize(("width", "width_v"), [(40, 16), (16, 40), (13, 13), (1, 3)])
def test_any_widths_and_strides(backend, width, width_v):
    q, k, v = tensors(width=width, width_v=width_v)
    wide = torch.zeros(*k.shape[:-1], 2 * width)
    wide[..., ::2] = k
    out = peer_torch.attention(backend, q, wide[..., ::2], v)
    assert out.shape == (2, 4, 5, width_v)
    assert off(out, softmax(q, k, v, visible(5, 7, 0, False, None, None), width**-0.5)) < LIMIT


@pytest.mark.parametrize("backend", CPU)
@pytest.mark.parametrize(("n", "m"), [(0, 4), (4, 0), (0, 0)])
def test_nothing_to_attend_to_is_zero(backend, n, m):
    out = peer_torch.attention(backend, *tensors(n=n, m=m))
    assert out.shape == (2, 4, n, 16)
    assert not out.any()


@pytest.mark.parametrize("backend", CPU)
def test_a_mask_together_with_is_causal_is_refused(backend):
    q, k, v = tensors(kv_heads=4)
    with pytest.raises(ValueError, match="attn_mask: expected None with is_causal=True"):
        peer_torch.sdpa(backend, q, k, v, is_causal=True, attn_mask=torch.zeros(5, 7))


def test_a_bias_is_not_rounded_on_the_way():
    q, k, v = tensors(torch.float16)
    with pytest.raises(TypeError, match=r"bias.dtype: expected torch.float16 as q, got .*float32"):
        peer_torch.attention("math", q, k, v, bias=torch.zeros(1, 1, 1, 7))


def test_what_is_missing_is_said_and_not_registered():
    assert set(peer_torch.MISSING) == {"efficient", "cudnn"}
    found = {i.name: i for i in registered("tightrope.impls.peer_torch")}
    assert set(found) == {"torch-math", "torch-flash"}
    assert all(i.returns == ("out",) and i.limits["sink"] == (False,) for i in found.values())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_math_scales_q_and_k_in_float32_and_keeps_the_weights(dtype):
    q, k, v = tensors(dtype, kv_heads=4, width=40, width_v=40)
    root = math.sqrt(40**-0.5)
    scores = (q.float() * root) @ (k.float() * root).mT
    weights = torch.softmax(scores, -1)
    out = peer_torch.attention("math", q, k, v)
    assert torch.equal(out, (weights @ v.float()).to(dtype))
    if dtype != torch.float32:
        rounded = (weights.to(dtype).float() @ v.float()).to(dtype)
        assert not torch.equal(out, rounded)


@pytest.mark.parametrize("dtype", peer_torch.CPU_EXP_ULP)
def test_the_declared_exponential_of_the_cpus_flash_kernel_holds(dtype):
    # One key at the maximum and 15 at x fill a vector of 16: lse tells e^x, with 15-fold weight.
    x = -torch.linspace(0, 1.5, 2001).to(getattr(torch, dtype))
    k = torch.zeros(len(x), 1, 16, 1, dtype=x.dtype)
    k[:, 0, 1:, 0] = x[:, None]
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    lse = flash(torch.ones_like(k[:, :, :1]), k, k, 0.0, False, scale=1.0)[1].double().flatten()
    exact = torch.log(1 + 15 * x.double().exp())
    seen = float((lse - exact).abs().max() * 2.0**23)
    declared = peer_torch.CPU_EXP_ULP[dtype]
    assert seen < declared + 4  # the sum, the logarithm and lse are rounded too
    if torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512") and dtype != "float32":
        assert seen > 200  # or the default would do
