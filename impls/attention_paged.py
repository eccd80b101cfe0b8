"""Attention forward over a paged cache: decoding and chunked prefill in one Triton kernel.

Queries are packed one sequence after another; keys and values lie in pages, which block_table
names. A program owns a tile of rows of one sequence and one kv head: a row is a query token and a
query head, heads fastest, so that all heads of a group read each page once and a decoded token
fills its tile. The arithmetic is that of `tightrope.impls.attention`, over keys in their order.

With `splits` > 1, as decoding needs to fill a GPU, programs share the keys of a row: each leaves
its unnormalised sums, and a second kernel merges them (Flash-Decoding). The sink enters the first.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tightrope import Arithmetic, implements
from tightrope.attention_tiles import Config
from tightrope.paged_call import attend, schedule
from tightrope.sequence_call import Options, arithmetic

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
LOWEST = tl.constexpr(float("-inf"))


@triton.jit
def kept(number, length):
    """A number within 0 to length, in 32 bits."""
    return tl.minimum(tl.maximum(number, 0), length).to(tl.int32)


@triton.jit
def owner(starts, step, sequences, tokens, group, tile, BLOCK_M: tl.constexpr):
    """The last sequence whose first tile is numbered `tile` or less; any, if starts fall."""
    low, high = 0, sequences
    while low < high:
        middle = (low + high + 1) // 2
        first = kept(tl.load(starts + middle * step), tokens) * group // BLOCK_M + middle
        low = tl.where(first <= tile, middle, low)
        high = tl.where(first <= tile, high, middle - 1)
    return low


@triton.jit(do_not_specialize=[*range(46)])  # everything but the constants: lengths cost no build
def paged_kernel(
    q, k, v, out, sink, offsets, starts, table, lengths, lse, state,
    sequences: tl.int32, tokens_q: tl.int32, pages: tl.int32, page_size: tl.int32,
    longest: tl.int32, words: tl.int32, words_v: tl.int32, num_kv_heads: tl.int32, group: tl.int32,
    tiles: tl.int32, splits: tl.int32, has_sink: tl.int32, has_offsets: tl.int32,
    q_token: tl.int64, q_head: tl.int64, q_dim: tl.int64,
    k_page: tl.int64, k_slot: tl.int64, k_head: tl.int64, k_dim: tl.int64,
    v_page: tl.int64, v_slot: tl.int64, v_head: tl.int64, v_dim: tl.int64,
    table_row: tl.int64, table_page: tl.int64, sink_head: tl.int64, offset_step: tl.int64,
    start_step: tl.int64, length_step: tl.int64,
    left: tl.int64, right: tl.int64, c: tl.float32, factor: tl.float32, cap: tl.float32,
    UNIT: tl.constexpr, PADDED: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SOFTCAP: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    # Layout: q (tokens_q, num_heads, head_dim), k and v (pages, page_size, num_kv_heads, ..),
    # strides of UNIT elements; out (tokens_q, num_heads, head_dim_v) and lse (num_heads, tokens_q).
    # SPLIT: out (splits, tokens_q, num_heads, head_dim_v) and state (2, splits, tokens_q,
    # num_heads), m before l, in float32; lse is not written. All contiguous.
    kv, place = tl.program_id(0) % num_kv_heads, tl.program_id(0) // num_kv_heads
    split, tile = place % splits, tiles - 1 - place // splits
    sequence = owner(starts, start_step, sequences, tokens_q, group, tile, BLOCK_M)
    first_q = kept(tl.load(starts + sequence * start_step), tokens_q)
    first_row = (tile - first_q * group // BLOCK_M - sequence) * BLOCK_M
    stop_q, seqlen_k = tokens_q, 0  # rows past the last sequence form one without keys
    if sequence < sequences:
        stop_q = kept(tl.load(starts + (sequence + 1) * start_step), tokens_q)
        seqlen_k = kept(tl.load(lengths + sequence * length_step), longest)
    seqlen_q = stop_q - first_q
    rows = seqlen_q * group
    # A tile that no sequence fills: neither rows nor keys. To return here would cost registers.
    first_row = tl.where(first_row < 0, rows, first_row)
    seqlen_k = tl.where(first_row >= rows, 0, seqlen_k)

    # Offsets are 64-bit before anything is multiplied: a cache may reach past 2^31 elements.
    if UNIT > 1:  # rows of words: as a constant, the stride 1 makes neighbours one wide access
        q_dim, k_dim, v_dim = 1, 1, 1
    d, d_v = tl.arange(0, BLOCK_D)[None, :], tl.arange(0, BLOCK_DV)[None, :]
    dims, dims_v = d < words * UNIT, d_v < words_v * UNIT
    row = first_row + tl.arange(0, BLOCK_M)
    mine, i, head = row < rows, (row // group).to(tl.int64), kv * group + row % group
    token = first_q + i
    q_at = q + token[:, None] * (q_token * UNIT) + head.to(tl.int64)[:, None] * (q_head * UNIT)
    if UNIT > 1:
        q_at = tl.multiple_of(q_at, (16, 16))
    q_tile = tl.load(q_at + d * q_dim, mask=mine[:, None] & dims, other=0.0)
    k += kv.to(tl.int64) * k_head * UNIT
    v += kv.to(tl.int64) * v_head * UNIT
    table += sequence.to(tl.int64) * table_row

    # Token i sees keys i + offset - left to i + offset + right; by default the last sees all.
    offset = (seqlen_k - seqlen_q).to(tl.int64)
    if has_offsets != 0 and sequence < sequences:
        offset = tl.load(offsets + sequence * offset_step).to(tl.int64)
    row_low = kept(i + offset - left, seqlen_k)
    row_high = kept(i + offset + right + 1, seqlen_k)
    last_row = tl.minimum(first_row + BLOCK_M, rows) - 1
    low = kept(first_row // group + offset - left, seqlen_k)
    high = kept(last_row // group + offset + right + 1, seqlen_k)
    # From `whole` to `rest` every row sees every key of every tile.
    whole = tl.cdiv(kept(last_row // group + offset - left, seqlen_k), BLOCK_N) * BLOCK_N
    rest = kept(first_row // group + offset + right + 1, seqlen_k) // BLOCK_N * BLOCK_N
    begin = low // BLOCK_N * BLOCK_N
    share = tl.cdiv(tl.cdiv(tl.maximum(high - begin, 0), BLOCK_N), splits).to(tl.int64) * BLOCK_N
    end = kept(begin + (split + 1) * share, high)
    begin = kept(begin + split * share, high)

    m = tl.full([BLOCK_M], LOWEST, tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    if has_sink != 0 and sequence < sequences and split == 0:  # a key of value 0, before all others
        m = tl.load(sink + head * sink_head, mask=mine, other=0.0).to(tl.float32) * LOG2E
        l += 1.0
    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    for start in tl.range(begin, end, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        # What no row of the tile sees may hold anything, and is not read: keys, and the table too.
        some = (key >= low) & (key < high)
        number = (key // page_size).to(tl.int64)
        page = tl.load(table + number * table_page, mask=some, other=-1).to(tl.int64)
        some = some & (page >= 0) & (page < pages)
        slot = (key % page_size).to(tl.int64)
        k_at = k + (page * (k_page * UNIT) + slot * (k_slot * UNIT))[:, None]
        v_at = v + (page * (v_page * UNIT) + slot * (v_slot * UNIT))[:, None]
        if UNIT > 1:
            k_at, v_at = tl.multiple_of(k_at, (16, 16)), tl.multiple_of(v_at, (16, 16))
        read, read_v = some[:, None], some[:, None]
        if PADDED:
            read, read_v = read & dims, read_v & dims_v
        k_tile = tl.load(k_at + d * k_dim, mask=read, other=0.0)
        v_tile = tl.load(v_at + d_v * v_dim, mask=read_v, other=0.0)
        s = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee")
        if SOFTCAP:  # tanh(z) = 1 - 2/(exp(2z) + 1)
            z = s * factor
            s = cap * (1.0 - 2.0 / (tl.exp2(z * (2 * LOG2E)) + 1.0)) * LOG2E
        s = tl.where(some[None, :], s, LOWEST)  # a page out of range may stand anywhere
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

    num_heads, all_tokens = num_kv_heads * group, tl.cast(tokens_q, tl.int64)
    at = token * num_heads + head
    keep = mine[:, None] & dims_v
    if SPLIT:
        at += split * (all_tokens * num_heads)
        tl.store(state + at, m, mask=mine)
        tl.store(state + splits * (all_tokens * num_heads) + at, l, mask=mine)
        keep = keep & (m > LOWEST)[:, None]
    else:
        acc = acc / tl.where(l == 0.0, 1.0, l)[:, None]
        tl.store(lse + head * all_tokens + token, (m + tl.log2(l)) * LN2, mask=mine)
    out_at = out + at[:, None] * (words_v.to(tl.int64) * UNIT)
    if UNIT > 1:
        out_at = tl.multiple_of(out_at, (16, 16))
    tl.store(out_at + d_v, acc.to(out.dtype.element_ty), mask=keep)


@triton.jit(do_not_specialize=[*range(8)])
def merge_kernel(
    acc, state, out, lse, tokens_q: tl.int64, num_heads: tl.int64, head_dim_v: tl.int64,
    splits: tl.int32, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    # Layout: as paged_kernel's with SPLIT; out (tokens_q, num_heads, head_dim_v), lse (num_heads,
    # tokens_q). A split that saw nothing of a row has m = -inf; its acc was not written.
    rows = tokens_q * num_heads
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    mine, d_v = row < rows, tl.arange(0, BLOCK_DV)[None, :]
    keep = mine[:, None] & (d_v < head_dim_v)
    m = tl.full([BLOCK_M], LOWEST, tl.float32)
    for split in tl.range(0, splits):
        m = tl.maximum(m, tl.load(state + split * rows + row, mask=mine, other=LOWEST))
    l = tl.zeros([BLOCK_M], tl.float32)
    total = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    for split in tl.range(0, splits):
        at = split * rows + row
        part = tl.load(state + at, mask=mine, other=LOWEST)
        live = part > LOWEST
        weight = tl.exp2(tl.where(live, part - m, LOWEST))
        l = tl.fma(weight, tl.load(state + splits * rows + at, mask=mine, other=0.0), l)
        part_at = acc + at[:, None] * head_dim_v + d_v
        part_acc = tl.load(part_at, mask=keep & live[:, None], other=0.0)
        total = tl.fma(tl.broadcast_to(weight[:, None], part_acc.shape), part_acc, total)
    total = total / tl.where(l == 0.0, 1.0, l)[:, None]
    tl.store(out + row[:, None] * head_dim_v + d_v, total.to(out.dtype.element_ty), mask=keep)
    at = row % num_heads * tokens_q + row // num_heads
    tl.store(lse + at, (m + tl.log2(l)) * LN2, mask=mine)


def _promise(case: Any, device: Any) -> Arithmetic:
    columns = max((-(-n // case.page_size) for n in case.seqlens_k), default=0) + case.tail_length
    tile, parts = schedule(
        sum(case.seqlens_q) + case.spare, len(case.seqlens_q), case.num_heads, case.num_kv_heads,
        max(case.head_dim, case.head_dim_v), 4 if case.dtype == "float32" else 2,
        columns * case.page_size, device.capability,
    )  # fmt: skip
    return arithmetic(case, device, tile.BLOCK_N if parts == 1 else None)


@implements("attention_paged", name="triton", arithmetic=_promise)
def attention_paged(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, cu_seqlens_q: torch.Tensor,
    block_table: torch.Tensor, cache_seqlens: torch.Tensor, *, softmax_scale: float | None = None,
    causal: bool = False, q_offset: torch.Tensor | None = None,
    window_size: tuple[int | None, int | None] | None = (None, None), softcap: float | None = None,
    sink: torch.Tensor | None = None, out_dtype: torch.dtype | None = None, validate: bool = False,
    blocks: Config | None = None, splits: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """`attention` of packed queries over a cache in pages; any strides.

    q (tokens_q, num_heads, head_dim), rows of sequence i from cu_seqlens_q[i] on; k_cache, v_cache
    (pages, page_size, num_kv_heads, head_dim or head_dim_v). Key j of sequence i lies in page
    block_table[i, j // page_size]; cache_seqlens (sequences,) counts the new tokens too; all int32.
    q_offset: (sequences,) int32; None is each one's cache_seqlens - seqlen_q. Other options: as
    `tightrope.impls.attention.attention`. Returns out (tokens_q, num_heads, head_dim_v), lse
    (num_heads, tokens_q). A row without a key, or past the last sequence: 0 and -inf. Entries past
    the used pages are not read. Lengths that do not fit and pages out of range: ValueError and
    IndexError on the CPU or with validate=True (which waits for the GPU); else such a page's keys
    count as masked. splits: other than `schedule`'s; more than one takes (head_dim_v + 2) * splits
    float32 numbers a row of scratch. Logits and sinks: as large as in `attention`, and no larger.
    Raises as `validate_sequences.check_paged` and `validate_attention.check_blocks`.
    """
    tensors = (q, k_cache, v_cache, cu_seqlens_q, block_table, cache_seqlens)
    options = Options(softmax_scale, causal, q_offset, window_size, softcap, sink, out_dtype)
    return attend((paged_kernel, merge_kernel), tensors, options, validate, blocks, splits)


def _promise_split(case: Any, device: Any) -> Arithmetic:
    return arithmetic(case, device, None)


@implements("attention_paged", name="triton-split", arithmetic=_promise_split)
def attention_paged_split(*tensors: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """`attention_paged` whose keys are always split in three, few as they may be."""
    return attention_paged(*tensors, splits=3, **options)
