"""Attention forward of sequences packed one after another, in one Triton launch.

The schedule and the arithmetic are those of `tightrope.impls.attention`: a program owns a tile of
rows of one sequence and one head, and walks over that sequence's keys. Which sequence a program
serves is found on the device: the tiles of sequence i are numbered from cu_seqlens_q[i]//BLOCK_M +
i on, which leaves room for every partial tile, so that a binary search finds the owner of a number
and the host needs no length. Rows past the last sequence form one without keys.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tightrope import Arithmetic, implements
from tightrope.attention_call import broadcast_strides
from tightrope.attention_tiles import Config, config, heads_together
from tightrope.launch import capability, check_plain
from tightrope.sequence_call import Options, Plan, arithmetic, make_plan, planned, strides
from tightrope.validate_attention import check_blocks
from tightrope.validate_sequences import check_starts_values, check_varlen

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
LOWEST = tl.constexpr(float("-inf"))


@triton.jit
def kept(number, length):
    """A number within 0 to length, in 32 bits."""
    return tl.minimum(tl.maximum(number, 0), length).to(tl.int32)


@triton.jit
def owner(starts, step, sequences, tokens, tile, BLOCK_M: tl.constexpr):
    """The last sequence whose first tile is numbered `tile` or less; any, if starts fall."""
    low, high = 0, sequences
    while low < high:
        middle = (low + high + 1) // 2
        first = kept(tl.load(starts + middle * step), tokens) // BLOCK_M + middle
        low = tl.where(first <= tile, middle, low)
        high = tl.where(first <= tile, high, middle - 1)
    return low


@triton.jit(do_not_specialize=[*range(38)])  # everything but the constants: lengths cost no build
def varlen_kernel(
    q, k, v, out, sink, offsets, starts_q, starts_k, lse,
    sequences: tl.int32, tokens_q: tl.int32, tokens_k: tl.int32, words: tl.int32,
    words_v: tl.int32, num_heads: tl.int32, group: tl.int32, tiles: tl.int32, together: tl.int32,
    has_sink: tl.int32, has_offsets: tl.int32,
    q_token: tl.int64, q_head: tl.int64, q_dim: tl.int64,
    k_token: tl.int64, k_head: tl.int64, k_dim: tl.int64,
    v_token: tl.int64, v_head: tl.int64, v_dim: tl.int64,
    sink_head: tl.int64, offset_step: tl.int64, start_q_step: tl.int64, start_k_step: tl.int64,
    left: tl.int64, right: tl.int64, c: tl.float32, factor: tl.float32, cap: tl.float32,
    UNIT: tl.constexpr, PADDED: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SOFTCAP: tl.constexpr,
):  # fmt: skip
    # Layout: q (tokens_q, num_heads, head_dim), k and v (tokens_k, num_kv_heads, ..), strides of
    # UNIT elements; contiguous out (tokens_q, num_heads, head_dim_v) and lse (num_heads, tokens_q).
    # Programs: of `together` heads, whose keys fit the cache, the last tiles of a sequence first,
    # since under a causal mask they are the longest; heads vary fastest.
    heads_before = tl.program_id(0) // (together * tiles) * together
    place = tl.program_id(0) % (together * tiles)
    width = tl.minimum(together, num_heads - heads_before)
    tile = tiles - 1 - place // width
    head = heads_before + place % width
    h, kv = head.to(tl.int64), (head // group).to(tl.int64)

    sequence = owner(starts_q, start_q_step, sequences, tokens_q, tile, BLOCK_M)
    first_q = kept(tl.load(starts_q + sequence * start_q_step), tokens_q)
    first_row = (tile - first_q // BLOCK_M - sequence) * BLOCK_M
    stop_q, first_k, seqlen_k = tokens_q, 0, 0
    if sequence < sequences:
        stop_q = kept(tl.load(starts_q + (sequence + 1) * start_q_step), tokens_q)
        at = starts_k + sequence * start_k_step
        first_k = kept(tl.load(at), tokens_k)
        seqlen_k = kept(tl.load(at + start_k_step) - first_k, tokens_k - first_k)
    seqlen_q = stop_q - first_q
    # A tile that no sequence fills: neither rows nor keys. To return here would cost registers.
    first_row = tl.where(first_row < 0, seqlen_q, first_row)
    seqlen_k = tl.where(first_row >= seqlen_q, 0, seqlen_k)

    # Offsets are 64-bit before anything is multiplied: a tensor may reach past 2^31 elements.
    if UNIT > 1:  # rows of words: as a constant, the stride 1 makes neighbours one wide access
        q_dim, k_dim, v_dim = 1, 1, 1
    k_row, v_row = k_token * UNIT, v_token * UNIT
    d, d_v = tl.arange(0, BLOCK_D)[None, :], tl.arange(0, BLOCK_DV)[None, :]
    row = first_row + tl.arange(0, BLOCK_M)
    mine, wide_row = row < seqlen_q, row.to(tl.int64)
    token, key_0 = first_q + wide_row, tl.arange(0, BLOCK_N).to(tl.int64)
    q_at = q + h * (q_head * UNIT) + token[:, None] * (q_token * UNIT)
    k_at = k + (kv * (k_head * UNIT) + first_k * k_row) + key_0[:, None] * k_row
    v_at = v + (kv * (v_head * UNIT) + first_k * v_row) + key_0[:, None] * v_row
    out_at = out + (token * num_heads + h)[:, None] * (words_v.to(tl.int64) * UNIT)
    if UNIT > 1:
        q_at, k_at = tl.multiple_of(q_at, (16, 16)), tl.multiple_of(k_at, (16, 16))
        v_at, out_at = tl.multiple_of(v_at, (16, 16)), tl.multiple_of(out_at, (16, 16))
    k_at += d * k_dim
    v_at += d_v * v_dim
    dims, dims_v = d < words * UNIT, d_v < words_v * UNIT
    q_tile = tl.load(q_at + d * q_dim, mask=mine[:, None] & dims, other=0.0)

    # Row i sees keys i + offset - left to i + offset + right; by default the last sees all.
    offset = (seqlen_k - seqlen_q).to(tl.int64)
    if has_offsets != 0 and sequence < sequences:
        offset = tl.load(offsets + sequence * offset_step).to(tl.int64)
    last_row = tl.minimum(first_row + BLOCK_M, seqlen_q) - 1
    row_low = kept(wide_row + offset - left, seqlen_k)
    row_high = kept(wide_row + offset + right + 1, seqlen_k)
    low = kept(first_row + offset - left, seqlen_k)
    high = kept(last_row + offset + right + 1, seqlen_k)
    # From `whole` to `rest` every row sees every key of every tile.
    whole = tl.cdiv(kept(last_row + offset - left, seqlen_k), BLOCK_N) * BLOCK_N
    rest = kept(first_row + offset + right + 1, seqlen_k) // BLOCK_N * BLOCK_N
    rest = tl.maximum(rest, whole)

    m = tl.full([BLOCK_M], LOWEST, tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    if has_sink != 0 and sequence < sequences:  # a key of value 0, which every row sees first
        m = tl.zeros([BLOCK_M], tl.float32) + tl.load(sink + h * sink_head).to(tl.float32) * LOG2E
        l += 1.0
    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    for start in tl.range(low // BLOCK_N * BLOCK_N, high, BLOCK_N):
        key, at = start + tl.arange(0, BLOCK_N), tl.cast(start, tl.int64)
        # What no row of the tile sees may hold anything, and is not read.
        some = ((key >= low) & (key < high))[:, None]
        if PADDED:
            k_tile = tl.load(k_at + at * k_row, mask=some & dims, other=0.0)
            v_tile = tl.load(v_at + at * v_row, mask=some & dims_v, other=0.0)
        else:  # v beside k, before the branch: so one barrier awaits both
            k_tile = tl.load(k_at + at * k_row, mask=some, other=0.0)
            v_tile = tl.load(v_at + at * v_row, mask=some, other=0.0)
        s = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee")
        if SOFTCAP:  # tanh(z) = 1 - 2/(exp(2z) + 1)
            z = s * factor
            s = cap * (1.0 - 2.0 / (tl.exp2(z * (2 * LOG2E)) + 1.0)) * LOG2E
        if (start < whole) | (start >= rest):
            seen = (key[None, :] >= row_low[:, None]) & (key[None, :] < row_high[:, None])
            s = tl.where(seen, s, LOWEST)
        # Rounding is monotone and c > 0: the largest product is that of the largest score.
        m_new = tl.maximum(m, tl.max(s, 1) if SOFTCAP else tl.max(s, 1) * c)
        # Weights of a row that has seen nothing yet are exp2(-inf).
        shift = tl.where(m_new == LOWEST, 0.0, m_new)
        p = tl.exp2(s - shift[:, None] if SOFTCAP else tl.fma(s, c, -shift[:, None]))
        alpha = tl.exp2(m - shift)
        l = l * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(v_tile.dtype), v_tile, acc * alpha[:, None], input_precision="ieee")
        m = m_new
    acc = acc / tl.where(l == 0.0, 1.0, l)[:, None]
    tl.store(lse + h * tokens_q + token, (m + tl.log2(l)) * LN2, mask=mine)
    tl.store(out_at + d_v, acc.to(out.dtype.element_ty), mask=mine[:, None] & dims_v)


def tile_for(
    tokens_q: int, sequences: int, num_heads: int, width: int, itemsize: int,
    capability: tuple[int, int] | None,
) -> Config:  # fmt: skip
    """The tile for a case, by the mean length; pure. width: the larger of the two head_dims."""
    mean = triton.cdiv(tokens_q, max(1, sequences))
    return config(sequences * num_heads, mean, width, itemsize, False, capability)


def _plan(
    q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, options: Options, blocks: Any
) -> Plan:
    (tokens_q, num_heads, head_dim), (tokens_k, num_kv_heads, head_dim_v) = q.shape, v.shape
    sequences, size, group = cu_seqlens_q.shape[0] - 1, q.element_size(), num_heads // num_kv_heads
    gpu, width = capability(varlen_kernel, q.device), max(head_dim, head_dim_v)
    tile = Config(*(blocks or tile_for(tokens_q, sequences, num_heads, width, size, gpu)))
    tiles = tokens_q // tile.BLOCK_M + sequences + 1
    kv_bytes = tokens_k // max(1, sequences) * (head_dim + head_dim_v) * size
    sink, q_offset = options.sink, options.q_offset

    def numbers(unit: int) -> tuple[float, ...]:
        return (
            *(sequences, tokens_q, tokens_k, head_dim // unit, head_dim_v // unit),
            *(num_heads, group, tiles, heads_together(num_heads, group, kv_bytes)),
            *(sink is not None, q_offset is not None),
            *strides((q, k, v), unit), *broadcast_strides(sink, 1), *broadcast_strides(q_offset, 1),
            *(cu_seqlens_q.stride(0), cu_seqlens_k.stride(0)),
            *options.numbers(head_dim),
        )  # fmt: skip

    constants = {"SOFTCAP": options.softcap is not None}
    programs = tiles * num_heads if tokens_q else 0
    lengths = (head_dim, head_dim_v)
    return make_plan(varlen_kernel, (q, k, v), lengths, programs, numbers, constants, tile)


def _promise(case: Any, device: Any) -> Arithmetic:
    tokens_q, sequences = sum(case.seqlens_q) + case.spare, len(case.seqlens_q)
    width, size = max(case.head_dim, case.head_dim_v), 4 if case.dtype == "float32" else 2
    tile = tile_for(tokens_q, sequences, case.num_heads, width, size, device.capability)
    return arithmetic(case, device, tile.BLOCK_N)


def _check(arguments: Any, options: Options, validate: Any, blocks: Any) -> None:
    check_varlen(*arguments, **options._asdict(), validate=validate)
    check_blocks(blocks)


@implements("attention_varlen", name="triton", arithmetic=_promise)
def attention_varlen(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor, *, softmax_scale: float | None = None, causal: bool = False,
    q_offset: torch.Tensor | None = None,
    window_size: tuple[int | None, int | None] | None = (None, None),
    softcap: float | None = None, sink: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None, validate: bool = False, blocks: Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """`attention` of packed sequences: i has rows cu_seqlens_q[i] to cu_seqlens_q[i + 1] - 1.

    q (tokens_q, num_heads, head_dim), k (tokens_k, num_kv_heads, head_dim), v (.., head_dim_v); any
    strides. cu_seqlens: (sequences + 1,) int32. q_offset: (sequences,) int32; None is each one's
    seqlen_k - seqlen_q. Other options: as `tightrope.impls.attention.attention`. Returns out
    (tokens_q, num_heads, head_dim_v), lse (num_heads, tokens_q). A row without a key, or past the
    last sequence: 0 and -inf. cu_seqlens that do not rise from 0 to at most the tokens: ValueError
    on the CPU or with validate=True (which waits for the GPU); else what rows hold is not defined,
    but nothing outside the tensors is touched. Logits and sinks: as large as there, and no larger.
    Raises as `validate_sequences.check_varlen` and `validate_attention.check_blocks`.
    """
    arguments = (q, k, v, cu_seqlens_q, cu_seqlens_k)
    options = Options(softmax_scale, causal, q_offset, window_size, softcap, sink, out_dtype)
    plan = planned(
        ("attention_varlen", *arguments, *options, validate, blocks),
        lambda: _check(arguments, options, validate, blocks),
        lambda: _plan(*arguments, options, blocks),
    )
    check_plain(*arguments, sink, q_offset)
    if validate or plan.on_cpu:
        check_starts_values("cu_seqlens_q", cu_seqlens_q, q.shape[0])
        check_starts_values("cu_seqlens_k", cu_seqlens_k, k.shape[0])
    (tokens_q, num_heads, _), head_dim_v = q.shape, v.shape[2]
    shape, kind = (tokens_q, num_heads, head_dim_v), out_dtype or q.dtype
    out = torch.empty(shape, dtype=kind, device=q.device)
    lse = torch.empty((num_heads, tokens_q), dtype=torch.float32, device=q.device)
    plan.launch((q, k, v, out), sink, q_offset, cu_seqlens_q, cu_seqlens_k, lse)
    return out, lse
