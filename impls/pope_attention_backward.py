"""Gradients of PoPE attention in Triton, without atomics and without expanded tensors.

A score is the sum of inner products of points softplus(x) (cos a, sin a) (Gopalakrishnan et al.,
PoPE, arXiv 2509.10534, eq. 3 to 10), so that gradients of points are attention's, and those of
features and phases follow in registers (`tightrope.pope_backward_steps`). After the tables of cos
and sin, as in `tightrope.impls.pope_attention`, one kernel runs twice: a program *owns* a tile of
rows (q, dout) and *walks* over the keys (k, v) that they see, for dq; then it owns keys and walks
over rows, for dk and dv. Points of what it owns are made once, of what it walks over each time:

    s = own_1 walked_1^T      p = exp(scaled s - lse)       grad_1 += ds walked_1
    dp = own_2 walked_2^T     ds = p (dp - sum)             grad_2 += p walked_2 (keys only)

Rows write sum(dout * out) and lse in base 2, which keys read (FlashAttention-2, Dao, arXiv
2307.08691, algorithm 2). A phase delta of keys turns rows the other way, so that its gradient is
the rows' angle's with the sign changed: every tile of rows leaves its part of it, a few numbers,
and the last launch adds these up in order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tightrope import implements
from tightrope.attention_backward_steps import fetched, reduced, rows_of, weights
from tightrope.attention_backward_tiles import Config
from tightrope.attention_steps import clipped, placed, visible
from tightrope.pope_attention_call import POSITIONS
from tightrope.pope_backward_call import Kernels, differentiate, promise
from tightrope.pope_backward_steps import angles, points_of, sigmoid, turning
from tightrope.sequence_call import Options
from tightrope.softplus import softplus


@triton.jit(do_not_specialize=[*range(67)])  # everything but the constants: lengths cost no build
def gradients_kernel(
    own_1, own_2, walked_1, walked_2, own_table, walked_table, out, grad_1, grad_2,
    lse, sums, shifts, offsets, delta, inverse_turn, parts,
    own_length: tl.int32, walked_length: tl.int32, polar: tl.int32, plain: tl.int32,
    words_v: tl.int32, own_heads: tl.int32, share: tl.int32, repeat: tl.int32, all_heads: tl.int32,
    own_tiles: tl.int32, together: tl.int32, has_offsets: tl.int32, has_delta: tl.int32,
    own_1_batch: tl.int64, own_1_head: tl.int64, own_1_row: tl.int64, own_1_dim: tl.int64,
    own_2_batch: tl.int64, own_2_head: tl.int64, own_2_row: tl.int64, own_2_dim: tl.int64,
    walked_1_batch: tl.int64, walked_1_head: tl.int64, walked_1_row: tl.int64,
    walked_1_dim: tl.int64, walked_2_batch: tl.int64, walked_2_head: tl.int64,
    walked_2_row: tl.int64, walked_2_dim: tl.int64,
    out_batch: tl.int64, out_head: tl.int64, out_row: tl.int64, out_dim: tl.int64,
    lse_batch: tl.int64, lse_head: tl.int64, lse_row: tl.int64,
    own_angles: tl.int64, own_plane: tl.int64, walked_angles: tl.int64, walked_plane: tl.int64,
    delta_head: tl.int64, delta_kv: tl.int64, delta_dim: tl.int64,
    offset_batch: tl.int64, offset: tl.int64, left: tl.int64, right: tl.int64,
    c: tl.float32, factor: tl.float32, cap: tl.float32, scale: tl.float32,
    KEYS: tl.constexpr, UNIT: tl.constexpr, PADDED: tl.constexpr, SOFTCAP: tl.constexpr,
    FORM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_REST: tl.constexpr, BLOCK_DV: tl.constexpr,
    OWN: tl.constexpr, WALKED: tl.constexpr,
):  # fmt: skip
    # Layout: all (batch, heads, length, width), strides of UNIT elements; grads contiguous; sums
    # and shifts (batch, num_heads, seqlen_q); parts (batch, num_heads, row tiles, polar). Tables
    # (2, rows, polar), those of a sequence from b * angles on, sin a plane behind cos. KEYS: own_1
    # k, own_2 v, walked_1 q, walked_2 dout, `repeat` heads of them; else q, dout, k, v, and `share`
    # owned heads walk over the same.
    tile, head = placed(tl.program_id(0), together, all_heads, own_tiles)
    if KEYS:  # under a causal mask the first keys are seen by most rows
        tile = own_tiles - 1 - tile
    b, h = (head // own_heads).to(tl.int64), (head % own_heads).to(tl.int64)
    walked_head = h // share * repeat
    if UNIT > 1:  # rows of words: as a constant, the stride 1 makes neighbours one wide access
        own_1_dim, own_2_dim, walked_1_dim, walked_2_dim, out_dim = 1, 1, 1, 1, 1

    # Indices mask, positions only turn: an owned i and a walked i + offset - left to i + offset +
    # right see one another. What sees nothing may hold anything, and is not read.
    if has_offsets != 0:
        given = tl.load(offsets + b * offset_batch).to(tl.int64)
        offset += -given if KEYS else given
    first_own = tile * OWN
    own, inner = first_own + tl.arange(0, OWN), tl.arange(0, WALKED)
    last_own = tl.minimum(first_own + OWN, own_length) - 1
    low, high, whole, beyond = visible(
        first_own, last_own, offset, left, right, walked_length, WALKED
    )
    mine, wide = own < own_length, own.to(tl.int64)
    own_low = clipped(wide + offset - left, walked_length)
    own_high = clipped(wide + offset + right + 1, walked_length)
    alive = mine & (own_low < own_high)

    # Offsets are 64-bit before anything is multiplied: a tensor may reach past 2^31 elements.
    d, d_v = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    dims, dims_v, width = d < polar * UNIT, d_v < words_v * UNIT, polar.to(tl.int64)
    one_at = rows_of(own_1, b * own_1_batch + h * own_1_head, wide, own_1_row, UNIT)
    two_at = rows_of(own_2, b * own_2_batch + h * own_2_head, wide, own_2_row, UNIT)
    own_cos = rows_of(own_table, b * own_angles, wide, width, UNIT) + d[None, :]
    own_sin, keep = own_cos + own_plane * UNIT, alive[:, None] & dims[None, :]
    phases = delta + h * delta_head + walked_head * delta_kv + d * delta_dim
    turns = dims & (has_delta != 0) & (not KEYS)  # keys are not turned, but what they walk over
    back_c, back_s = turning(phases, turns, inverse_turn)
    one = fetched(one_at + d[None, :] * own_1_dim, alive, dims, PADDED)
    cosine, sine = angles(own_cos, own_sin, keep, back_c, back_s, not KEYS)
    one_x, one_y = points_of(one, cosine, sine, FORM)
    two = fetched(two_at + d_v[None, :] * own_2_dim, alive, dims_v, PADDED)
    if BLOCK_REST > 0:
        e = tl.arange(0, BLOCK_REST)
        rest, dims_rest = polar * UNIT + e, e < plain * UNIT
        one_rest = fetched(one_at + rest[None, :] * own_1_dim, alive, dims_rest, True)
        grad_rest = tl.zeros([OWN, BLOCK_REST], tl.float32)
    if not KEYS:
        out_at = rows_of(out, b * out_batch + h * out_head, wide, out_row, UNIT)
        o = fetched(out_at + d_v[None, :] * out_dim, alive, dims_v, PADDED)
        lse_at = lse + b * lse_batch + h * lse_head + wide * lse_row
        own_sum, own_shift = reduced(o, two, tl.load(lse_at, mask=mine, other=0.0), alive)
        tl.store(sums + head.to(tl.int64) * own_length + wide, own_sum, mask=mine)
        tl.store(shifts + head.to(tl.int64) * own_length + wide, own_shift, mask=mine)
        sum_tile, shift_tile = own_sum[:, None], own_shift[:, None]

    grad_x, grad_y = tl.zeros([OWN, BLOCK_D], tl.float32), tl.zeros([OWN, BLOCK_D], tl.float32)
    grad_v, first = tl.zeros([OWN, BLOCK_DV], tl.float32), low // WALKED * WALKED
    for of_head in tl.range(walked_head, walked_head + repeat):
        if KEYS:
            phases = delta + of_head * delta_head + h * delta_kv + d * delta_dim
            back_c, back_s = turning(phases, dims & (has_delta != 0), inverse_turn)
        base_1, base_2 = b * walked_1_batch, b * walked_2_batch
        base_1, base_2 = base_1 + of_head * walked_1_head, base_2 + of_head * walked_2_head
        for start in tl.range(first, high, WALKED):
            walked = start + inner
            some, at = (walked >= low) & (walked < high), walked.to(tl.int64)
            x_at = rows_of(walked_1, base_1, at, walked_1_row, UNIT)
            y_at = rows_of(walked_2, base_2, at, walked_2_row, UNIT)
            cos_at = rows_of(walked_table, b * walked_angles, at, width, UNIT) + d[None, :]
            x = fetched(x_at + d[None, :] * walked_1_dim, some, dims, PADDED)
            y = fetched(y_at + d_v[None, :] * walked_2_dim, some, dims_v, PADDED)
            sin_at, wanted = cos_at + walked_plane * UNIT, some[:, None] & dims[None, :]
            w_c, w_s = angles(cos_at, sin_at, wanted, back_c, back_s, KEYS)
            w_x, w_y = points_of(x, w_c, w_s, FORM)
            if KEYS:
                row = (b * own_heads * repeat + of_head) * walked_length + at
                sum_tile = tl.load(sums + row, mask=some, other=0.0)[None, :]
                shift_tile = tl.load(shifts + row, mask=some, other=float("inf"))[None, :]
            s = tl.dot(one_x, tl.trans(w_x), input_precision="ieee")
            s = tl.dot(one_y, tl.trans(w_y), s, input_precision="ieee")
            if BLOCK_REST > 0:
                w_rest = fetched(x_at + rest[None, :] * walked_1_dim, some, dims_rest, True)
                s = tl.dot(one_rest, tl.trans(w_rest), s, input_precision="ieee")
            dp = tl.dot(two, tl.trans(y), input_precision="ieee")
            p, slope = weights(s, shift_tile, c, factor, cap, SOFTCAP)
            ds = p * (dp - sum_tile)
            if SOFTCAP:
                ds *= slope
            if (start < whole) | (start >= beyond):
                seen = (walked[None, :] >= own_low[:, None]) & (walked[None, :] < own_high[:, None])
                p, ds = tl.where(seen, p, 0.0), tl.where(seen, ds, 0.0)
            if KEYS:
                grad_v = tl.dot(p.to(y.dtype), y, grad_v, input_precision="ieee")
            ds = ds.to(x.dtype)
            grad_x = tl.dot(ds, w_x, grad_x, input_precision="ieee")
            grad_y = tl.dot(ds, w_y, grad_y, input_precision="ieee")
            if BLOCK_REST > 0:
                grad_rest = tl.dot(ds, w_rest, grad_rest, input_precision="ieee")

    # Read again: registers are worth more than a tile that is in cache.
    one = fetched(one_at + d[None, :] * own_1_dim, alive, dims, PADDED)
    cosine, sine = angles(own_cos, own_sin, keep, back_c, back_s, not KEYS)
    found = sigmoid(one) * (cosine * grad_x + sine * grad_y) * scale
    grad_row = head.to(tl.int64) * own_length + wide
    grad_at = rows_of(grad_1, 0, grad_row, (polar + plain).to(tl.int64), UNIT)
    stored = mine[:, None] & dims[None, :]
    tl.store(grad_at + d[None, :], found.to(grad_1.dtype.element_ty), mask=stored)
    if BLOCK_REST > 0:
        stored, plainly = mine[:, None] & dims_rest[None, :], grad_rest * scale
        tl.store(grad_at + rest[None, :], plainly.to(grad_1.dtype.element_ty), mask=stored)
    if KEYS:
        v_at = rows_of(grad_2, 0, grad_row, words_v.to(tl.int64), UNIT) + d_v[None, :]
        tl.store(v_at, grad_v.to(grad_2.dtype.element_ty), mask=mine[:, None] & dims_v[None, :])
    elif has_delta != 0:
        turned = softplus(one, FORM) * (sine * grad_x - cosine * grad_y)
        part = parts + (head.to(tl.int64) * own_tiles + tile) * (width * UNIT) + d
        tl.store(part, tl.sum(turned, 0) * scale, mask=dims)


@triton.jit(do_not_specialize=[*range(6)])
def phases_kernel(
    parts, ddelta, batch: tl.int64, heads: tl.int64, rows: tl.int64, rotary_dim: tl.int64,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    # Layout: parts (batch, heads, rows, rotary_dim) and ddelta (heads, rotary_dim), contiguous.
    head, d, inner = tl.program_id(0), tl.arange(0, BLOCK_D), tl.arange(0, ROWS)
    total = tl.zeros([ROWS, BLOCK_D], tl.float32)
    for b in tl.range(0, batch):
        for start in tl.range(0, rows, ROWS):
            row, dims = start + inner, (d < rotary_dim)[None, :]
            at = parts + ((b * heads + head) * rows + row)[:, None] * rotary_dim + d[None, :]
            total += tl.load(at, mask=(row < rows)[:, None] & dims, other=0.0)
    tl.store(ddelta + head * rotary_dim + d, tl.sum(total, 0), mask=d < rotary_dim)


KERNELS = Kernels(gradients_kernel, phases_kernel)


@implements("pope_attention_backward", name="triton", arithmetic=promise, positions=POSITIONS)
def pope_attention_backward(
    dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
    lse: torch.Tensor, inv_freq: torch.Tensor, delta: torch.Tensor | None,
    q_positions: torch.Tensor, k_positions: torch.Tensor, *, softmax_scale: float | None = None,
    causal: bool = False, q_offset: int | torch.Tensor = 0,
    window_size: tuple[int | None, int | None] | None = (None, None), softcap: float | None = None,
    out_dtype: torch.dtype | None = None, validate: bool = False, blocks: Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """dq, dk, dv and ddelta of `pope_attention`, from the gradient dout of its out; any strides.

    Arguments and options mean what they mean there, no sink; out and lse are what it returned for
    them. dout and out (batch, num_heads, seqlen_q, head_dim_v) in q's dtype, lse (batch, num_heads,
    seqlen_q) float32. dq, dk and dv have the shapes of q, k and v, in q's dtype, or before their
    last rounding with out_dtype=torch.float32; ddelta is float32 in delta's shape, summed over
    sequences, rows and the query heads that share a phase, or None without delta.
    A row with lse = -inf has seen no key: its gradients are 0, and it adds nothing to others. Keys
    that no row sees get 0, whatever they hold. The same bits every time. Allocated beside outputs:
    the tables of cos and sin, 8 bytes a row, and rotary_dim float32 a tile of rows. blocks: tiles
    other than `pope_backward_tiles.config`'s. No second gradients: refused where autograd records.
    Raises as check_attention_backward, check_tiles and check_pope_attention; ValueError as
    `pope_attention` for values, on the CPU or with validate=True.
    """
    tensors = (dout, q, k, v, out, lse, inv_freq, delta, q_positions, k_positions)
    options = Options(softmax_scale, causal, q_offset, window_size, softcap, None, out_dtype)
    return differentiate(KERNELS, tensors, options, validate, blocks)
