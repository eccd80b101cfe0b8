"""Attention forward with PoPE, the simple way: q and k become points of the plane, then attention.

One launch expands both: a polar feature x at the angle a becomes softplus(x) cos a and
softplus(x) sin a (Gopalakrishnan et al., PoPE, arXiv 2509.10534, eq. 3 to 10), and a row
[x | y | plain features]. A program takes a tile of tokens, finds their angles once, exact at any
position (`tightrope.turns`), and goes over its heads. A phase delta turns keys, or by its opposite
queries where every query head has one of its own, by the sum formulas in float64: cos and sin
are within 2^-50 and products and sums within 2^-53, so that both are off by less than 2^-48
(`SHIFTED`), before one rounding to float32. The bundled `attention` of rotary_dim more features
does the rest: three tensors more than `tightrope.impls.pope_attention` in memory, less time a key.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tightrope import implements
from tightrope.attention_tiles import Config
from tightrope.pope_attention_call import POSITIONS
from tightrope.pope_expand_call import attend, promise
from tightrope.sequence_call import Options
from tightrope.softplus import softplus
from tightrope.turns import cos_sin, fraction, phase, turned


@triton.jit
def expand(
    x, points, positions, inv_freq, inverse_turn, delta, program, shape, places, steps,
    turning,
    UNIT: tl.constexpr, PADDED: tl.constexpr, PLAIN: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Write the points of one tile of tokens, x (batch, heads, seqlen, ..), for some heads.

    shape, places, steps: a tensor's numbers, as the kernel has them. turning: the sign of delta, 0
    for none, and its strides.
    """
    seqlen, heads, each, blocks, polar, plain = shape
    position_batch, position_step, f_step = places
    x_batch, x_head, x_row, x_dim = steps
    sign, delta_head, delta_dim = turning
    head_blocks = tl.cdiv(heads, each)
    first = program % head_blocks * each
    block, b = program // head_blocks % blocks, (program // head_blocks // blocks).to(tl.int64)
    token, d = block.to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    mine, dims = token < seqlen, d < polar * UNIT
    place = positions + b * position_batch + token * position_step
    m = tl.load(place, mask=mine, other=0).to(tl.int64)
    frequency = tl.load(inv_freq + d * f_step, mask=dims, other=0.0).to(tl.float64)
    high, low = fraction(frequency, inverse_turn)
    c, s = turned(m[:, None], high[None, :], low[None, :])
    cosine, sine = c.to(tl.float32), s.to(tl.float32)
    keep = mine[:, None] & dims[None, :] if PADDED else mine[:, None]
    width = (2 * polar + plain).to(tl.int64) * UNIT
    for head in tl.range(first, tl.minimum(first + each, heads)):
        h = tl.cast(head, tl.int64)
        from_at = x + (b * x_batch + h * x_head) * UNIT + token[:, None] * (x_row * UNIT)
        to_at = points + ((b * heads + h) * seqlen + token[:, None]) * width
        if UNIT > 1:
            from_at, to_at = tl.multiple_of(from_at, (16, 16)), tl.multiple_of(to_at, (16, 16))
        size = softplus(tl.load(from_at + d[None, :] * x_dim, mask=keep, other=0.0), "precise")
        if sign != 0:
            at = delta + h * delta_head + d * delta_dim
            shift = tl.load(at, mask=dims, other=0.0).to(tl.float64) * sign
            c_shift, s_shift = cos_sin(phase(shift, inverse_turn))
            c_shift, s_shift = c_shift[None, :], s_shift[None, :]
            cosine = (c * c_shift - s * s_shift).to(tl.float32)
            sine = (s * c_shift + c * s_shift).to(tl.float32)
        to = points.dtype.element_ty
        tl.store(to_at + d[None, :], (size * cosine).to(to), mask=keep)
        tl.store(to_at + polar * UNIT + d[None, :], (size * sine).to(to), mask=keep)
        if PLAIN:
            e = tl.arange(0, BLOCK_DV)
            kept = mine[:, None] & (e < plain * UNIT)[None, :]
            rest = tl.load(from_at + (polar * UNIT + e)[None, :] * x_dim, mask=kept, other=0.0)
            tl.store(to_at + (2 * polar * UNIT + e)[None, :], rest, mask=kept)


@triton.jit(do_not_specialize=[*range(37)])
def expand_kernel(
    q, k, q_points, k_points, q_positions, k_positions, inv_freq, inverse_turn, delta,
    q_programs: tl.int32, polar: tl.int32, plain: tl.int32, f_step: tl.int64,
    seqlen_q: tl.int32, num_heads: tl.int32, q_each: tl.int32, q_blocks: tl.int32,
    q_place_batch: tl.int64, q_place_step: tl.int64,
    seqlen_k: tl.int32, num_kv_heads: tl.int32, k_each: tl.int32, k_blocks: tl.int32,
    k_place_batch: tl.int64, k_place_step: tl.int64,
    q_batch: tl.int64, q_head: tl.int64, q_row: tl.int64, q_dim: tl.int64,
    k_batch: tl.int64, k_head: tl.int64, k_row: tl.int64, k_dim: tl.int64,
    q_sign: tl.int32, k_sign: tl.int32, delta_head: tl.int64, delta_dim: tl.int64,
    UNIT: tl.constexpr, PADDED: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    # Layout: as in pope_attention; points (batch, heads, seqlen, 2 * polar + plain), contiguous.
    # Programs: q's, then k's; of a tensor's, heads vary fastest, `each` at a time.
    if UNIT > 1:  # rows of words: as a constant, the stride 1 makes neighbours one wide access
        q_dim, k_dim = 1, 1
    program = tl.program_id(0)
    if program < q_programs:
        places = q_place_batch, q_place_step, f_step
        shape = seqlen_q, num_heads, q_each, q_blocks, polar, plain
        expand(
            q, q_points, q_positions, inv_freq, inverse_turn, delta, program,
            shape, places, (q_batch, q_head, q_row, q_dim), (q_sign, delta_head, delta_dim),
            UNIT, PADDED, PLAIN, BLOCK_D, BLOCK_DV, BLOCK_M,
        )  # fmt: skip
    else:
        places = k_place_batch, k_place_step, f_step
        shape = seqlen_k, num_kv_heads, k_each, k_blocks, polar, plain
        expand(
            k, k_points, k_positions, inv_freq, inverse_turn, delta, program - q_programs,
            shape, places, (k_batch, k_head, k_row, k_dim), (k_sign, delta_head, delta_dim),
            UNIT, PADDED, PLAIN, BLOCK_D, BLOCK_DV, BLOCK_M,
        )  # fmt: skip


@implements(
    "pope_attention", name="triton-expanded", arithmetic=promise, where=("wide256",),
    positions=POSITIONS,
)  # fmt: skip
def pope_attention_expanded(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, inv_freq: torch.Tensor,
    delta: torch.Tensor | None, q_positions: torch.Tensor, k_positions: torch.Tensor, *,
    softmax_scale: float | None = None, causal: bool = False, q_offset: int | torch.Tensor = 0,
    window_size: tuple[int | None, int | None] | None = (None, None), softcap: float | None = None,
    sink: torch.Tensor | None = None, out_dtype: torch.dtype | None = None, validate: bool = False,
    blocks: Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """`tightrope.impls.pope_attention.pope_attention` by way of expanded copies of q and k.

    The same arguments and refusals; head_dim + rotary_dim is at most 256 (ValueError), the width of
    the copies, which are allocated beside the outputs. Keys that no row sees are expanded too,
    whatever they hold. blocks: the tile of `attention`, which is bundled.
    """
    tensors = (q, k, v, inv_freq, delta, q_positions, k_positions)
    options = Options(softmax_scale, causal, q_offset, window_size, softcap, sink, out_dtype)
    return attend(expand_kernel, tensors, options, validate, blocks)
