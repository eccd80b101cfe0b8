"""Attention forward that rotates q and k itself, in Triton: two ways to the same bits.

`triton` copies nothing: a program turns its tile of q once and each tile of k as it meets it.
`triton-rotated-k` turns k once into a copy, by a kernel of its own. Either way a pair is turned in
float32, product, product and sum rounded once each as in `tightrope.impls.rope`, and rounded to the
dtype of q before any dot product; all else is as in `tightrope.impls.attention`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl

from tightrope import implements
from tightrope.attention_tiles import Config
from tightrope.pair_turns import turned, turned_halves
from tightrope.rope_attention_call import attend, promise
from tightrope.sequence_call import Options

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
LOWEST = tl.constexpr(float("-inf"))


@triton.jit
def kept(number, length):
    """A number within 0 to length, in 32 bits."""
    return tl.minimum(tl.maximum(number, 0), length).to(tl.int32)


@triton.jit(do_not_specialize=[*range(21)])
def turn_kernel(
    k, turned_k, cos, sin, positions,
    seqlen_k: tl.int32, words: tl.int32, num_kv_heads: tl.int32, blocks: tl.int32,
    rows: tl.int64, half: tl.int32,
    k_batch: tl.int64, k_head: tl.int64, k_row: tl.int64, k_dim: tl.int64,
    cos_row: tl.int64, cos_dim: tl.int64, sin_row: tl.int64, sin_dim: tl.int64,
    position_batch: tl.int64, position_step: tl.int64,
    UNIT: tl.constexpr, PADDED: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, INTERLEAVED: tl.constexpr,
    HALVES: tl.constexpr, BLOCK_HEADS: tl.constexpr,
):  # fmt: skip
    # Layout: k (batch, num_kv_heads, seqlen_k, head_dim), strides of UNIT elements; turned_k alike,
    # contiguous. A program owns BLOCK_M rows, keys of BLOCK_HEADS heads, which vary fastest in a
    # tile and over programs: a row of the table is fetched once for many.
    head_blocks = tl.cdiv(num_kv_heads, BLOCK_HEADS)
    block = tl.program_id(0) // head_blocks % blocks
    b = (tl.program_id(0) // head_blocks // blocks).to(tl.int64)
    place, d = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)[None, :]
    head = (tl.program_id(0) % head_blocks * BLOCK_HEADS + place % BLOCK_HEADS).to(tl.int64)
    key = block.to(tl.int64) * (BLOCK_M // BLOCK_HEADS) + place // BLOCK_HEADS
    mine = (key < seqlen_k) & (head < num_kv_heads)
    out_row = ((b * num_kv_heads + head) * seqlen_k + key) * words.to(tl.int64) * UNIT
    out_at = turned_k + out_row[:, None]
    if UNIT > 1:
        k_dim, cos_dim, sin_dim, out_at = 1, 1, 1, tl.multiple_of(out_at, (16, 16))
    table = cos, sin, rows, half * UNIT, cos_row * UNIT, cos_dim, sin_row * UNIT, sin_dim
    at, place = head * (k_head * UNIT) + key * (k_row * UNIT), key * position_step
    k, place = k + b * (k_batch * UNIT), positions + b * position_batch + place
    if HALVES and UNIT > 1:
        first, second = turned_halves(k, at, mine, place, table, UNIT, BLOCK_D)
        out_at += tl.arange(0, BLOCK_D // 2)[None, :]
        tl.store(out_at, first, mask=mine[:, None])
        tl.store(out_at + BLOCK_D // 2, second, mask=mine[:, None])
    else:
        tile = turned(
            k, at, k_dim, words * UNIT, mine, place, table, INTERLEAVED, UNIT, BLOCK_M, BLOCK_D
        )
        tl.store(out_at + d, tile, mask=mine[:, None] & (d < words * UNIT))


@triton.jit(do_not_specialize=[*range(52)])  # everything but the constants: lengths cost no build
def rope_attention_kernel(
    q, k, v, out, cos, sin, sink, offsets, q_positions, k_positions, lse,
    seqlen_q: tl.int32, seqlen_k: tl.int32, words: tl.int32, words_v: tl.int32,
    num_heads: tl.int32, group: tl.int32, all_heads: tl.int32, row_tiles: tl.int32,
    together: tl.int32, rows: tl.int64, half: tl.int32, has_sink: tl.int32, has_offsets: tl.int32,
    q_batch: tl.int64, q_head: tl.int64, q_row: tl.int64, q_dim: tl.int64,
    k_batch: tl.int64, k_head: tl.int64, k_row: tl.int64, k_dim: tl.int64,
    v_batch: tl.int64, v_head: tl.int64, v_row: tl.int64, v_dim: tl.int64,
    cos_row: tl.int64, cos_dim: tl.int64, sin_row: tl.int64, sin_dim: tl.int64,
    q_place_batch: tl.int64, q_place_step: tl.int64, k_place_batch: tl.int64,
    k_place_step: tl.int64, sink_head: tl.int64, offset_batch: tl.int64, offset: tl.int64,
    left: tl.int64, right: tl.int64, c: tl.float32, factor: tl.float32, cap: tl.float32,
    UNIT: tl.constexpr, PADDED: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SOFTCAP: tl.constexpr,
    INTERLEAVED: tl.constexpr, HALVES: tl.constexpr, TURN_K: tl.constexpr,
):  # fmt: skip
    # Layout: q (batch, num_heads, seqlen_q, head_dim), k and v (batch, num_kv_heads, seqlen_k, ..),
    # strides of UNIT elements; out and lse (batch, num_heads, seqlen_q[, head_dim_v]), contiguous.
    # Programs: of `together` heads, whose keys fit the cache, the last row tiles first.
    heads_before = tl.program_id(0) // (together * row_tiles) * together
    place = tl.program_id(0) % (together * row_tiles)
    width = tl.minimum(together, all_heads - heads_before)
    first_row = (row_tiles - 1 - place // width) * BLOCK_M
    head = heads_before + place % width
    b, h = (head // num_heads).to(tl.int64), (head % num_heads).to(tl.int64)
    kv = (head % num_heads // group).to(tl.int64)

    # Offsets are 64-bit before anything is multiplied: a tensor may reach past 2^31 elements.
    if UNIT > 1:  # rows of words: as a constant, the stride 1 makes neighbours one wide access
        q_dim, k_dim, v_dim, cos_dim, sin_dim = 1, 1, 1, 1, 1
    k_row, v_row = k_row * UNIT, v_row * UNIT
    d, d_v = tl.arange(0, BLOCK_D)[None, :], tl.arange(0, BLOCK_DV)[None, :]
    dims, dims_v = d < words * UNIT, d_v < words_v * UNIT
    row, key_0 = first_row + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N).to(tl.int64)
    mine, wide_row = row < seqlen_q, row.to(tl.int64)
    q, k = q + (b * q_batch + h * q_head) * UNIT, k + (b * k_batch + kv * k_head) * UNIT
    k_at = k + key_0[:, None] * k_row
    v_at = v + (b * v_batch + kv * v_head) * UNIT + key_0[:, None] * v_row
    out_row = head.to(tl.int64) * seqlen_q + wide_row
    out_at = out + out_row[:, None] * (words_v.to(tl.int64) * UNIT)
    if UNIT > 1:
        k_at = tl.multiple_of(k_at, (16, 16))
        v_at, out_at = tl.multiple_of(v_at, (16, 16)), tl.multiple_of(out_at, (16, 16))
    k_tile_at, v_at = k_at + d * k_dim, v_at + d_v * v_dim
    q_place, k_place = q_positions + b * q_place_batch, k_positions + b * k_place_batch
    table = cos, sin, rows, half * UNIT, cos_row * UNIT, cos_dim, sin_row * UNIT, sin_dim
    q_rows, q_place = wide_row * (q_row * UNIT), q_place + wide_row * q_place_step
    if HALVES and UNIT > 1:
        halves = tl.join(*turned_halves(q, q_rows, mine, q_place, table, UNIT, BLOCK_D))
        q_tile = tl.reshape(tl.permute(halves, (0, 2, 1)), (BLOCK_M, BLOCK_D))
    else:
        q_tile = turned(
            q, q_rows, q_dim, words * UNIT, mine, q_place, table, INTERLEAVED, UNIT, BLOCK_M,
            BLOCK_D,
        )  # fmt: skip
    if not TURN_K:
        # Reads nothing. But tensor cores take what a load gave from shared memory as it lies; what
        # was computed passes from there to registers again for every tile of k.
        q_tile = tl.load(q + wide_row[:, None] * BLOCK_D + d, mask=dims & (words < 0), other=q_tile)

    # Row i sees keys i + offset - left to i + offset + right: indices mask, positions only turn.
    if has_offsets != 0:
        offset += tl.load(offsets + b * offset_batch).to(tl.int64)
    last_row = tl.minimum(first_row + BLOCK_M, seqlen_q) - 1
    row_low = kept(wide_row + offset - left, seqlen_k)
    row_high = kept(wide_row + offset + right + 1, seqlen_k)
    low = kept(first_row + offset - left, seqlen_k)
    high = kept(last_row + offset + right + 1, seqlen_k)
    # From `whole` to `rest` every row sees every key of every tile.
    whole = tl.cdiv(kept(last_row + offset - left, seqlen_k), BLOCK_N) * BLOCK_N
    rest = tl.maximum(kept(first_row + offset + right + 1, seqlen_k) // BLOCK_N * BLOCK_N, whole)

    m = tl.full([BLOCK_M], LOWEST, tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    if has_sink != 0:  # a key of logit sink and value 0, which every row sees first
        m = tl.zeros([BLOCK_M], tl.float32) + tl.load(sink + h * sink_head).to(tl.float32) * LOG2E
        l += 1.0
    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    for start in tl.range(low // BLOCK_N * BLOCK_N, high, BLOCK_N):
        key, at = start + tl.arange(0, BLOCK_N), tl.cast(start, tl.int64)
        some = (key >= low) & (key < high)  # what no row sees may hold anything, and is not read
        if TURN_K:
            k_tile = turned(
                k, (key_0 + at) * k_row, k_dim, words * UNIT, some,
                k_place + (key_0 + at) * k_place_step, table,
                INTERLEAVED, UNIT, BLOCK_N, BLOCK_D,
            )  # fmt: skip
        else:
            keep = some[:, None] & dims if PADDED else some[:, None]
            k_tile = tl.load(k_tile_at + at * k_row, mask=keep, other=0.0)
        # Beside k, before the branch: so one barrier awaits both.
        keep = some[:, None] & dims_v if PADDED else some[:, None]
        v_tile = tl.load(v_at + at * v_row, mask=keep, other=0.0)
        s = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee")
        if SOFTCAP:  # tanh(z) = 1 - 2/(exp(2z) + 1)
            z = s * factor
            s = cap * (1.0 - 2.0 / (tl.exp2(z * (2 * LOG2E)) + 1.0)) * LOG2E
        if (start < whole) | (start >= rest):
            seen = (key[None, :] >= row_low[:, None]) & (key[None, :] < row_high[:, None])
            s = tl.where(seen, s, LOWEST)
        # Rounding is monotone and c > 0: the largest product is that of the largest score.
        m_new = tl.maximum(m, tl.max(s, 1) if SOFTCAP else tl.max(s, 1) * c)
        shift = tl.where(m_new == LOWEST, 0.0, m_new)  # of a row that has seen nothing yet
        p = tl.exp2(s - shift[:, None] if SOFTCAP else tl.fma(s, c, -shift[:, None]))
        alpha = tl.exp2(m - shift)
        l = l * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(v_tile.dtype), v_tile, acc * alpha[:, None], input_precision="ieee")
        m = m_new
    acc = acc / tl.where(l == 0.0, 1.0, l)[:, None]
    tl.store(lse + out_row, (m + tl.log2(l)) * LN2, mask=mine)
    tl.store(out_at + d_v, acc.to(out.dtype.element_ty), mask=mine[:, None] & dims_v)


@implements("rope_attention", name="triton", arithmetic=promise)
def rope_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
    q_positions: torch.Tensor, k_positions: torch.Tensor, *, interleaved: bool,
    softmax_scale: float | None = None, causal: bool = False, q_offset: int | torch.Tensor = 0,
    window_size: tuple[int | None, int | None] | None = (None, None), softcap: float | None = None,
    sink: torch.Tensor | None = None, out_dtype: torch.dtype | None = None, validate: bool = False,
    blocks: Config | None = None, copied: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """`attention` of rotated q and k; positions turn, indices mask.

    cos, sin: (rows, rotary_dim/2), float32, float16 or bfloat16; the first rotary_dim features are
    turned. q_positions, k_positions: (seqlen,) or (batch, seqlen), int32 or int64, rows of the
    table. One outside it: IndexError on the CPU or with validate=True (which waits for the GPU);
    else nothing outside is read and its token is turned by the angle 0. copied: turn k once into a
    copy. blocks: a tile other than `rope_attention_call.tile_for`'s. Others, outputs, what is
    refused, and how large logits and sinks may be: as `tightrope.impls.attention.attention`, no
    bias. Raises as check_attention, check_blocks and `validate_sequences.check_rope_attention`.
    """
    tensors = (q, k, v, cos, sin, q_positions, k_positions)
    options = Options(softmax_scale, causal, q_offset, window_size, softcap, sink, out_dtype)
    kernels = (rope_attention_kernel, turn_kernel)
    return attend(kernels, tensors, interleaved, options, copied, validate, blocks)


@implements("rope_attention", name="triton-rotated-k", arithmetic=partial(promise, copied=True))
def rope_attention_rotated_k(*tensors: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """`rope_attention` with k turned once, into a copy."""
    return rope_attention(*tensors, copied=True, **options)
