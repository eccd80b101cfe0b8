"""A kernel of the attention kind, whole, on the faithful interpreter against float64.

Loops whose bounds are tensors, device functions, masks, dots, running maxima, autotuning.
"""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from tightrope.interpreter import DOT_MODELS, install


@triton.jit
def rescaled(old, new):
    """exp2(old - new), and 0 where both are -inf."""
    return tl.exp2(old - tl.where(new == float("-inf"), 0.0, new))


@triton.jit
def rows_seen(acc, total, top, q, K, V, i, stop, scale, D: tl.constexpr, BLOCK: tl.constexpr):
    d = tl.arange(0, D)
    for start in tl.range(0, stop, BLOCK):
        j = start + tl.arange(0, BLOCK)
        k = tl.load(K + j[None, :] * D + d[:, None], mask=j[None, :] < stop, other=0.0)
        s = tl.where(j[None, :] <= i[:, None], tl.dot(q, k) * scale, float("-inf"))
        higher = tl.maximum(top, tl.max(s, 1))
        p, alpha = rescaled(s, higher[:, None]), rescaled(top, higher)
        total = total * alpha + tl.sum(p, 1)
        v = tl.load(V + j[:, None] * D + d[None, :], mask=j[:, None] < stop, other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        top = higher
    return acc, total, top


@triton.autotune(configs=[triton.Config({"BLOCK": n}) for n in (16, 32)], key=["length"])
@triton.jit
def causal_kernel(Q, K, V, O, LSE, length, scale, D: tl.constexpr, BLOCK: tl.constexpr):
    i, d = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, D)
    at = i[:, None] * D + d[None, :]
    q = tl.load(Q + at, mask=i[:, None] < length, other=0.0)
    acc = tl.zeros([BLOCK, D], tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    stop = tl.minimum((tl.program_id(0) + 1) * BLOCK, length)
    acc, total, top = rows_seen(
        acc, total, top, q, K, V, i, stop, scale * 1.4426950408889634, D, BLOCK
    )
    tl.store(O + at, (acc / total[:, None]).to(O.dtype.element_ty), mask=i[:, None] < length)
    tl.store(LSE + i, (top + tl.log2(total)) * 0.6931471805599453, mask=i < length)


@pytest.mark.parametrize("dot", DOT_MODELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_causal_attention(dtype, dot):
    """Bound: weights sum to 1, so P and the output, each rounded once to `dtype`, move the result

    by at most half an eps of max |v| each; float32 work is granted 2^-16.
    """
    length, width = 37, 32
    gen = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(length, width, generator=gen).to(dtype) for _ in "qkv")
    out, lse = torch.empty_like(q), torch.empty(length)
    with install(dot=dot):
        grid = lambda meta: (triton.cdiv(length, meta["BLOCK"]),)  # noqa: E731 (Triton's idiom)
        causal_kernel[grid](q, k, v, out, lse, length, width**-0.5, width)
    scores = (q.double() @ k.double().T) * width**-0.5
    scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
    expected = scores.softmax(-1) @ v.double()
    bound = (torch.finfo(dtype).eps + 2**-16) * v.abs().max().double()
    assert (out.double() - expected).abs().max() <= bound
    assert (lse.double() - scores.logsumexp(-1)).abs().max() <= 2**-16
