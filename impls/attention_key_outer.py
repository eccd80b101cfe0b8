"""Attention forward with key tiles outside and query tiles inside: the order of FlashAttention-1.

Algorithm 1 of Dao et al. (arXiv 2205.14135): every key tile is read once and meets all rows of a
program's chunk; between key tiles a row's state, its normalised output and its denominator and
maximum, rests in memory. It computes what `attention` computes on another schedule and with other
roundings, out = (l*alpha*out + p v)/l_new after every tile, and is here to be compared, not to be
fast. Memory beyond the outputs: head_dim_v + 2 float32 numbers a row.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tightrope import Arithmetic, implements
from tightrope.arithmetic import EXP2, LOG2
from tightrope.attention_call import Options, Schedule, attend
from tightrope.attention_tiles import Config, configs

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
LOWEST = tl.constexpr(float("-inf"))
CHUNK = 8  # row tiles that a program passes by each key tile


@triton.jit
def logits(s, bias_at, seen, factor, cap, SOFTCAP: tl.constexpr, BIAS: tl.constexpr):
    """Scores s capped, biased and masked, in base 2; plain ones are left for the fma."""
    if SOFTCAP or BIAS:
        s *= factor
        if SOFTCAP:  # tanh(y) = 1 - 2/(exp(2y) + 1)
            s = cap * (1.0 - 2.0 / (tl.exp2(s * (2 * LOG2E)) + 1.0))
        if BIAS:
            s += tl.load(bias_at, mask=seen, other=0.0).to(tl.float32)
        s *= LOG2E
    return tl.where(seen, s, LOWEST)


@triton.jit
def kept(number, length):
    """A row's or key's number within 0 to length, in 32 bits."""
    return tl.minimum(tl.maximum(number, 0), length).to(tl.int32)


@triton.jit(do_not_specialize=[*range(44)])  # everything but the constants: lengths cost no build
def key_outer_kernel(
    q, k, v, bias, sink, offsets, out, lse, scratch,
    seqlen_q: tl.int32, seqlen_k: tl.int32, words: tl.int32, words_v: tl.int32,
    num_heads: tl.int32, group: tl.int32, all_heads: tl.int32, row_tiles: tl.int32,
    together: tl.int32, has_sink: tl.int32, has_offsets: tl.int32,
    q_batch: tl.int64, q_head: tl.int64, q_row: tl.int64, q_dim: tl.int64,
    k_batch: tl.int64, k_head: tl.int64, k_row: tl.int64, k_dim: tl.int64,
    v_batch: tl.int64, v_head: tl.int64, v_row: tl.int64, v_dim: tl.int64,
    bias_batch: tl.int64, bias_head: tl.int64, bias_row: tl.int64, bias_key: tl.int64,
    sink_head: tl.int64, offset_batch: tl.int64,
    offset: tl.int64, left: tl.int64, right: tl.int64,
    c: tl.float32, factor: tl.float32, cap: tl.float32,
    UNIT: tl.constexpr, PADDED: tl.constexpr, SOFTCAP: tl.constexpr, BIAS: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    # Layout: q (batch, num_heads, seqlen_q, head_dim), k and v (batch, num_kv_heads, seqlen_k, ..),
    # by strides; out, lse and scratch (batch, num_heads, seqlen_q, head_dim_v + 2), contiguous: of
    # a row first its output, then its denominator and its maximum.
    # A program owns `together` row tiles of one head; nobody else touches their scratch.
    head, chunk = tl.program_id(0) % all_heads, tl.program_id(0) // all_heads
    b, h = (head // num_heads).to(tl.int64), (head % num_heads).to(tl.int64)
    kv = (head % num_heads // group).to(tl.int64)
    # Offsets are 64-bit before anything is multiplied: a tensor may reach past 2^31 elements.
    q_start = q + b * q_batch + h * q_head
    k_start, v_start = k + b * k_batch + kv * k_head, v + b * v_batch + kv * v_head
    bias_start = bias + b * bias_batch + h * bias_head
    d, d_v = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    dims, dims_v = (d < words)[None, :], (d_v < words_v)[None, :]
    tile_rows = tl.arange(0, BLOCK_M)
    first, stop = chunk * together, tl.minimum((chunk + 1) * together, row_tiles)
    width, rows_before = words_v.to(tl.int64) + 2, head.to(tl.int64) * seqlen_q
    if has_offsets != 0:
        offset += tl.load(offsets + b * offset_batch).to(tl.int64)

    # A sink is a key of logit sink and value 0, which every row sees first.
    m = tl.full([BLOCK_M], LOWEST, tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    if has_sink != 0:
        m = tl.zeros([BLOCK_M], tl.float32) + tl.load(sink + h * sink_head).to(tl.float32) * LOG2E
        l += 1.0
    for tile in tl.range(first, stop):
        row = tile * BLOCK_M + tile_rows
        mine, at = row < seqlen_q, scratch + (rows_before + row.to(tl.int64)) * width
        nothing = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
        tl.store(at[:, None] + d_v[None, :], nothing, mask=mine[:, None] & dims_v)
        tl.store(at + words_v, l, mask=mine)
        tl.store(at + words_v + 1, m, mask=mine)

    # Keys that some row of the chunk sees: row i sees i + offset - left to i + offset + right.
    last_row = tl.minimum(stop * BLOCK_M, seqlen_q) - 1
    low = kept(first * BLOCK_M + offset - left, seqlen_k)
    high = kept(last_row + offset + right + 1, seqlen_k)
    for start in tl.range(low // BLOCK_N * BLOCK_N, high, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        some, wide_key = ((key >= low) & (key < high))[:, None], key.to(tl.int64)
        k_at = k_start + wide_key[:, None] * k_row + d[None, :] * k_dim
        v_at = v_start + wide_key[:, None] * v_row + d_v[None, :] * v_dim
        k_tile = tl.load(k_at, mask=some & dims, other=0.0)
        v_tile = tl.load(v_at, mask=some & dims_v, other=0.0)
        # Rows that see a key of the tile: the bounds solved for i.
        above = kept(start - offset - right, seqlen_q) // BLOCK_M
        below = tl.cdiv(kept(start + BLOCK_N - offset + left, seqlen_q), BLOCK_M)
        for tile in tl.range(tl.maximum(first, above), tl.minimum(stop, below)):
            row = tile * BLOCK_M + tile_rows
            mine, wide_row = row < seqlen_q, row.to(tl.int64)
            row_low = kept(wide_row + offset - left, seqlen_k)[:, None]
            row_high = kept(wide_row + offset + right + 1, seqlen_k)[:, None]
            seen = (key[None, :] >= row_low) & (key[None, :] < row_high) & mine[:, None]
            q_at = q_start + wide_row[:, None] * q_row + d[None, :] * q_dim
            q_tile = tl.load(q_at, mask=mine[:, None] & dims, other=0.0)
            at = scratch + (rows_before + wide_row) * width
            out_at, keep = at[:, None] + d_v[None, :], mine[:, None] & dims_v
            # Threads other than this one wrote what it reads here: in the loop before.
            tl.debug_barrier()
            old = tl.load(out_at, mask=keep, other=0.0)
            l = tl.load(at + words_v, mask=mine, other=0.0)
            m = tl.load(at + words_v + 1, mask=mine, other=LOWEST)
            # And others still read what it writes below.
            tl.debug_barrier()
            s = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION)
            bias_at = bias_start + wide_row[:, None] * bias_row + wide_key[None, :] * bias_key
            s = logits(s, bias_at, seen, factor, cap, SOFTCAP, BIAS)
            top = tl.max(s, 1)
            # Rounding is monotone and c > 0: the largest score has the largest product.
            m_new = tl.maximum(m, top if SOFTCAP or BIAS else top * c)
            shift = tl.where(m_new == LOWEST, 0.0, m_new)
            x = s - shift[:, None] if SOFTCAP or BIAS else tl.fma(s, c, -shift[:, None])
            p = tl.exp2(x)
            before = l * tl.exp2(m - shift)
            l = before + tl.sum(p, 1)
            acc = old * before[:, None]
            acc = tl.dot(p.to(v_tile.dtype), v_tile, acc, input_precision=PRECISION)
            acc = acc / tl.where(l == 0.0, 1.0, l)[:, None]
            # To multiply by l and divide by it again would round a row that saw nothing here.
            acc = tl.where((top == LOWEST)[:, None], old, acc)
            tl.store(out_at, acc, mask=keep)
            tl.store(at + words_v, l, mask=mine)
            tl.store(at + words_v + 1, m_new, mask=mine)

    tl.debug_barrier()
    for tile in tl.range(first, stop):
        row = tile * BLOCK_M + tile_rows
        mine, place = row < seqlen_q, rows_before + row.to(tl.int64)
        keep, at = mine[:, None] & dims_v, scratch + place * width
        acc = tl.load(at[:, None] + d_v[None, :], mask=keep, other=0.0)
        l = tl.load(at + words_v, mask=mine, other=0.0)
        m = tl.load(at + words_v + 1, mask=mine, other=LOWEST)
        out_at = out + place[:, None] * words_v + d_v[None, :]
        tl.store(out_at, acc.to(out.dtype.element_ty), mask=keep)
        tl.store(lse + place, (m + tl.log2(l)) * LN2, mask=mine)


def _programs(all_heads: int, row_tiles: int, together: int) -> int:
    return all_heads * triton.cdiv(row_tiles, together)


def _config(
    heads: int, seqlen_q: int, width: int, itemsize: int, bias: bool, gpu: tuple[int, int] | None
) -> Config:
    entries = configs(width, itemsize, gpu)
    # Loops hold loads that must not run ahead of the stores before them: nothing in flight.
    return entries[(len(entries) - 1) // 2]._replace(num_stages=1)


SCHEDULE = Schedule(key_outer_kernel, _config, lambda *_: CHUNK, _programs, False, True)


def _promise(case: Any, device: Any) -> Arithmetic:
    single, gpu = case.dtype == "float32", device.capability
    width, size = max(case.head_dim, case.head_dim_v), 4 if single else 2
    hopper = device.interpreted or gpu == (9, 0)
    return Arithmetic(
        dot="hopper_mma" if hopper and not single else "any", dot_precision="ieee",
        scores="float32", p="input", accumulator="normalised", logits="scaled", lse="base2",
        sink="start", block_k=_config(0, 0, width, size, False, gpu).BLOCK_N,
        exp_ulp=EXP2, exp_flush=True, division_ulp=2.5, log_ulp=LOG2,
    )  # fmt: skip


@implements("attention", name="triton-key-outer", arithmetic=_promise)
def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, softmax_scale: float | None = None,
    causal: bool = False, q_offset: int | torch.Tensor = 0,
    window_size: tuple[int | None, int | None] | None = (None, None), softcap: float | None = None,
    bias: torch.Tensor | None = None, sink: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None, validate: bool = False, blocks: Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """As `tightrope.impls.attention.attention`, on the other schedule; num_stages is always 1.

    q (batch, num_heads, seqlen_q, head_dim); k (batch, num_kv_heads, seqlen_k, head_dim), v (...,
    head_dim_v). Returns out (batch, num_heads, seqlen_q, head_dim_v), lse (batch, num_heads,
    seqlen_q). Logits, bias and sinks: as large as there, and no larger. Raises as
    `validate_attention.check_attention` and `check_blocks`.
    """
    options = Options(softmax_scale, causal, q_offset, window_size, softcap, bias, sink, out_dtype)
    return attend(SCHEDULE, q, k, v, options, "ieee", validate, blocks)
