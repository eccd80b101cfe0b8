"""Keys rotated once and cached: prefill in chunks, then decode, equal attention that rotates.

`rope` turns the new tokens, a paged cache keeps the turned keys, `attention_paged` reads them. With
rotated q and k rounded to the dtype, `rope_attention` of the whole sequence is `attention` of the
same turned tensors: one budget, T1 included, judges both ways.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tightrope.budget import Violation
from tightrope.device import current, numpy_dtype, to_numpy
from tightrope.implementation import registered
from tightrope.law import check_case
from tightrope.oracles.attention import AttentionCase

TOKENS, HEADS, KV_HEADS, WIDTH, PAGE = 37, 4, 2, 32, 16
CHUNKS = (20, 11, 1, 1, 1, 1, 1, 1)


@pytest.fixture(scope="module")
def kernels():
    from tightrope.impls import attention_paged, rope, rope_attention

    current()
    return rope.rope, attention_paged.attention_paged, rope_attention.rope_attention


def tensors(dtype):
    """q, k, v (tokens, heads, features), cos and sin of positions 100, 101, ..."""
    made = torch.Generator().manual_seed(5)
    shapes = [(TOKENS, h, WIDTH) for h in (HEADS, KV_HEADS, KV_HEADS)]
    q, k, v = (torch.randn(s, generator=made).to(dtype) for s in shapes)
    angles = torch.arange(200.0)[:, None] * 10_000.0 ** (-torch.arange(WIDTH // 2) * 2 / WIDTH)
    positions = torch.arange(100, 100 + TOKENS)
    where = current().kind
    found = (q, k, v, angles.cos(), angles.sin(), positions)
    return [t.to(where) for t in found]


def in_chunks(rope, paged, q, k, v, cos, sin, positions, again=False):
    """out (tokens, heads, features), lse (heads, tokens). again: cached keys are turned twice."""
    pages = -(-TOKENS // PAGE)
    caches = [torch.zeros(pages, PAGE, KV_HEADS, WIDTH, dtype=q.dtype, device=q.device)] * 2
    k_cache, v_cache = (c.clone() for c in caches)
    table = torch.arange(pages - 1, -1, -1, dtype=torch.int32, device=q.device)[None]
    outs, lses, start = [], [], 0
    for length in CHUNKS:
        new = slice(start, start + length)
        turned_q, turned_k = rope(q[new], k[new], cos, sin, positions[new], interleaved=False)
        for j in range(length):
            page, slot = int(table[0, (start + j) // PAGE]), (start + j) % PAGE
            k_cache[page, slot], v_cache[page, slot] = turned_k[j], v[new][j]
        if again:
            flat = k_cache.view(-1, KV_HEADS, WIDTH)
            rows = torch.full((len(flat),), 101, device=q.device)
            k_cache = rope(flat, flat, cos, sin, rows, interleaved=False)[1].view_as(k_cache)
        start += length
        lengths = [
            torch.tensor(n, dtype=torch.int32, device=q.device) for n in ([0, length], [start])
        ]
        out, lse = paged(
            turned_q, k_cache, v_cache, lengths[0], table, lengths[1], causal=True,
            out_dtype=torch.float32,
        )  # fmt: skip
        outs.append(out)
        lses.append(lse)
    return torch.cat(outs), torch.cat(lses, 1)


def judged(rope, q, k, v, cos, sin, positions, out, lse):
    """Judge out and lse as those of `attention` on the turned tensors.

    T1 included where all kernels have the same blocks, as on the interpreter.
    """
    from tightrope.impls import attention

    dtype = str(q.dtype).removeprefix("torch.")
    impl = next(i for i in registered(attention.__name__) if i.name == "triton")
    impl = impl if current().interpreted else replace(impl, arithmetic=None)
    turned = rope(q, k, cos, sin, positions, interleaved=False)
    case = AttentionCase(
        num_heads=HEADS, num_kv_heads=KV_HEADS, seqlen_q=TOKENS, seqlen_k=TOKENS, head_dim=WIDTH,
        head_dim_v=WIDTH, dtype=dtype, out_dtype="float32", causal=True,
    )  # fmt: skip
    arrays = [to_numpy(t).transpose(1, 0, 2)[None] for t in (*turned, v)]
    inputs = dict(zip("qkv", arrays, strict=True))
    outputs = {"out": to_numpy(out).transpose(1, 0, 2)[None], "lse": to_numpy(lse)[None]}
    assert numpy_dtype(out) == np.float32
    check_case(impl, case, inputs, outputs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_chunks_of_a_cache_of_turned_keys_equal_rotating_attention(kernels, dtype):
    rope, paged, rotating = kernels
    inputs = tensors(dtype)
    judged(rope, *inputs, *in_chunks(rope, paged, *inputs))
    q, k, v, cos, sin, positions = inputs
    heads_first = [t.transpose(0, 1)[None] for t in (q, k, v)]
    out, lse = rotating(
        *heads_first, cos, sin, positions, positions, interleaved=False, causal=True,
        out_dtype=torch.float32,
    )  # fmt: skip
    judged(rope, *inputs, out[0].transpose(0, 1), lse[0])


def test_keys_turned_twice_are_noticed(kernels):
    rope, paged, _ = kernels
    inputs = tensors(torch.float16)
    with pytest.raises(Violation):
        judged(rope, *inputs, *in_chunks(rope, paged, *inputs, again=True))
