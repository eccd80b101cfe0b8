"""What the consuming warps of PoPE's Hopper kernels do: Gluon device functions."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from tightrope.attention_hopper_rows import owned, store_rows, walk
from tightrope.attention_hopper_warps import barrier, task
from tightrope.softplus import softplus


@gluon.jit
def queries(
    tensors, sizes, head, first_row, ROWS: gl.constexpr, D: gl.constexpr, layout: gl.constexpr,
    TURNED: gl.constexpr,
):  # fmt: skip
    """mu(q) cos and mu(q) sin of ROWS rows, in q's dtype, turned back by delta; 0 past the last.

    With a table of float32 goes a precise softplus.
    """
    q, table, delta, q_batch, q_head, q_row, q_angles, q_plane, delta_group, delta_plane = tensors
    seqlen_q, _, num_heads, _, _, _, _, _, _ = sizes
    b, h = (head // num_heads).to(gl.int64), (head % num_heads).to(gl.int64)
    row = first_row + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    d = gl.arange(0, D, layout=gl.SliceLayout(0, layout))
    mine, wide = (row < seqlen_q)[:, None], row.to(gl.int64)[:, None]
    q_at = q + (b * q_batch + h * q_head) * 8 + wide * (q_row * 8)
    cos_at = table + b * q_angles + wide * D
    sin_at = gl.multiple_of(cos_at + q_plane, (16, 16))
    q_at, cos_at = gl.multiple_of(q_at, (16, 16)), gl.multiple_of(cos_at, (16, 16))
    x = gl.load(q_at + d[None, :], mask=mine, other=0.0)
    c = gl.load(cos_at + d[None, :], mask=mine, other=0.0).to(gl.float32)
    s = gl.load(sin_at + d[None, :], mask=mine, other=0.0).to(gl.float32)
    if TURNED:
        at = delta + (head % num_heads // delta_group) * D + d
        c_d, s_d = gl.load(at)[None, :], gl.load(at + delta_plane)[None, :]
        c, s = c * c_d + s * s_d, s * c_d - c * s_d
    FORM: gl.constexpr = "short" if table.dtype.element_ty == gl.float16 else "precise"
    mu = softplus(x, FORM)
    return (mu * c).to(x.dtype), (mu * s).to(x.dtype)


@gluon.jit
def consume(given, GROUP: gl.constexpr, D: gl.constexpr, TURNED: gl.constexpr, TILE: gl.constexpr):
    """Four warps: attention of their share, the GROUP-th, of every turn's rows."""
    tensors, out, lse, q_tiles, ring, sizes, c = given
    ROWS: gl.constexpr = TILE.BLOCK_M // TILE.CONSUMERS
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE.BLOCK_N, 16])
    across: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    q_layout: gl.constexpr = across if TILE.Q_SHARED else gl.DotOperandLayout(0, s_layout, 2)
    turns, step = sizes[7], 0
    for turn in range(turns):
        head, first_row, tiles = task(turn, sizes, TILE)
        first_row += GROUP * ROWS
        own = owned(first_row, tiles, sizes, ROWS, TILE.BLOCK_N)
        q_x, q_y = queries(tensors, sizes, head, first_row, ROWS, D, q_layout, TURNED)
        if TILE.Q_SHARED:
            q_tiles.index(2 * GROUP).store(q_x)
            q_tiles.index(2 * GROUP + 1).store(q_y)
            fence_async_shared()
            barrier()
            q_x, q_y = q_tiles.index(2 * GROUP), q_tiles.index(2 * GROUP + 1)
        limits = first_row, own, tiles
        m, l, acc, step = walk((q_x, q_y), ring, step, limits, sizes, c, ROWS, D, TILE)
        store_rows(out, lse, head, first_row, m, l, acc, sizes)


@gluon.jit
def places_of_queries(
    otherwise, dtype: gl.constexpr, D: gl.constexpr, TILE: gl.constexpr
):  # fmt: skip
    """Shared memory of both halves of all groups' rows where Q_SHARED; else what stands in."""
    places = otherwise
    if TILE.Q_SHARED:
        ROWS: gl.constexpr = TILE.BLOCK_M // TILE.CONSUMERS
        half: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, D], dtype)
        places = gl.allocate_shared_memory(dtype, [2 * TILE.CONSUMERS, ROWS, D], half)
    return places
