"""Attention forward with PoPE, the simple way: q and k become points of the plane, then attention.

One launch expands both: a polar feature x at the angle a becomes softplus(x) cos a and
softplus(x) sin a (Gopalakrishnan et al., PoPE, arXiv 2509.10534, eq. 3 to 10), and a row
[x | y | plain features]. A program takes a tile of tokens, finds their angles once, exact at any
position (`tightrope.turns`), and goes over heads, of all sequences at these positions, of q and,
where its positions are q's, of k. A phase delta turns keys, or by its opposite
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
from tightrope.attention_hopper_tile import Tile
from tightrope.attention_tiles import Config
from tightrope.pope_attention_call import POSITIONS
from tightrope.pope_expand_call import attend, promise
from tightrope.sequence_call import Options
from tightrope.softplus import softplus
from tightrope.turns import cos_sin, fraction, phase, turned


@triton.jit
def angles(positions, inv_freq, inverse_turn, token, mine, d, dims, position_step, f_step):
    """cos and sin in float64 of a tile of tokens and features; positions: of their sequence."""
    m = tl.load(positions + token * position_step, mask=mine, other=0).to(tl.int64)
    frequency = tl.load(inv_freq + d * f_step, mask=dims, other=0.0).to(tl.float64)
    high, low = fraction(frequency, inverse_turn)
    return turned(m[:, None], high[None, :], low[None, :])


@triton.jit
def begins(x, plane, first_batch, heads, steps, rows, UNIT: tl.constexpr):
    """Where rows of a plane of x begin: of a sequence from first_batch on, and a head."""
    x_batch, x_head, _, _ = steps
    b, h = (first_batch + plane // heads).to(tl.int64), (plane % heads).to(tl.int64)
    at = x + (b * x_batch + h * x_head) * UNIT + rows
    return tl.multiple_of(at, (16, 16)) if UNIT > 1 else at


@triton.jit
def fetched(
    x, plane, last, first_batch, heads, steps, rows, columns, keep, UNIT: tl.constexpr
):  # fmt: skip
    """Polar features of a tile of a plane before the last; of others none are read."""
    at = begins(x, plane, first_batch, heads, steps, rows, UNIT)
    return tl.load(at + columns, mask=keep & (plane < last), other=0.0)


@triton.jit
def kept(mine, dims, PADDED: tl.constexpr):
    return mine[:, None] & dims[None, :] if PADDED else mine[:, None]


@triton.jit
def three(x, planes, tile, shape, steps, UNIT: tl.constexpr, PADDED: tl.constexpr):
    """A tile of the first three planes. So many on their way keep memory busy."""
    token, d, mine, dims = tile
    first, last, batch = planes
    heads, _ = shape
    _, _, x_row, x_dim = steps
    rows, columns = token[:, None] * (x_row * UNIT), d[None, :] * x_dim
    keep = kept(mine, dims, PADDED)
    x0 = fetched(x, first, last, batch, heads, steps, rows, columns, keep, UNIT)
    x1 = fetched(x, first + 1, last, batch, heads, steps, rows, columns, keep, UNIT)
    x2 = fetched(x, first + 2, last, batch, heads, steps, rows, columns, keep, UNIT)
    return x0, x1, x2


@triton.jit
def expand(
    x, coming, points, delta, inverse_turn, cs, tile, planes, shape, widths, steps, turning,
    UNIT: tl.constexpr, PADDED: tl.constexpr, PLAIN: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """Write the points of one tile of tokens of x (batch, heads, seqlen, ..), for some planes.

    cs: cos and sin. tile: tokens, features, and which of them there are. planes: the first one, the
    last but one, and what the first sequence is. shape, widths, steps: a tensor's numbers, as the
    kernel has them. coming: of `three`. turning: the sign of delta, 0 for none, and its strides.
    """
    c, s = cs
    token, d, mine, dims = tile
    first, last, first_batch = planes
    heads, seqlen = shape
    polar, plain = widths
    _, _, x_row, x_dim = steps
    sign, delta_head, delta_dim = turning
    cosine, sine = c.to(tl.float32), s.to(tl.float32)
    keep = kept(mine, dims, PADDED)
    width = (2 * polar + plain).to(tl.int64) * UNIT
    rows, columns = token[:, None] * (x_row * UNIT), d[None, :] * x_dim
    x0, x1, x2 = coming
    for plane in tl.range(first, last):
        size = softplus(x0, "precise")
        x0, x1 = x1, x2
        x2 = fetched(x, plane + 3, last, first_batch, heads, steps, rows, columns, keep, UNIT)
        to_plane = first_batch.to(tl.int64) * heads + plane
        to_at = points + (to_plane * seqlen + token[:, None]) * width
        if UNIT > 1:
            to_at = tl.multiple_of(to_at, (16, 16))
        if sign != 0:
            at = delta + (plane % heads).to(tl.int64) * delta_head + d * delta_dim
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
            there = mine[:, None] & (e < plain * UNIT)[None, :]
            from_at = begins(x, plane, first_batch, heads, steps, rows, UNIT)
            rest = tl.load(from_at + (polar * UNIT + e)[None, :] * x_dim, mask=there, other=0.0)
            tl.store(to_at + (2 * polar * UNIT + e)[None, :], rest, mask=there)


@triton.jit
def write_table(table, cs, tile, begin, first, plane, polar, UNIT: tl.constexpr):
    """cos, and sin a plane behind, of a tile of tokens, by the program of its first plane."""
    c, s = cs
    token, d, mine, dims = tile
    at = table + (begin + token)[:, None] * (polar * UNIT)
    behind = at + plane
    if UNIT > 1:
        at, behind = tl.multiple_of(at, (16, 16)), tl.multiple_of(behind, (16, 16))
    keep = mine[:, None] & dims[None, :] & (first == 0)
    tl.store(at + d[None, :], c.to(tl.float32), mask=keep)
    tl.store(behind + d[None, :], s.to(tl.float32), mask=keep)


@triton.jit
def piece(program, each, pieces, blocks, copies, ROWS: tl.constexpr):
    """First plane, tokens, positions and sequence of a program; pieces vary fastest."""
    block, sequence = program // pieces % blocks, program // pieces // blocks
    token = block.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    return program % pieces * each, token, sequence.to(tl.int64), sequence * copies


@triton.jit(do_not_specialize=[*range(43)])
def expand_kernel(
    q, k, q_points, k_points, q_positions, k_positions, inv_freq, inverse_turn, delta,
    q_programs: tl.int32, shared: tl.int32, polar: tl.int32, plain: tl.int32, f_step: tl.int64,
    seqlen_q: tl.int32, num_heads: tl.int32, q_copies: tl.int32, q_each: tl.int32,
    q_pieces: tl.int32, q_blocks: tl.int32, q_plane: tl.int64, q_place_batch: tl.int64,
    q_place_step: tl.int64,
    seqlen_k: tl.int32, num_kv_heads: tl.int32, k_copies: tl.int32, k_each: tl.int32,
    k_pieces: tl.int32, k_blocks: tl.int32, k_place_batch: tl.int64, k_place_step: tl.int64,
    q_batch: tl.int64, q_head: tl.int64, q_row: tl.int64, q_dim: tl.int64,
    k_batch: tl.int64, k_head: tl.int64, k_row: tl.int64, k_dim: tl.int64,
    q_sign: tl.int32, k_sign: tl.int32, delta_head: tl.int64, delta_dim: tl.int64,
    UNIT: tl.constexpr, PADDED: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PLAIN: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    # Layout: as in pope_attention; points (batch, heads, seqlen, 2 * polar + plain), contiguous.
    # A plane is a sequence and a head; `copies` sequences have the same positions, and a program
    # takes `each` of their planes. Programs: q's, which take k's planes too where `shared`, since q
    # and k then have the same positions; else k's behind them. q_points of float32 beside a shorter
    # q: not points, but cos and sin of q's tokens, (2, sequences * seqlen_q, polar), are written.
    if AHEAD:  # the launch behind this one may begin as processors get free
        tl.extra.cuda.gdc_launch_dependents()
    if UNIT > 1:  # rows of words: as a constant, the stride 1 makes neighbours one wide access
        q_dim, k_dim = 1, 1
    TABLE: tl.constexpr = q_points.dtype.element_ty != q.dtype.element_ty
    program, d = tl.program_id(0), tl.arange(0, BLOCK_D)
    dims, widths = d < polar * UNIT, (polar, plain)
    of_q, of_k = (num_heads, seqlen_q), (num_kv_heads, seqlen_k)
    q_steps, k_steps = (q_batch, q_head, q_row, q_dim), (k_batch, k_head, k_row, k_dim)
    q_turning, k_turning = (q_sign, delta_head, delta_dim), (k_sign, delta_head, delta_dim)
    if program < q_programs:
        first, token, sequence, batch = piece(
            program, q_each, q_pieces, q_blocks, q_copies, BLOCK_M
        )  # fmt: skip
        mine, planes, last = token < seqlen_q, q_copies * num_heads, first + q_each
        if TABLE:
            planes = 0
        tile, of_these = (token, d, mine, dims), (first, tl.minimum(last, planes), batch)
        coming = three(q, of_these, tile, of_q, q_steps, UNIT, PADDED)
        q_at = q_positions + sequence * q_place_batch
        cs = angles(q_at, inv_freq, inverse_turn, token, mine, d, dims, q_place_step, f_step)
        if TABLE:
            write_table(q_points, cs, tile, sequence * seqlen_q, first, q_plane, polar, UNIT)
        else:
            expand(
                q, coming, q_points, delta, inverse_turn, cs, tile, of_these,
                of_q, widths, q_steps, q_turning, UNIT, PADDED, PLAIN, BLOCK_DV,
            )  # fmt: skip
        if shared != 0:
            last = tl.minimum(last - planes, q_copies * num_kv_heads)
            of_these = tl.maximum(first - planes, 0), last, batch
            coming = three(k, of_these, tile, of_k, k_steps, UNIT, PADDED)
            expand(
                k, coming, k_points, delta, inverse_turn, cs, tile, of_these,
                of_k, widths, k_steps, k_turning, UNIT, PADDED, PLAIN, BLOCK_DV,
            )  # fmt: skip
    else:
        first, token, sequence, batch = piece(
            program - q_programs, k_each, k_pieces, k_blocks, k_copies, BLOCK_M
        )  # fmt: skip
        mine, last = token < seqlen_k, tl.minimum(first + k_each, k_copies * num_kv_heads)
        tile, of_these = (token, d, mine, dims), (first, last, batch)
        coming = three(k, of_these, tile, of_k, k_steps, UNIT, PADDED)
        k_at = k_positions + sequence * k_place_batch
        cs = angles(k_at, inv_freq, inverse_turn, token, mine, d, dims, k_place_step, f_step)
        expand(
            k, coming, k_points, delta, inverse_turn, cs, tile, of_these,
            of_k, widths, k_steps, k_turning, UNIT, PADDED, PLAIN, BLOCK_DV,
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
    blocks: Config | Tile | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """`tightrope.impls.pope_attention.pope_attention` by way of expanded copies of q and k.

    The same arguments and refusals; head_dim + rotary_dim is at most 256 (ValueError), the width of
    the copies, which are allocated beside the outputs. Keys that no row sees are expanded too,
    whatever they hold. On a GPU of capability 9.0, `tightrope.impls.attention_hopper` does the rest
    where it can by dtype, widths and options; v is copied there if TMA cannot read it as it lies.
    blocks: the tile of `attention`; a `Config` asks for Triton's, a `Tile` for the other one.
    """
    tensors = (q, k, v, inv_freq, delta, q_positions, k_positions)
    options = Options(softmax_scale, causal, q_offset, window_size, softcap, sink, out_dtype)
    return attend(expand_kernel, tensors, options, validate, blocks)
