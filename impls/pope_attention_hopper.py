"""PoPE attention forward in Gluon, for Hopper: warps of their own expand keys, once a program.

A program is a few groups of warps that meet at barriers in shared memory
(`tightrope.pope_hopper_warps`):

- `produce`, one or two groups of four: mu(k) cos and mu(k) sin of a tile of keys, stored where
  tensor cores read them. k, tables and v come by TMA, asked for here or by one warp more, `load`.
- `consume`, mostly two groups of four: each expands its share of a tile of q once and walks over
  the expanded keys with the online softmax of `tightrope.impls.attention` (FlashAttention-2, arXiv
  2307.08691, Algorithm 1). A score is two products, of the mu cos and of the mu sin (arXiv
  2509.10534, eq. 6). PIPELINED: tensor cores make the next tile's scores under this one's softmax.

Programs stay, one a processor, and take tiles of rows in turns. delta turns q, by its opposite. No
expanded tensor reaches memory.
"""

from __future__ import annotations

import os

import torch
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma_wait

from tightrope import implements
from tightrope.pope_hopper_call import attend, promise
from tightrope.pope_hopper_rows import LOWEST, add_values, queries, scores, visible, weights
from tightrope.pope_hopper_tile import DTYPES, WIDTHS, Tile
from tightrope.pope_hopper_warps import (
    await_filled,
    barrier,
    barriers,
    load,
    produce,
    seen,
    signal,
    task,
)
from tightrope.sequence_call import Options

ON_HOPPER = (
    os.environ.get("TIGHTROPE_DEVICE") != "cpu"
    and torch.cuda.is_available()
    and torch.cuda.get_device_capability() == (9, 0)
)
MISSING = None if ON_HOPPER else "runs on a GPU of capability 9.0 alone"
LN2 = gl.constexpr(0.6931471805599453)


@gluon.jit
def consume(given, GROUP: gl.constexpr, D: gl.constexpr, TURNED: gl.constexpr, TILE: gl.constexpr):
    """Four warps: attention of their share, the GROUP-th, of every turn's rows."""
    tensors, out, lse, q_tiles, ring, sizes, c = given
    ROWS: gl.constexpr = TILE.BLOCK_M // TILE.CONSUMERS
    BLOCK_N: gl.constexpr = TILE.BLOCK_N
    KEYS: gl.constexpr = TILE.KEYS
    VALUES: gl.constexpr = TILE.VALUES
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    s_rows: gl.constexpr = gl.SliceLayout(1, s_layout)
    o_rows: gl.constexpr = gl.SliceLayout(1, o_layout)
    across: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    q_layout: gl.constexpr = across if TILE.Q_SHARED else gl.DotOperandLayout(0, s_layout, 2)
    seqlen_q, _, _, _, _, _, _, turns, _ = sizes
    step = 0
    for turn in range(turns):
        head, first_row, tiles = task(turn, sizes, TILE)
        first_row += GROUP * ROWS
        last_row = gl.minimum(first_row + ROWS, seqlen_q) - 1
        own = gl.where(last_row < first_row, 0, gl.cdiv(seen(last_row, sizes), BLOCK_N))
        own = gl.minimum(own, tiles)
        whole = seen(first_row, sizes) // BLOCK_N
        high = seen(first_row + gl.arange(0, ROWS, layout=s_rows), sizes)
        q_x, q_y = queries(tensors, sizes, head, first_row, ROWS, D, q_layout, TURNED)
        if TILE.Q_SHARED:
            q_tiles.index(2 * GROUP).store(q_x)
            q_tiles.index(2 * GROUP + 1).store(q_y)
            fence_async_shared()
            barrier()
            q_x, q_y = q_tiles.index(2 * GROUP), q_tiles.index(2 * GROUP + 1)
        m = gl.full([ROWS], LOWEST, gl.float32, s_rows)
        l = gl.zeros([ROWS], gl.float32, s_rows)
        acc = gl.zeros([ROWS, D], gl.float32, o_layout)
        # Never added to. Not 0: the compiler would take it and acc, if they are alike, for one.
        nothing = gl.full([ROWS, BLOCK_N], 1.0, gl.float32, s_layout)
        if TILE.PIPELINED:
            if own > 0:
                s = warpgroup_mma_wait(0, deps=[scores(q_x, q_y, ring, step, nothing, KEYS)])
                signal(ring[4], step, KEYS)
                s = visible(s, 0, whole, high, BLOCK_N)
                for tile in range(1, own):
                    later = scores(q_x, q_y, ring, step + 1, nothing, KEYS)
                    p, alpha, m, l = weights(s, m, l, c)
                    sum = add_values(p, alpha, acc, ring, step, VALUES)
                    s = warpgroup_mma_wait(1, deps=[later])
                    signal(ring[4], step + 1, KEYS)
                    acc = warpgroup_mma_wait(0, deps=[sum])
                    signal(ring[6], step, VALUES)
                    s = visible(s, tile, whole, high, BLOCK_N)
                    step += 1
                p, alpha, m, l = weights(s, m, l, c)
                acc = warpgroup_mma_wait(0, deps=[add_values(p, alpha, acc, ring, step, VALUES)])
                signal(ring[6], step, VALUES)
                step += 1
        else:
            for tile in range(own):
                s = warpgroup_mma_wait(0, deps=[scores(q_x, q_y, ring, step, nothing, KEYS)])
                signal(ring[4], step, KEYS)
                p, alpha, m, l = weights(visible(s, tile, whole, high, BLOCK_N), m, l, c)
                acc = warpgroup_mma_wait(0, deps=[add_values(p, alpha, acc, ring, step, VALUES)])
                signal(ring[6], step, VALUES)
                step += 1
        for _ in range(own, tiles):  # that only the other group's rows see
            await_filled(ring[3], step, KEYS)
            signal(ring[4], step, KEYS)
            await_filled(ring[5], step, VALUES)
            signal(ring[6], step, VALUES)
            step += 1
        if first_row < seqlen_q:
            row = first_row + gl.arange(0, ROWS, layout=s_rows)
            at = head.to(gl.int64) * seqlen_q + row
            gl.store(lse + at, (m + gl.log2(l)) * LN2, mask=row < seqlen_q)
            acc = acc / gl.convert_layout(gl.where(l == 0.0, 1.0, l), o_rows)[:, None]
            row = first_row + gl.arange(0, ROWS, layout=o_rows)
            at = (head.to(gl.int64) * seqlen_q + row)[:, None] * D
            d = gl.arange(0, D, layout=gl.SliceLayout(0, o_layout))
            gl.store(
                out + (at + d[None, :]),
                acc.to(out.dtype.element_ty),
                mask=(row < seqlen_q)[:, None],
            )


@gluon.jit(do_not_specialize=[*range(26)])
def pope_hopper_kernel(
    q, out, lse, q_table, delta, k_tiles, v_tiles, tables,
    seqlen_q: tl.int32, seqlen_k: tl.int32, num_heads: tl.int32, group: tl.int32,
    all_heads: tl.int32, row_tiles: tl.int32, together: tl.int32, turns: tl.int32,
    offset: tl.int32, per_batch: tl.int32, delta_group: tl.int32, delta_plane: tl.int32,
    q_batch: tl.int64, q_head: tl.int64, q_row: tl.int64, q_angles: tl.int64, q_plane: tl.int64,
    c: tl.float32, D: gl.constexpr, TURNED: gl.constexpr, EARLY: gl.constexpr, TILE: gl.constexpr,
):  # fmt: skip
    dtype: gl.constexpr = q.dtype.element_ty
    ROWS: gl.constexpr = TILE.BLOCK_M // TILE.CONSUMERS
    expanded: gl.constexpr = gl.NVMMASharedLayout.get_default_for([TILE.BLOCK_N, D], dtype)
    k_x = gl.allocate_shared_memory(dtype, [TILE.KEYS, TILE.BLOCK_N, D], expanded)
    k_y = gl.allocate_shared_memory(dtype, [TILE.KEYS, TILE.BLOCK_N, D], expanded)
    values = gl.allocate_shared_memory(
        dtype, [TILE.VALUES, 1, 1, TILE.BLOCK_N, D], v_tiles.layout
    )  # fmt: skip
    raw = (
        gl.allocate_shared_memory(dtype, [TILE.RAW, 1, 1, TILE.CHUNK, D], k_tiles.layout),
        gl.allocate_shared_memory(gl.float16, [TILE.RAW, 2, 1, TILE.CHUNK, D], tables.layout),
        barriers(TILE.RAW, 1), barriers(TILE.RAW, 1),
    )  # fmt: skip
    q_tiles = k_x
    if TILE.Q_SHARED:
        half: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, D], dtype)
        q_tiles = gl.allocate_shared_memory(dtype, [2 * TILE.CONSUMERS, ROWS, D], half)
    ring = (
        k_x, k_y, values, barriers(TILE.KEYS, TILE.PARTS), barriers(TILE.KEYS, TILE.CONSUMERS),
        barriers(TILE.VALUES, 1), barriers(TILE.VALUES, TILE.CONSUMERS),
    )  # fmt: skip
    fence_async_shared()
    if EARLY:  # until the tables are complete
        tl.extra.cuda.gdc_wait()
    sizes = seqlen_q, seqlen_k, num_heads, group, all_heads, row_tiles, together, turns, offset
    tensors = q, q_table, delta, q_batch, q_head, q_row, q_angles, q_plane, delta_group, delta_plane
    rows = tensors, out, lse, q_tiles, ring, sizes, c
    keys = (k_tiles, v_tiles, tables), raw, ring, sizes, per_batch
    OWN: gl.constexpr = TILE.CONSUMER_REGISTERS
    OTHER: gl.constexpr = TILE.PRODUCER_REGISTERS
    if TILE.CONSUMERS == 1:
        gl.warp_specialize(
            [(consume, (rows, 0, D, TURNED, TILE)), (produce, (keys, 0, D, TILE))], [4], [OTHER]
        )
    elif TILE.PARTS == 1 and not TILE.LOADER:
        gl.warp_specialize(
            [
                (consume, (rows, 0, D, TURNED, TILE)), (consume, (rows, 1, D, TURNED, TILE)),
                (produce, (keys, 0, D, TILE)),
            ],
            [4, 4], [OWN, OTHER],
        )  # fmt: skip
    elif TILE.PARTS == 1:
        gl.warp_specialize(
            [
                (consume, (rows, 0, D, TURNED, TILE)), (consume, (rows, 1, D, TURNED, TILE)),
                (produce, (keys, 0, D, TILE)), (load, (keys, D, TILE)),
            ],
            [4, 4, 1], [OWN, OTHER, 24],
        )  # fmt: skip
    elif not TILE.LOADER:
        gl.warp_specialize(
            [
                (consume, (rows, 0, D, TURNED, TILE)), (consume, (rows, 1, D, TURNED, TILE)),
                (produce, (keys, 0, D, TILE)), (produce, (keys, 1, D, TILE)),
            ],
            [4, 4, 4], [OWN, OTHER, OTHER],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (consume, (rows, 0, D, TURNED, TILE)), (consume, (rows, 1, D, TURNED, TILE)),
                (produce, (keys, 0, D, TILE)), (produce, (keys, 1, D, TILE)),
                (load, (keys, D, TILE)),
            ],
            [4, 4, 4, 1], [OWN, OTHER, OTHER, 24],
        )  # fmt: skip


def pope_attention_hopper(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, inv_freq: torch.Tensor,
    delta: torch.Tensor | None, q_positions: torch.Tensor, k_positions: torch.Tensor, *,
    softmax_scale: float | None = None, causal: bool = False, q_offset: int = 0,
    window_size: tuple[int | None, int | None] | None = (None, None), softcap: float | None = None,
    sink: torch.Tensor | None = None, out_dtype: torch.dtype | None = None, validate: bool = False,
    tile: Tile | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The contract's call on a GPU of capability 9.0, for head_dim = head_dim_v = rotary_dim.

    That is 64 or 128; q, k, v float16 or bfloat16, rows of contiguous features at multiples of 16
    bytes, no stride of 0; q_offset a number; no window, softcap or sink. As
    `tightrope.impls.pope_attention.pope_attention` otherwise, but that keys of float16 go through a
    coarser softplus. Beside the outputs it allocates float16 tables, 4 * head_dim bytes a token
    (once, if q_positions are k_positions in memory), and 8 bytes an element of delta. tile: one
    other than `pope_hopper_tile.tile_for`'s. Keys that no row sees by index are not read.
    Raises as `pope_hopper_tile.check_hopper` and `check_tile`; ValueError for another device or for
    addresses.
    """
    tensors = (q, k, v, inv_freq, delta, q_positions, k_positions)
    options = Options(softmax_scale, causal, q_offset, window_size, softcap, sink, out_dtype)
    return attend(pope_hopper_kernel, tensors, options, validate, tile)


if MISSING is None:
    implements(
        "pope_attention", name="hopper", arithmetic=promise, dtype=DTYPES, head_dim=WIDTHS,
        window_left=(None,), window_right=(None,), softcap=(None,), sink=(False,),
        offsets=("int",), positions=("range", "offset", "random", "per_batch", "long"),
        where=("full_rotary", "same_head_dim", "aligned16"),
    )(pope_attention_hopper)  # fmt: skip
