"""Attention forward in Gluon, for Hopper: a warp of its own brings tiles, others compute.

A program is a few groups of warps that meet at barriers in shared memory
(`tightrope.attention_hopper_warps`):

- `feed`, one warp: asks for tiles of k and v, and for a task's rows of q, by TMA.
- `consume`, one to three groups of four warps: each walks over the tiles for its share of the rows,
  with the online softmax of `tightrope.impls.attention` (FlashAttention-2, arXiv 2307.08691,
  Algorithm 1), in its order and roundings. That tensor cores work under the softmax is
  FlashAttention-3's (arXiv 2407.08608, section 3.2).

Programs stay, one a processor, and take tiles of rows in turns, the longest first.
"""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from tightrope import implements
from tightrope.attention_call import Options
from tightrope.attention_hopper_call import MISSING, attend, promise
from tightrope.attention_hopper_rows import owned, store_rows, walk
from tightrope.attention_hopper_tile import DTYPES, WIDTHS, WIDTHS_V, Tile
from tightrope.attention_hopper_warps import await_filled, barriers, feed, ring_of, signal, task


@gluon.jit
def loaded(
    given, head, first_row, sizes, ROWS: gl.constexpr, D: gl.constexpr, layout: gl.constexpr
):
    """ROWS rows of q in registers; 0 past the last."""
    q, q_batch, q_head, q_row = given
    row = first_row + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    d = gl.arange(0, D, layout=gl.SliceLayout(0, layout))
    b, h = (head // sizes[2]).to(gl.int64), (head % sizes[2]).to(gl.int64)
    at = q + (b * q_batch + h * q_head) * 8 + row.to(gl.int64)[:, None] * (q_row * 8)
    at = gl.multiple_of(at, (16, 16))
    return gl.load(at + d[None, :], mask=(row < sizes[0])[:, None], other=0.0)


@gluon.jit
def consume(
    given, GROUP: gl.constexpr, D: gl.constexpr, D_V: gl.constexpr, TILE: gl.constexpr
):  # fmt: skip
    """Four warps: attention of their share, the GROUP-th, of every turn's rows."""
    rows, out, lse, q_place, ring, sizes, c = given
    q_tiles, q_full, q_empty = q_place
    ROWS: gl.constexpr = TILE.BLOCK_M // TILE.CONSUMERS
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE.BLOCK_N, 16])
    turns, step, tasks = sizes[7], 0, 0
    for turn in range(turns):
        head, first_row, tiles = task(turn, sizes, TILE)
        first_row += GROUP * ROWS
        limits = first_row, owned(first_row, tiles, sizes, ROWS, TILE.BLOCK_N), tiles
        if TILE.Q_SHARED:
            if tiles > 0:
                await_filled(q_full, tasks, 1)
            q = q_tiles.index(GROUP).reshape([ROWS, D])
        else:
            q_layout: gl.constexpr = gl.DotOperandLayout(0, s_layout, 2)
            q = loaded(rows, head, first_row, sizes, ROWS, D, q_layout)
        m, l, acc, step = walk((q,), ring, step, limits, sizes, c, ROWS, D_V, TILE)
        if TILE.Q_SHARED and tiles > 0:
            signal(q_empty, tasks, 1)
            tasks += 1
        store_rows(out, lse, head, first_row, m, l, acc, sizes)


@gluon.jit(do_not_specialize=[*range(19)])
def attention_hopper_kernel(
    q, out, lse, q_tiles, k_tiles, v_tiles,
    seqlen_q: tl.int32, seqlen_k: tl.int32, num_heads: tl.int32, group: tl.int32,
    all_heads: tl.int32, row_tiles: tl.int32, together: tl.int32, turns: tl.int32,
    offset: tl.int32, q_batch: tl.int64, q_head: tl.int64, q_row: tl.int64, c: tl.float32,
    D: gl.constexpr, D_V: gl.constexpr, TILE: gl.constexpr,
):  # fmt: skip
    dtype: gl.constexpr = q.dtype.element_ty
    ROWS: gl.constexpr = TILE.BLOCK_M // TILE.CONSUMERS
    keys = gl.allocate_shared_memory(dtype, [TILE.KEYS, 1, 1, TILE.BLOCK_N, D], k_tiles.layout)
    values = gl.allocate_shared_memory(
        dtype, [TILE.VALUES, 1, 1, TILE.BLOCK_N, D_V], v_tiles.layout
    )  # fmt: skip
    q_slots = keys
    if TILE.Q_SHARED:
        q_slots = gl.allocate_shared_memory(
            dtype, [TILE.CONSUMERS, 1, 1, ROWS, D], q_tiles.layout
        )  # fmt: skip
    q_place = q_slots, barriers(1, 1), barriers(1, TILE.CONSUMERS)
    ring = ring_of((keys,), values, 1, TILE)
    fence_async_shared()
    tl.extra.cuda.gdc_wait()  # until what the launch in front of this one wrote is there
    sizes = seqlen_q, seqlen_k, num_heads, group, all_heads, row_tiles, together, turns, offset
    rows = (q, q_batch, q_head, q_row), out, lse, q_place, ring, sizes, c
    tiles = (q_tiles, k_tiles, v_tiles), q_place, ring, sizes
    OWN: gl.constexpr = TILE.CONSUMER_REGISTERS
    Q_TOO: gl.constexpr = TILE.Q_SHARED
    if TILE.CONSUMERS == 1:
        gl.warp_specialize(
            [(consume, (rows, 0, D, D_V, TILE)), (feed, (tiles, D, D_V, Q_TOO, TILE))],
            [1],
            [24],
        )
    elif TILE.CONSUMERS == 2:
        gl.warp_specialize(
            [
                (consume, (rows, 0, D, D_V, TILE)), (consume, (rows, 1, D, D_V, TILE)),
                (feed, (tiles, D, D_V, Q_TOO, TILE)),
            ],
            [4, 1], [OWN, 24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (consume, (rows, 0, D, D_V, TILE)), (consume, (rows, 1, D, D_V, TILE)),
                (consume, (rows, 2, D, D_V, TILE)), (feed, (tiles, D, D_V, Q_TOO, TILE)),
            ],
            [4, 4, 1], [OWN, OWN, 24],
        )  # fmt: skip


def attention_hopper(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, softmax_scale: float | None = None,
    causal: bool = False, q_offset: int = 0,
    window_size: tuple[int | None, int | None] | None = (None, None), softcap: float | None = None,
    bias: torch.Tensor | None = None, sink: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None, validate: bool = False, tile: Tile | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The contract's call on a GPU of capability 9.0.

    head_dim 64, 128 or 256, head_dim_v 64 or 128; q, k, v float16 or bfloat16, rows of contiguous
    features at multiples of 16 bytes, no stride of 0; q_offset a number; no window, softcap, bias
    or sink. As `tightrope.impls.attention.attention` otherwise. No memory but the outputs. Keys
    that no row sees by index are not read. tile: one other than `attention_hopper_tile.tile_for`'s.
    Raises as `attention_hopper_tile.check_hopper` and `check_tile`; ValueError for another device
    or for addresses.
    """
    options = Options(softmax_scale, causal, q_offset, window_size, softcap, bias, sink, out_dtype)
    return attend(attention_hopper_kernel, (q, k, v), options, validate, tile)


LIMITS: dict[str, Any] = {
    "dtype": DTYPES, "head_dim": WIDTHS, "head_dim_v": WIDTHS_V, "window_left": (None,),
    "window_right": (None,), "softcap": (None,), "bias": ("none",), "sink": (False,),
    "offsets": ("int",), "where": ("aligned16",),
}  # fmt: skip
if MISSING is None:
    implements("attention", name="hopper", arithmetic=promise, **LIMITS)(attention_hopper)
