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

import torch
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from tightrope import implements
from tightrope.attention_hopper_call import MISSING
from tightrope.attention_hopper_tile import DTYPES
from tightrope.attention_hopper_warps import barriers, ring_of
from tightrope.pope_hopper_call import attend, promise
from tightrope.pope_hopper_rows import consume, places_of_queries
from tightrope.pope_hopper_tile import WIDTHS, Tile
from tightrope.pope_hopper_warps import load, produce
from tightrope.sequence_call import Options


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
    q_tiles = places_of_queries(k_x, dtype, D, TILE)
    PARTS: gl.constexpr = TILE.PARTS
    ring = ring_of((k_x, k_y), values, PARTS, TILE)
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
            [(consume, (rows, 0, D, TURNED, TILE)), (produce, (keys, 0, D, TILE))],
            [4],
            [OTHER],
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
