"""Attention forward in one Triton launch: query tiles outside, key tiles inside, online softmax.

The order is Algorithm 1 of FlashAttention-2 (Dao, arXiv 2307.08691): a program owns a tile of rows
and walks over the keys once, with a running maximum m and denominator l and an unnormalised
accumulator, all in float32 and in base 2. Plain logits are scaled inside the exponent, by one fma
with c = softmax_scale*log2(e); softcap and bias take the long way through logits of their own.
Scores are masked only in key tiles that some row does not see whole, behind a branch that all
threads take alike; one loop over all tiles keeps loads in flight. Unseen tiles are skipped.

One kernel has two builds: a general one, for any strides, and an aligned one, for rows of 16-byte
words. Nothing is tuned at run time: `config` is a pure function of the case.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tightrope import Arithmetic, implements
from tightrope.arithmetic import EXP2, LOG2
from tightrope.attention_call import Options, Schedule, attend
from tightrope.attention_tiles import Config, config, heads_together

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
LOWEST = tl.constexpr(float("-inf"))


@triton.jit
def fetch(at, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A tile; 0 outside the rows and columns wanted, where nothing is read."""
    if ROWS and COLUMNS:
        tile = tl.load(at, mask=rows[:, None] & columns[None, :], other=0.0)
    elif ROWS:
        tile = tl.load(at, mask=rows[:, None], other=0.0)
    elif COLUMNS:
        tile = tl.load(at, mask=columns[None, :], other=0.0)
    else:
        tile = tl.load(at)
    return tile


@triton.jit
def kept(number, length):
    """A key's number within 0 to length, in 32 bits."""
    return tl.minimum(tl.maximum(number, 0), length).to(tl.int32)


@triton.jit(do_not_specialize=[*range(43)])  # everything but the constants: lengths cost no build
def attention_kernel(
    q, k, v, bias, sink, offsets, out, lse,
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
    # strides of UNIT elements; out and lse (batch, num_heads, seqlen_q[, head_dim_v]), contiguous.
    # Programs: of `together` heads, whose keys fit the cache, the last row tiles first, since under
    # a causal mask they are the longest; heads vary fastest.
    heads_before = tl.program_id(0) // (together * row_tiles) * together
    place = tl.program_id(0) % (together * row_tiles)
    width = tl.minimum(together, all_heads - heads_before)
    first_row = (row_tiles - 1 - place // width) * BLOCK_M
    head = heads_before + place % width
    b, h = (head // num_heads).to(tl.int64), (head % num_heads).to(tl.int64)
    kv = (head % num_heads // group).to(tl.int64)
    if UNIT > 1:  # rows of words: as a constant, the stride 1 makes neighbours one wide access
        q_dim, k_dim, v_dim = 1, 1, 1
    k_row, v_row = k_row * UNIT, v_row * UNIT

    # Offsets are 64-bit before anything is multiplied: a tensor may reach past 2^31 elements.
    d, d_v = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    dims, dims_v = d < words * UNIT, d_v < words_v * UNIT
    row = first_row + tl.arange(0, BLOCK_M)
    mine = row < seqlen_q
    wide_row, tile = row.to(tl.int64), tl.arange(0, BLOCK_N).to(tl.int64)
    q_at = q + (b * q_batch + h * q_head) * UNIT + wide_row[:, None] * (q_row * UNIT)
    k_at = k + (b * k_batch + kv * k_head) * UNIT + tile[:, None] * k_row
    v_at = v + (b * v_batch + kv * v_head) * UNIT + tile[:, None] * v_row
    out_row = head.to(tl.int64) * seqlen_q + wide_row
    out_at = out + out_row[:, None] * (words_v.to(tl.int64) * UNIT)
    if UNIT > 1:
        q_at, k_at = tl.multiple_of(q_at, (16, 16)), tl.multiple_of(k_at, (16, 16))
        v_at, out_at = tl.multiple_of(v_at, (16, 16)), tl.multiple_of(out_at, (16, 16))
    k_at += d[None, :] * k_dim
    v_at += d_v[None, :] * v_dim
    known = tl.minimum(row, seqlen_q - 1).to(tl.int64)  # rows past the last share its bias
    bias_at = bias + b * bias_batch + h * bias_head + known[:, None] * bias_row
    q_tile = fetch(q_at + d[None, :] * q_dim, mine, dims, True, PADDED)

    # Row i sees keys i + offset - left to i + offset + right.
    if has_offsets != 0:
        offset += tl.load(offsets + b * offset_batch).to(tl.int64)
    last_row = tl.minimum(first_row + BLOCK_M, seqlen_q) - 1
    row_low = kept(wide_row + offset - left, seqlen_k)
    row_high = kept(wide_row + offset + right + 1, seqlen_k)
    low = kept(first_row + offset - left, seqlen_k)
    high = kept(last_row + offset + right + 1, seqlen_k)
    # From `whole` to `rest` every row sees every key of every tile.
    first = low // BLOCK_N * BLOCK_N
    whole = tl.cdiv(kept(last_row + offset - left, seqlen_k), BLOCK_N) * BLOCK_N
    rest = kept(first_row + offset + right + 1, seqlen_k) // BLOCK_N * BLOCK_N
    rest = tl.maximum(rest, whole)

    m = tl.full([BLOCK_M], LOWEST, tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    if has_sink != 0:  # a key of logit sink and value 0, which every row sees first
        m = tl.zeros([BLOCK_M], tl.float32) + tl.load(sink + h * sink_head).to(tl.float32) * LOG2E
        l += 1.0
    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    for start in tl.range(first, high, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        some = (key >= low) & (key < high)  # what no row of the tile sees may hold anything
        at = tl.cast(start, tl.int64)
        k_tile = fetch(k_at + at * k_row, some, dims, True, PADDED)
        # Beside k, before the branch: so one barrier awaits both.
        v_tile = fetch(v_at + at * v_row, some, dims_v, True, PADDED)
        s = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION)
        if SOFTCAP or BIAS:
            s *= factor
            if SOFTCAP:  # tanh(y) = 1 - 2/(exp(2y) + 1)
                s = cap * (1.0 - 2.0 / (tl.exp2(s * (2 * LOG2E)) + 1.0))
            if BIAS:
                b_tile = bias_at + key.to(tl.int64)[None, :] * bias_key
                s += fetch(b_tile, some, some, False, True).to(tl.float32)
            s *= LOG2E
        if (start < whole) | (start >= rest):
            seen = (key[None, :] >= row_low[:, None]) & (key[None, :] < row_high[:, None])
            s = tl.where(seen, s, LOWEST)
        top = tl.max(s, 1)
        # Rounding is monotone and c > 0: the largest score has the largest product.
        m_new = tl.maximum(m, top if SOFTCAP or BIAS else top * c)
        # A row that has seen nothing yet: its weights are exp2(-inf).
        shift = tl.where(m_new == LOWEST, 0.0, m_new)
        x = s - shift[:, None] if SOFTCAP or BIAS else tl.fma(s, c, -shift[:, None])
        p = tl.exp2(x)
        alpha = tl.exp2(m - shift)
        l = l * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(v_tile.dtype), v_tile, acc * alpha[:, None], input_precision=PRECISION)
        m = m_new
    acc = acc / tl.where(l == 0.0, 1.0, l)[:, None]
    tl.store(lse + out_row, (m + tl.log2(l)) * LN2, mask=mine)
    keep = mine[:, None]
    if PADDED:
        keep &= dims_v[None, :]
    tl.store(out_at + d_v[None, :], acc.to(out.dtype.element_ty), mask=keep)


SCHEDULE = Schedule(
    attention_kernel,
    config,
    heads_together,
    lambda heads, row_tiles, _: heads * row_tiles,
    True,
    False,
)


def _promise(case: Any, device: Any, dot_precision: str = "ieee") -> Arithmetic:
    single, gpu = case.dtype == "float32", device.capability
    width = max(case.head_dim, case.head_dim_v)
    heads, size = case.batch * case.num_heads, 4 if single else 2
    hopper = device.interpreted or gpu == (9, 0)
    return Arithmetic(
        dot="hopper_mma" if hopper and not single else "any", dot_precision=dot_precision,
        scores="float32", p="input", accumulator="unnormalised", logits="scaled", lse="base2",
        sink="start", block_k=config(heads, case.seqlen_q, width, size, False, gpu).BLOCK_N,
        exp_ulp=EXP2, exp_flush=True, division_ulp=2.5, log_ulp=LOG2,
    )  # fmt: skip


def _promise_tf32x3(case: Any, device: Any) -> Arithmetic:
    return _promise(case, device, "tf32x3")


@implements("attention", name="triton", arithmetic=_promise)
def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, softmax_scale: float | None = None,
    causal: bool = False, q_offset: int | torch.Tensor = 0,
    window_size: tuple[int | None, int | None] | None = (None, None), softcap: float | None = None,
    bias: torch.Tensor | None = None, sink: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None, validate: bool = False, blocks: Config | None = None,
    dot_precision: str = "ieee",
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """out and lse of softmax(softmax_scale * q k^T, capped, biased and masked) v; any strides.

    q (batch, num_heads, seqlen_q, head_dim); k (batch, num_kv_heads, seqlen_k, head_dim) and
    v (..., head_dim_v): float16, bfloat16 or float32, widths of 1 to 256. Key j is visible to row i
    under causal if j <= i + q_offset, in a window if i + q_offset - left <= j <= i + q_offset +
    right; None is unbounded. q_offset: a number or (batch,) int32. softcap: cap*tanh(logit/cap).
    bias: broadcast by axes of 1 to (batch, num_heads, seqlen_q, seqlen_k), float32 or q's dtype,
    -inf hides a key. sink: (num_heads,), a logit without a value. softcap: at most 1024.
    Logits are good to |softmax_scale q k| < 2^28: beyond, the shift's own rounding may let an
    exponential overflow, to NaN. A finite bias or sink is one below 2^127 / log2(e) (about 1.1e38)
    in size: `torch.finfo(torch.float32).min` hides a key like -inf.
    out (batch, num_heads, seqlen_q, head_dim_v) in q's dtype, or before its last rounding with
    out_dtype=torch.float32; lse (batch, num_heads, seqlen_q) float32, natural. A row without a key:
    0 and -inf, or the sink. Keys that no row sees by index are not read; no memory but the outputs.
    validate: checks elements where a contract has some to check; here none. blocks: a tile other
    than `config`'s. dot_precision: of float32 products, "ieee", or "tf32x3" on tensor cores.
    No gradients: refused where autograd would record. A CUDA graph may record a call that ran once
    before. Raises as `validate_attention.check_attention` and `check_blocks`; ValueError for
    tf32x3 with 16-bit tensors.
    """
    options = Options(softmax_scale, causal, q_offset, window_size, softcap, bias, sink, out_dtype)
    return attend(SCHEDULE, q, k, v, options, dot_precision, validate, blocks)


@implements("attention", name="triton-tf32x3", arithmetic=_promise_tf32x3, dtype=("float32",))
def attention_tf32x3(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """`attention` of float32 tensors with products split in three of TF32."""
    return attention(q, k, v, dot_precision="tf32x3", **options)
