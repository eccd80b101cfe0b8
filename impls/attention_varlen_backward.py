"""Gradients of packed attention in two Triton launches, without atomics: the same bits every time.

One kernel runs twice, as in `tightrope.impls.attention_backward`, here within sequences: a program
*owns* a tile of rows (q, dout) of one sequence and *walks* over its keys (k, v), for dq; then it
owns keys and walks over the rows of all query heads of their group, for dk and dv:

    s = own_1 walked_1^T      p = exp(scaled s - lse)       grad_1 += ds walked_1
    dp = own_2 walked_2^T     ds = p (dp - sum)             grad_2 += p walked_2 (keys only)

Rows write sum(dout * out) and lse in base 2, which keys read (FlashAttention-2, Dao, arXiv
2307.08691, algorithm 2). Tiles begin where sequences do, so that the gradients of one are the same
bits alone and among others. Which sequence a program serves is found on the device.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tightrope import implements
from tightrope.attention_backward_steps import fetched, met, reduced, rows_of
from tightrope.attention_backward_tiles import Config
from tightrope.attention_steps import clipped, placed, visible
from tightrope.sequence_call import Options
from tightrope.varlen_backward_call import differentiate, promise
from tightrope.varlen_backward_steps import owner, span, walked_span


@triton.jit(do_not_specialize=[*range(50)])  # everything but the constants: lengths cost no build
def varlen_gradients_kernel(
    own_1, own_2, walked_1, walked_2, out, grad_1, grad_2,
    lse, sums, shifts, offsets, starts_own, starts_walked,
    sequences: tl.int32, own_tokens: tl.int32, walked_tokens: tl.int32, words: tl.int32,
    words_v: tl.int32, own_heads: tl.int32, share: tl.int32, repeat: tl.int32,
    own_tiles: tl.int32, together: tl.int32, has_offsets: tl.int32,
    own_1_token: tl.int64, own_1_head: tl.int64, own_1_dim: tl.int64, own_2_token: tl.int64,
    own_2_head: tl.int64, own_2_dim: tl.int64, walked_1_token: tl.int64, walked_1_head: tl.int64,
    walked_1_dim: tl.int64, walked_2_token: tl.int64, walked_2_head: tl.int64,
    walked_2_dim: tl.int64, out_token: tl.int64, out_head: tl.int64, out_dim: tl.int64,
    lse_head: tl.int64, lse_token: tl.int64, offset_step: tl.int64, own_step: tl.int64,
    walked_step: tl.int64, left: tl.int64, right: tl.int64, c: tl.float32, factor: tl.float32,
    cap: tl.float32, scale: tl.float32,
    UNIT: tl.constexpr, PADDED: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    OWN: tl.constexpr, WALKED: tl.constexpr, SOFTCAP: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    # Layout: all (tokens, heads, width), strides of UNIT elements, lse (num_heads, tokens_q); grads
    # contiguous, sums and shifts (num_heads, tokens_q). KEYS: own_1 k, own_2 v, walked_1 q,
    # walked_2 dout, `repeat` heads of them; else q, dout, k, v, and `share` owned heads walk over
    # the same.
    tile, head = placed(tl.program_id(0), together, own_heads, own_tiles)
    if KEYS:  # under a causal mask the first keys are seen by most rows
        tile = own_tiles - 1 - tile
    if UNIT > 1:  # rows of words: as a constant, the stride 1 makes neighbours one wide access
        own_1_dim, own_2_dim, walked_1_dim, walked_2_dim, out_dim = 1, 1, 1, 1, 1

    sequence = owner(starts_own, own_step, sequences, own_tokens, tile, OWN)
    first_own, own_length = span(starts_own, own_step, sequence, sequences, own_tokens)
    first_walked, walked_length = walked_span(
        starts_walked, walked_step, sequence, sequences, walked_tokens
    )
    place = (tile - first_own // OWN - sequence) * OWN
    # A tile that no sequence fills: it owns nothing. To return here would cost registers.
    place = tl.where(place < 0, own_length, tl.minimum(place, own_length))
    # An owned i and a walked i + offset - left to i + offset + right see one another; by default
    # the last ones do. What sees nothing may hold anything, and is not read.
    offset = (walked_length - own_length).to(tl.int64)
    if has_offsets != 0 and sequence < sequences:
        given = tl.load(offsets + sequence.to(tl.int64) * offset_step).to(tl.int64)
        offset = -given if KEYS else given
    own, inner = place + tl.arange(0, OWN), tl.arange(0, WALKED)
    last_own = tl.minimum(place + OWN, own_length) - 1
    low, high, whole, beyond = visible(place, last_own, offset, left, right, walked_length, WALKED)
    mine, token = own < own_length, own.to(tl.int64) + first_own
    own_low = clipped(own.to(tl.int64) + offset - left, walked_length)
    own_high = clipped(own.to(tl.int64) + offset + right + 1, walked_length)
    alive = mine & (own_low < own_high)

    # Offsets are 64-bit before anything is multiplied: a tensor may reach past 2^31 elements.
    h, walked_head = head.to(tl.int64), head // share * repeat
    d, d_v = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    dims, dims_v = d < words * UNIT, d_v < words_v * UNIT
    one_at = rows_of(own_1, h * own_1_head, token, own_1_token, UNIT) + d[None, :] * own_1_dim
    two_at = rows_of(own_2, h * own_2_head, token, own_2_token, UNIT) + d_v[None, :] * own_2_dim
    one, two = fetched(one_at, alive, dims, PADDED), fetched(two_at, alive, dims_v, PADDED)
    if not KEYS:
        out_at = rows_of(out, h * out_head, token, out_token, UNIT) + d_v[None, :] * out_dim
        given_lse = tl.load(lse + h * lse_head + token * lse_token, mask=alive, other=0.0)
        own_sum, own_shift = reduced(fetched(out_at, alive, dims_v, PADDED), two, given_lse, alive)
        tl.store(sums + h * own_tokens + token, own_sum, mask=mine)
        tl.store(shifts + h * own_tokens + token, own_shift, mask=mine)
        sum_tile, shift_tile = own_sum[:, None], own_shift[:, None]

    at_0 = inner.to(tl.int64) + first_walked
    x_0 = rows_of(walked_1, 0, at_0, walked_1_token, UNIT) + d[None, :] * walked_1_dim
    y_0 = rows_of(walked_2, 0, at_0, walked_2_token, UNIT) + d_v[None, :] * walked_2_dim
    total_1, total_2 = tl.zeros([OWN, BLOCK_D], tl.float32), tl.zeros([OWN, BLOCK_DV], tl.float32)
    for of_head in tl.range(walked_head, walked_head + repeat):
        h_w = tl.cast(of_head, tl.int64)
        for start in tl.range(low // WALKED * WALKED, high, WALKED):
            walked = start + inner
            some, from_0 = (walked >= low) & (walked < high), tl.cast(start, tl.int64)
            x_at = x_0 + (h_w * walked_1_head + from_0 * walked_1_token) * UNIT
            y_at = y_0 + (h_w * walked_2_head + from_0 * walked_2_token) * UNIT
            x, y = fetched(x_at, some, dims, PADDED), fetched(y_at, some, dims_v, PADDED)
            if KEYS:
                at = from_0 + at_0
                row = h_w * walked_tokens + at
                sum_tile = tl.load(sums + row, mask=some, other=0.0)[None, :]
                shift_tile = tl.load(shifts + row, mask=some, other=float("inf"))[None, :]
            p, ds = met(one, two, x, y, sum_tile, shift_tile, c, factor, cap, SOFTCAP)
            if (start < whole) | (start >= beyond):
                seen = (walked[None, :] >= own_low[:, None]) & (walked[None, :] < own_high[:, None])
                p, ds = tl.where(seen, p, 0.0), tl.where(seen, ds, 0.0)
            if KEYS:
                total_2 = tl.dot(p.to(y.dtype), y, total_2, input_precision="ieee")
            total_1 = tl.dot(ds.to(x.dtype), x, total_1, input_precision="ieee")

    grad_row, kept = token * own_heads + h, mine[:, None]
    grad_at = rows_of(grad_1, 0, grad_row, words.to(tl.int64), UNIT) + d[None, :]
    found = (total_1 * scale).to(grad_1.dtype.element_ty)
    tl.store(grad_at, found, mask=kept & dims[None, :])
    if KEYS:
        v_at = rows_of(grad_2, 0, grad_row, words_v.to(tl.int64), UNIT) + d_v[None, :]
        tl.store(v_at, total_2.to(grad_2.dtype.element_ty), mask=kept & dims_v[None, :])


@implements("attention_varlen_backward", name="triton", arithmetic=promise)
def attention_varlen_backward(
    dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
    lse: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor, *,
    softmax_scale: float | None = None, causal: bool = False,
    q_offset: torch.Tensor | None = None,
    window_size: tuple[int | None, int | None] | None = (None, None), softcap: float | None = None,
    out_dtype: torch.dtype | None = None, validate: bool = False, blocks: Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """dq, dk and dv of `attention_varlen`, from the gradient dout of its out; any strides.

    Arguments and options mean what they mean there, no sink; out and lse are what it returned for
    them. q (tokens_q, num_heads, head_dim), k (tokens_k, num_kv_heads, head_dim), v (..,
    head_dim_v): float16, bfloat16 or float32, widths of 1 to 256; dout and out (tokens_q,
    num_heads, head_dim_v) in q's dtype, lse (num_heads, tokens_q) float32; cu_seqlens
    (sequences + 1,) int32; q_offset (sequences,) int32, None is each one's seqlen_k - seqlen_q.
    Returns gradients of the shapes of q, k and v, in q's dtype, or before their last rounding with
    out_dtype=torch.float32; dk and dv are summed over the query heads of a kv head in float32, in
    order. Exactly 0: a row with lse = -inf, keys that no row sees, tokens past the last sequence,
    whatever dout, out and lse hold there. Memory: the outputs and two float32 numbers a row.
    blocks: tiles other than the table's. No second gradients: refused where autograd would record.
    cu_seqlens that do not rise from 0 to at most the tokens: as `attention_varlen` has it.
    Raises as `varlen_backward_call.check` and `validate_attention_backward.check_tiles`.
    """
    tensors = (dout, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k)
    options = Options(softmax_scale, causal, q_offset, window_size, softcap, None, out_dtype)
    return differentiate(varlen_gradients_kernel, tensors, options, validate, blocks)
