"""Attention to points of the plane on Hopper: keys expanded beforehand, queries as they are met.

`tightrope.pope_expand_call` has keys expanded, and the angles of queries tabulated, in float32: a
row of q is read once or twice, as it is, and needs no copy. The rest is that of the two Hopper
kernels that are parts of: `feed` brings both halves of a point, `consume` expands queries.
"""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from tightrope.attention_hopper_call import (
    outputs,
    plan_of,
    processors_of,
    sizes,
    tiled_launcher,
)
from tightrope.attention_hopper_tile import Tile, tile_for
from tightrope.attention_hopper_warps import feed, ring_of
from tightrope.pope_angles_call import places
from tightrope.pope_hopper_rows import consume, places_of_queries
from tightrope.sequence_call import Options, Plan, planned


@gluon.jit(do_not_specialize=[*range(21)])
def points_hopper_kernel(
    q, out, lse, q_table, k_tiles, v_tiles,
    q_batch: tl.int64, q_head: tl.int64, q_row: tl.int64, q_angles: tl.int64, q_plane: tl.int64,
    seqlen_q: tl.int32, seqlen_k: tl.int32, num_heads: tl.int32, group: tl.int32,
    all_heads: tl.int32, row_tiles: tl.int32, together: tl.int32, turns: tl.int32,
    offset: tl.int32, c: tl.float32, D: gl.constexpr, TILE: gl.constexpr,
):  # fmt: skip
    dtype: gl.constexpr = q.dtype.element_ty
    k_x = gl.allocate_shared_memory(dtype, [TILE.KEYS, 1, 1, TILE.BLOCK_N, D], k_tiles.layout)
    k_y = gl.allocate_shared_memory(dtype, [TILE.KEYS, 1, 1, TILE.BLOCK_N, D], k_tiles.layout)
    values = gl.allocate_shared_memory(
        dtype, [TILE.VALUES, 1, 1, TILE.BLOCK_N, D], v_tiles.layout
    )  # fmt: skip
    q_tiles = places_of_queries(k_x, dtype, D, TILE)
    ring = ring_of((k_x, k_y), values, 1, TILE)
    fence_async_shared()
    tl.extra.cuda.gdc_wait()  # until keys and table are complete
    sizes = seqlen_q, seqlen_k, num_heads, group, all_heads, row_tiles, together, turns, offset
    tensors = q, q_table, q_table, q_batch, q_head, q_row, q_angles, q_plane, 1, 0
    rows = tensors, out, lse, q_tiles, ring, sizes, c
    tiles = (k_tiles, k_tiles, v_tiles), (k_x, ring[2], ring[3]), ring, sizes
    OWN: gl.constexpr = TILE.CONSUMER_REGISTERS
    if TILE.CONSUMERS == 1:
        gl.warp_specialize(
            [
                (consume, (rows, 0, D, False, TILE)),
                (feed, (tiles, D, D, False, TILE)),
            ],
            [1], [24],
        )  # fmt: skip
    elif TILE.CONSUMERS == 2:
        gl.warp_specialize(
            [
                (consume, (rows, 0, D, False, TILE)),
                (consume, (rows, 1, D, False, TILE)),
                (feed, (tiles, D, D, False, TILE)),
            ],
            [4, 1], [OWN, 24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (consume, (rows, 0, D, False, TILE)),
                (consume, (rows, 1, D, False, TILE)),
                (consume, (rows, 2, D, False, TILE)),
                (feed, (tiles, D, D, False, TILE)),
            ],
            [4, 4, 1], [OWN, OWN, 24],
        )  # fmt: skip


def _plan(tensors: tuple[Any, ...], positions: Any, options: Options, given: Tile | None) -> Plan:
    q, k, _ = tensors
    (batch, num_heads, seqlen_q, head_dim), device = q.shape, q.device
    processors = processors_of(points_hopper_kernel, device)
    tile = given or tile_for(batch * num_heads, seqlen_q, 2 * head_dim, head_dim)
    found = sizes(q, k, options.causal, options.q_offset, tile, processors, 6 * head_dim)
    if not found.programs or not found.seqlen_k:
        return plan_of(device, None)
    sequences = max(1, places(positions)[0])
    angles = seqlen_q * head_dim
    numbers = (
        *[s // 8 for s in q.stride()[:3]], angles * (sequences > 1), sequences * angles,
        *found[1:], options.numbers(head_dim)[2],
    )  # fmt: skip
    cut = (*k.shape[:2], found.seqlen_k)
    boxes = (((*cut, 2 * head_dim), tile.BLOCK_N, 1, 2), ((*cut, head_dim), tile.BLOCK_N))
    launch = tiled_launcher(
        points_hopper_kernel, device, found.programs, boxes, (*numbers, head_dim, tile),
        tile.registers,
    )  # fmt: skip
    return plan_of(device, launch)


def attend_to_points(
    q: torch.Tensor, q_table: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    positions: torch.Tensor, options: Options, tile: Tile | None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """out and lse of a call whose arguments have been checked.

    q (batch, num_heads, seqlen_q, head_dim), at addresses of 16 bytes; q_table (2, sequences *
    seqlen_q, head_dim) float32: cos and sin; k (batch, num_kv_heads, seqlen_k, 2 * head_dim):
    points; positions: q's. softmax_scale None is that of head_dim.
    """
    plan = planned(
        (points_hopper_kernel, q, k, v, positions, *options, tile), lambda: None,
        lambda: _plan((q, k, v), positions, options, tile),
    )  # fmt: skip
    out, lse = outputs(q, v.shape[3], options.out_dtype)
    if plan.rest is None:
        plan.general(out, lse)
    else:
        plan.rest((q, out, lse, q_table), (k, v))
    return out, lse
