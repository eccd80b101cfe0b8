"""Attention forward with PoPE inside it, in Triton: no expanded tensor is ever stored.

A polar feature x at the angle a is a point of the plane, softplus(x) (cos a, sin a), and a score is
the sum of inner products (Gopalakrishnan et al., PoPE, arXiv 2509.10534, eq. 3 to 10). The first
launch writes cos and sin of all tokens as float16; the angles under them are exact at any position
(`tightrope.turns`). The second one makes points of its tile of q once and of each tile of k as it
meets it: products in float32, rounded to the dtype of q, then one dot product of the x, one of the
y, and one of the plain features. All else is as in `tightrope.impls.attention`.

A key's phase delta costs nothing there: its opposite turns q, in float32, by the sum formulas.
Keys beside the last one are masked, since softplus(0) is ln 2; features beside the last one meet
cos and sin of 0.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tightrope import implements
from tightrope.attention_steps import (
    LOWEST,
    absorbed,
    begun,
    capped,
    clipped,
    ended,
    placed,
    visible,
)
from tightrope.attention_tiles import Config
from tightrope.pope_attention_call import POSITIONS, Ways, attend, promise
from tightrope.sequence_call import Options
from tightrope.softplus import softplus
from tightrope.turns import cos_sin, phase


@triton.jit
def kept(rows, dims, PADDED: tl.constexpr):
    """The mask of rows and, where a tile is wider than they are, of features."""
    return rows[:, None] & dims[None, :] if PADDED else rows[:, None]


@triton.jit
def fetch(x, cos, sin, rows, dims, PADDED: tl.constexpr):
    """Polar features and their cos and sin; 0 outside the rows and dims wanted, and not read."""
    keep = kept(rows, dims, PADDED)
    found = tl.load(x, mask=keep, other=0.0)
    return found, tl.load(cos, mask=keep, other=0.0), tl.load(sin, mask=keep, other=0.0)


@triton.jit
def points(x, c, s, FORM: tl.constexpr):
    """softplus(x) cos and softplus(x) sin in the dtype of x, each rounded to it once."""
    size = softplus(x, FORM)
    return (size * c).to(x.dtype), (size * s).to(x.dtype)


@triton.jit(do_not_specialize=[*range(51)])  # everything but the constants: lengths cost no build
def pope_attention_kernel(
    q, k, v, out, q_table, k_table, sink, offsets, delta, inverse_turn, lse,
    seqlen_q: tl.int32, seqlen_k: tl.int32, polar: tl.int32, plain: tl.int32, words_v: tl.int32,
    num_heads: tl.int32, group: tl.int32, all_heads: tl.int32, row_tiles: tl.int32,
    together: tl.int32, has_sink: tl.int32, has_offsets: tl.int32, has_delta: tl.int32,
    q_batch: tl.int64, q_head: tl.int64, q_row: tl.int64, q_dim: tl.int64,
    k_batch: tl.int64, k_head: tl.int64, k_row: tl.int64, k_dim: tl.int64,
    v_batch: tl.int64, v_head: tl.int64, v_row: tl.int64, v_dim: tl.int64,
    q_angles: tl.int64, q_plane: tl.int64, k_angles: tl.int64, k_plane: tl.int64,
    sink_head: tl.int64, delta_head: tl.int64, delta_kv: tl.int64, delta_dim: tl.int64,
    offset_batch: tl.int64, offset: tl.int64, left: tl.int64, right: tl.int64,
    c: tl.float32, factor: tl.float32, cap: tl.float32,
    UNIT: tl.constexpr, PADDED: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SOFTCAP: tl.constexpr, BLOCK_REST: tl.constexpr,
    FORM: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    # Layout: q (batch, num_heads, seqlen_q, head_dim), k and v (batch, num_kv_heads, seqlen_k, ..),
    # strides of UNIT elements; out and lse (batch, num_heads, seqlen_q[, head_dim_v]), contiguous;
    # polar + plain is head_dim. Tables (2, rows, polar), cos and, `plane` further on, sin; those of
    # a sequence begin at b * angles.
    row_tile, head = placed(tl.program_id(0), together, all_heads, row_tiles)
    first_row = row_tile * BLOCK_M
    b, h = (head // num_heads).to(tl.int64), (head % num_heads).to(tl.int64)
    kv = h // group

    # Offsets are 64-bit before anything is multiplied: a tensor may reach past 2^31 elements.
    if UNIT > 1:  # rows of words: as a constant, the stride 1 makes neighbours one wide access
        q_dim, k_dim, v_dim = 1, 1, 1
    q_row, k_row, v_row, table_row = (
        q_row * UNIT,
        k_row * UNIT,
        v_row * UNIT,
        polar.to(tl.int64) * UNIT,
    )
    d, d_v = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)[None, :]
    dims, dims_v = d < polar * UNIT, d_v < words_v * UNIT
    row, key_0 = first_row + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N).to(tl.int64)
    mine, wide_row = row < seqlen_q, row.to(tl.int64)
    q_at = q + (b * q_batch + h * q_head) * UNIT + wide_row[:, None] * q_row
    k_at = k + (b * k_batch + kv * k_head) * UNIT + key_0[:, None] * k_row
    v_at = v + (b * v_batch + kv * v_head) * UNIT + key_0[:, None] * v_row
    q_cos = q_table + b * (q_angles * UNIT) + wide_row[:, None] * table_row
    k_cos = k_table + b * (k_angles * UNIT) + key_0[:, None] * table_row
    q_sin, k_sin = q_cos + q_plane * UNIT, k_cos + k_plane * UNIT
    out_row = head.to(tl.int64) * seqlen_q + wide_row
    out_at = out + out_row[:, None] * (words_v.to(tl.int64) * UNIT)
    if UNIT > 1:
        q_at, k_at = tl.multiple_of(q_at, (16, 16)), tl.multiple_of(k_at, (16, 16))
        v_at, out_at = tl.multiple_of(v_at, (16, 16)), tl.multiple_of(out_at, (16, 16))
        q_cos, q_sin = tl.multiple_of(q_cos, (16, 16)), tl.multiple_of(q_sin, (16, 16))
        k_cos, k_sin = tl.multiple_of(k_cos, (16, 16)), tl.multiple_of(k_sin, (16, 16))
    v_at += d_v * v_dim

    my = kept(mine, dims, PADDED)
    x = tl.load(q_at + d[None, :] * q_dim, mask=my, other=0.0)
    if EARLY:  # until the tables are complete
        tl.extra.cuda.gdc_wait()
    cosine = tl.load(q_cos + d[None, :], mask=my, other=0.0).to(tl.float32)
    sine = tl.load(q_sin + d[None, :], mask=my, other=0.0).to(tl.float32)
    if has_delta != 0:
        angle = tl.load(
            delta + h * delta_head + kv * delta_kv + d * delta_dim, mask=dims, other=0.0
        )
        shift_c, shift_s = cos_sin(phase(angle.to(tl.float64), inverse_turn))
        shift_c, shift_s = shift_c.to(tl.float32)[None, :], shift_s.to(tl.float32)[None, :]
        before = cosine
        cosine = cosine * shift_c + sine * shift_s
        sine = sine * shift_c - before * shift_s
    q_x, q_y = points(x, cosine, sine, FORM)
    if BLOCK_REST > 0:
        e = tl.arange(0, BLOCK_REST)
        rest, dims_rest = polar * UNIT + e, (e < plain * UNIT)[None, :]
        k_rest_at = k_at + rest[None, :] * k_dim
        q_rest = tl.load(q_at + rest[None, :] * q_dim, mask=mine[:, None] & dims_rest, other=0.0)

    # Indices mask, positions only turn.
    if has_offsets != 0:
        offset += tl.load(offsets + b * offset_batch).to(tl.int64)
    last_row = tl.minimum(first_row + BLOCK_M, seqlen_q) - 1
    low, high, whole, beyond = visible(first_row, last_row, offset, left, right, seqlen_k, BLOCK_N)
    row_low = clipped(wide_row + offset - left, seqlen_k)
    row_high = clipped(wide_row + offset + right + 1, seqlen_k)
    m, l = begun(sink + h * sink_head, has_sink, BLOCK_M)
    acc, first = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32), low // BLOCK_N * BLOCK_N
    k_at += d[None, :] * k_dim
    k_cos, k_sin = k_cos + d[None, :], k_sin + d[None, :]
    for start in tl.range(first, high, BLOCK_N):
        key, at = start + tl.arange(0, BLOCK_N), tl.cast(start, tl.int64)
        some = (key >= low) & (key < high)  # what no row sees may hold anything, and is not read
        skip = at * table_row
        raw, raw_c, raw_s = fetch(k_at + at * k_row, k_cos + skip, k_sin + skip, some, dims, PADDED)
        k_x, k_y = points(raw, raw_c, raw_s, FORM)
        # Beside k, before the branch: so one barrier awaits both.
        keep = some[:, None] & dims_v if PADDED else some[:, None]
        v_tile = tl.load(v_at + at * v_row, mask=keep, other=0.0)
        s = tl.dot(q_x, tl.trans(k_x), input_precision="ieee")
        s = tl.dot(q_y, tl.trans(k_y), s, input_precision="ieee")
        if BLOCK_REST > 0:
            k_rest = tl.load(k_rest_at + at * k_row, mask=some[:, None] & dims_rest, other=0.0)
            s = tl.dot(q_rest, tl.trans(k_rest), s, input_precision="ieee")
        if SOFTCAP:
            s = capped(s, factor, cap)
        if (start < whole) | (start >= beyond):
            seen = (key[None, :] >= row_low[:, None]) & (key[None, :] < row_high[:, None])
            s = tl.where(seen, s, LOWEST)
        m, l, acc = absorbed(s, v_tile, m, l, acc, c, SOFTCAP)
    found, found_lse = ended(m, l, acc)
    tl.store(lse + out_row, found_lse, mask=mine)
    tl.store(out_at + d_v, found.to(out.dtype.element_ty), mask=mine[:, None] & dims_v)


@implements("pope_attention", name="triton", arithmetic=promise, positions=POSITIONS)
def pope_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, inv_freq: torch.Tensor,
    delta: torch.Tensor | None, q_positions: torch.Tensor, k_positions: torch.Tensor, *,
    softmax_scale: float | None = None, causal: bool = False, q_offset: int | torch.Tensor = 0,
    window_size: tuple[int | None, int | None] | None = (None, None), softcap: float | None = None,
    sink: torch.Tensor | None = None, out_dtype: torch.dtype | None = None, validate: bool = False,
    blocks: Config | None = None, form: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """`attention` of PoPE's points of q and k; positions turn, indices mask.

    inv_freq: (rotary_dim,) float32 or float64, radians a position, finite and > 0, exact as given;
    the first rotary_dim <= head_dim features are polar, the rest plain. delta: None, or float32
    (num_kv_heads or num_heads, rotary_dim), radians, added to the angles of keys. q_positions,
    k_positions: (seqlen,) or (batch, seqlen), int32 or int64, any integers. softmax_scale:
    head_dim**-0.5 by default. A frequency or delta that is not finite, or a frequency <= 0:
    ValueError on the CPU or with validate=True (which waits for the GPU); else the size of a finite
    one counts, and some number in place of another.
    Others, outputs, what is refused, and how large logits and sinks may be: as
    `tightrope.impls.attention.attention`, no bias. Allocated beside the outputs: float16 cos and
    sin, 4 * rotary_dim bytes a token, one table for both if q_positions are k_positions in memory.
    blocks: a tile other than `pope_attention_call.tile_for`'s. form: of softplus
    (`tightrope.softplus.FORMS`), None for `softplus.form_for`'s.
    Raises as check_attention, check_blocks and `validate_pope_attention.check_pope_attention`.
    """
    tensors = (q, k, v, inv_freq, delta, q_positions, k_positions)
    options = Options(softmax_scale, causal, q_offset, window_size, softcap, sink, out_dtype)
    return attend(pope_attention_kernel, tensors, options, validate, Ways(blocks, form))
