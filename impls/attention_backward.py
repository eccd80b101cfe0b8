"""Gradients of attention in three Triton launches, without atomics: the same bits every time.

The first reduces rows: delta = sum(dout * out), and lse in base 2. The other two are one kernel,
since the gradient is symmetric in rows and keys: a program *owns* a tile of keys (k, v) and *walks*
over the rows (q, dout) that see them, for dk and dv; or it owns rows and walks over keys, for dq:

    s = own_1 walked_1^T      p = exp(scaled s - lse)       grad_1 += ds walked_1
    dp = own_2 walked_2^T     ds = p (dp - delta)           grad_2 += p walked_2 (keys only)

Weights are computed again from lse (FlashAttention-2, Dao, arXiv 2307.08691, algorithm 2), so no
memory but 2 numbers a row is used. A program that owns keys walks over the rows of all query heads
of its group, head by head. Tiles that nothing sees are skipped, those seen whole are not masked.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tightrope import Arithmetic, implements
from tightrope.arithmetic import EXP2
from tightrope.attention_backward_call import Kernels, differentiate
from tightrope.attention_backward_steps import fetched, reduced, weights
from tightrope.attention_backward_tiles import Config
from tightrope.attention_call import Options
from tightrope.attention_steps import clipped, placed, visible


@triton.jit(do_not_specialize=[*range(21)])  # everything but the constants: lengths cost no build
def rows_kernel(
    out, dout, lse, delta, shift,
    seqlen_q: tl.int32, words_v: tl.int32, num_heads: tl.int32, row_tiles: tl.int32,
    padded: tl.int32,
    out_batch: tl.int64, out_head: tl.int64, out_row: tl.int64, out_dim: tl.int64,
    dout_batch: tl.int64, dout_head: tl.int64, dout_row: tl.int64, dout_dim: tl.int64,
    lse_batch: tl.int64, lse_head: tl.int64, lse_row: tl.int64,
    UNIT: tl.constexpr, BLOCK_DV: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    # Layout: out and dout (batch, num_heads, seqlen_q, head_dim_v), strides of UNIT elements, lse
    # (batch, num_heads, seqlen_q); delta and shift (batch, num_heads, padded), all of it written.
    head, tile = tl.program_id(0) // row_tiles, tl.program_id(0) % row_tiles
    b, h = (head // num_heads).to(tl.int64), (head % num_heads).to(tl.int64)
    if UNIT > 1:
        out_dim, dout_dim = 1, 1
    row = tile * ROWS + tl.arange(0, ROWS)
    mine, wide, d = row < seqlen_q, row.to(tl.int64), tl.arange(0, BLOCK_DV)
    out_at = out + (b * out_batch + h * out_head) * UNIT + wide[:, None] * (out_row * UNIT)
    dout_at = dout + (b * dout_batch + h * dout_head) * UNIT + wide[:, None] * (dout_row * UNIT)
    if UNIT > 1:
        out_at, dout_at = tl.multiple_of(out_at, (16, 16)), tl.multiple_of(dout_at, (16, 16))
    dims = d < words_v * UNIT
    o = fetched(out_at + d[None, :] * out_dim, mine, dims, True)
    do = fetched(dout_at + d[None, :] * dout_dim, mine, dims, True)
    given = tl.load(lse + b * lse_batch + h * lse_head + wide * lse_row, mask=mine, other=0.0)
    sums, shifts = reduced(o, do, given, mine)
    place = head.to(tl.int64) * padded + row
    tl.store(delta + place, sums)
    tl.store(shift + place, shifts)


@triton.jit(do_not_specialize=[*range(45)])
def gradients_kernel(
    own_1, own_2, walked_1, walked_2, delta, shift, offsets, grad_1, grad_2,
    own_length: tl.int32, walked_length: tl.int32, words: tl.int32, words_v: tl.int32,
    own_heads: tl.int32, share: tl.int32, repeat: tl.int32, all_heads: tl.int32,
    own_tiles: tl.int32, together: tl.int32, padded: tl.int32, has_offsets: tl.int32,
    own_1_batch: tl.int64, own_1_head: tl.int64, own_1_row: tl.int64, own_1_dim: tl.int64,
    own_2_batch: tl.int64, own_2_head: tl.int64, own_2_row: tl.int64, own_2_dim: tl.int64,
    c: tl.float32, factor: tl.float32, cap: tl.float32, scale: tl.float32,
    walked_1_batch: tl.int64, walked_1_head: tl.int64, walked_1_row: tl.int64,
    walked_1_dim: tl.int64,
    walked_2_batch: tl.int64, walked_2_head: tl.int64, walked_2_row: tl.int64,
    walked_2_dim: tl.int64,
    offset_batch: tl.int64, offset: tl.int64, left: tl.int64, right: tl.int64,
    KEYS: tl.constexpr, GROUPED: tl.constexpr, UNIT: tl.constexpr, PADDED: tl.constexpr,
    SOFTCAP: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, OWN: tl.constexpr,
    WALKED: tl.constexpr,
):  # fmt: skip
    # Layout: all (batch, heads, length, head_dim or head_dim_v), strides of UNIT elements; grads
    # contiguous; delta and shift (batch, num_heads, padded). KEYS: own_1 k, own_2 v, walked_1 q,
    # walked_2 dout; else q, dout, k, v. An owned head of `share` walks over `repeat` heads,
    # more than one if GROUPED.
    tile, head = placed(tl.program_id(0), together, all_heads, own_tiles)
    if KEYS:  # under a causal mask the first keys are seen by most rows
        tile = own_tiles - 1 - tile
    b, h = (head // own_heads).to(tl.int64), (head % own_heads).to(tl.int64)
    if UNIT > 1:  # rows of words: as a constant, the stride 1 makes neighbours one wide access
        own_1_dim, own_2_dim, walked_1_dim, walked_2_dim = 1, 1, 1, 1

    # Offsets are 64-bit before anything is multiplied: a tensor may reach past 2^31 elements.
    d, d_v = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    dims, dims_v = d < words * UNIT, d_v < words_v * UNIT
    first_own = tile * OWN
    own = first_own + tl.arange(0, OWN)
    mine, wide, inner = own < own_length, own.to(tl.int64), tl.arange(0, WALKED)
    own_1 += (b * own_1_batch + h * own_1_head) * UNIT
    own_2 += (b * own_2_batch + h * own_2_head) * UNIT
    walked_1 += b * walked_1_batch * UNIT
    walked_2 += b * walked_2_batch * UNIT
    own_1_at = own_1 + wide[:, None] * (own_1_row * UNIT)
    own_2_at = own_2 + wide[:, None] * (own_2_row * UNIT)
    walked_1_at = walked_1 + inner.to(tl.int64)[:, None] * (walked_1_row * UNIT)
    walked_2_at = walked_2 + inner.to(tl.int64)[:, None] * (walked_2_row * UNIT)
    if UNIT > 1:
        own_1_at, own_2_at = tl.multiple_of(own_1_at, (16, 16)), tl.multiple_of(own_2_at, (16, 16))
        walked_1_at = tl.multiple_of(walked_1_at, (16, 16))
        walked_2_at = tl.multiple_of(walked_2_at, (16, 16))
    walked_1_at += d[None, :] * walked_1_dim
    walked_2_at += d_v[None, :] * walked_2_dim
    one = fetched(own_1_at + d[None, :] * own_1_dim, mine, dims, PADDED)
    two = fetched(own_2_at + d_v[None, :] * own_2_dim, mine, dims_v, PADDED)

    # An owned i and a walked i + offset - left to i + offset + right see one another.
    if has_offsets != 0:
        given = tl.load(offsets + b * offset_batch).to(tl.int64)
        offset += -given if KEYS else given
    last_own = tl.minimum(first_own + OWN, own_length) - 1
    low, high, whole, rest = visible(
        first_own, last_own, offset, left, right, walked_length, WALKED
    )
    own_low = clipped(wide + offset - left, walked_length)
    own_high = clipped(wide + offset + right + 1, walked_length)
    first = low // WALKED * WALKED
    tiles = tl.cdiv(tl.maximum(high - first, 0), WALKED)

    walked_head = (h // share * repeat).to(tl.int32)
    rows_at = b * own_heads * repeat * padded  # of delta and shift, which have a row a query head
    if not KEYS:
        delta_tile = tl.load(delta + rows_at + h * padded + wide)[:, None]
        shift_tile = tl.load(shift + rows_at + h * padded + wide)[:, None]
    grad_1_tile = tl.zeros([OWN, BLOCK_D], tl.float32)
    grad_2_tile = tl.zeros([OWN, BLOCK_DV], tl.float32)
    for step in tl.range(0, repeat * tiles):  # one loop over all heads keeps loads in flight
        if GROUPED:  # else the division would cost a tenth of the time
            start, of_head = first + step % tiles * WALKED, walked_head + step // tiles
        else:
            start, of_head = first + step * WALKED, walked_head
        walked = start + inner
        some = (walked >= low) & (walked < high)  # what nothing owned sees may hold anything
        at, of_head = tl.cast(start, tl.int64), tl.cast(of_head, tl.int64)
        at_1 = walked_1_at + (of_head * walked_1_head + at * walked_1_row) * UNIT
        at_2 = walked_2_at + (of_head * walked_2_head + at * walked_2_row) * UNIT
        x, y = fetched(at_1, some, dims, PADDED), fetched(at_2, some, dims_v, PADDED)
        if KEYS:
            delta_tile = tl.load(delta + rows_at + of_head * padded + walked)[None, :]
            shift_tile = tl.load(shift + rows_at + of_head * padded + walked)[None, :]
        s = tl.dot(one, tl.trans(x), input_precision="ieee")
        dp = tl.dot(two, tl.trans(y), input_precision="ieee")
        p, slope = weights(s, shift_tile, c, factor, cap, SOFTCAP)
        ds = p * (dp - delta_tile)
        if SOFTCAP:
            ds *= slope
        if (start < whole) | (start >= rest):
            seen = (walked[None, :] >= own_low[:, None]) & (walked[None, :] < own_high[:, None])
            p, ds = tl.where(seen, p, 0.0), tl.where(seen, ds, 0.0)
        if KEYS:
            grad_2_tile = tl.dot(p.to(y.dtype), y, grad_2_tile, input_precision="ieee")
        grad_1_tile = tl.dot(ds.to(x.dtype), x, grad_1_tile, input_precision="ieee")

    grad_row = head.to(tl.int64) * own_length + wide
    store = grad_1 + grad_row[:, None] * (words.to(tl.int64) * UNIT)
    store_v = grad_2 + grad_row[:, None] * (words_v.to(tl.int64) * UNIT)
    if UNIT > 1:
        store, store_v = tl.multiple_of(store, (16, 16)), tl.multiple_of(store_v, (16, 16))
    kept, kept_v = mine[:, None] & dims[None, :], mine[:, None] & dims_v[None, :]
    tl.store(store + d[None, :], (grad_1_tile * scale).to(grad_1.dtype.element_ty), mask=kept)
    if KEYS:
        tl.store(store_v + d_v[None, :], grad_2_tile.to(grad_2.dtype.element_ty), mask=kept_v)


KERNELS = Kernels(rows_kernel, gradients_kernel)


def _promise(case: Any, device: Any) -> Arithmetic:
    single = case.dtype == "float32"
    hopper = device.interpreted or device.capability == (9, 0)
    return Arithmetic(
        state="given", logits="scaled", dot="hopper_mma" if hopper and not single else "any",
        scores="float32", p="input", ds="input", heads="summed",
        exp_ulp=EXP2, exp_flush=True, division_ulp=2.5,
    )  # fmt: skip


@implements("attention_backward", name="triton", arithmetic=_promise)
def attention_backward(
    dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
    lse: torch.Tensor, *, softmax_scale: float | None = None, causal: bool = False,
    q_offset: int | torch.Tensor = 0,
    window_size: tuple[int | None, int | None] | None = (None, None), softcap: float | None = None,
    out_dtype: torch.dtype | None = None, blocks: Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """dq, dk, dv of attention, from the gradient dout of its out; any strides.

    q (batch, num_heads, seqlen_q, head_dim); k (batch, num_kv_heads, seqlen_k, head_dim) and
    v (..., head_dim_v): float16, bfloat16 or float32, widths of 1 to 256; dout and out (batch,
    num_heads, seqlen_q, head_dim_v) in q's dtype; lse (batch, num_heads, seqlen_q) float32.
    out and lse are what `attention` returned for q, k, v and the same options: masks, offsets,
    softcap and softmax_scale mean what they mean there; bias and sink have no gradients here.
    A row with lse = -inf has seen no key: its gradients are 0, and it adds nothing to dk and dv.
    Keys that no row sees get 0 and are not read for dq. dk and dv are summed over the query heads
    of a kv head in float32, in order. Returns gradients of the shapes of q, k and v, in q's dtype,
    or before their last rounding with out_dtype=torch.float32. Memory: the outputs and two float32
    numbers a row. blocks: tiles other than the table's. No second gradients: refused where autograd
    would record. A CUDA graph may record a call that ran once before.
    Raises as `validate_attention_backward.check_attention_backward` and `check_tiles`.
    """
    options = Options(
        softmax_scale, causal, q_offset, window_size, softcap, None, None, out_dtype
    )  # fmt: skip
    return differentiate(KERNELS, dout, q, k, v, out, lse, options, blocks)
