"""The warps that bring raw keys and expand them in the Hopper kernel of PoPE attention.

Rings, barriers and tasks: `tightrope.attention_hopper_warps`.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from tightrope.attention_hopper_warps import (
    await_emptied,
    await_filled,
    barrier,
    bring_values,
    signal,
    task,
)
from tightrope.softplus_hopper import expanded


@gluon.jit
def bring(
    chunk, wanted, number, place, sources, raw, D: gl.constexpr, CHUNK: gl.constexpr,
    RAW: gl.constexpr,
):  # fmt: skip
    """Ask for a head's chunk of k, cos and sin, all told the `number`-th, if it is wanted."""
    k_tiles, _, tables = sources
    keys, turns, full, _ = raw
    b, kv, table = place
    slot, row = number % RAW, chunk * CHUNK
    bar = full.index(slot)
    mbarrier.expect(bar, 3 * CHUNK * D * 2, pred=wanted)  # bytes, that the barrier awaits too
    tma.async_copy_global_to_shared(
        k_tiles, [b, kv, row, 0], bar, keys.index(slot), pred=wanted
    )  # fmt: skip
    tma.async_copy_global_to_shared(
        tables, [0, table, row, 0], bar, turns.index(slot), pred=wanted
    )  # fmt: skip


@gluon.jit
def load(given, D: gl.constexpr, TILE: gl.constexpr):
    """One warp: fill the rings of raw chunks and of v, where LOADER."""
    sources, raw, ring, sizes, per_batch = given
    num_heads, group, turns = sizes[2], sizes[3], sizes[7]
    CHUNK: gl.constexpr = TILE.CHUNK
    CHUNKS: gl.constexpr = TILE.BLOCK_N // CHUNK
    step = 0
    for turn in range(turns):
        head, _, tiles = task(turn, sizes, TILE)
        place = head // num_heads, head % num_heads // group, head // num_heads * per_batch
        for tile in range(tiles):
            for i in gl.static_range(CHUNKS):
                number = step * CHUNKS + i
                await_emptied(raw[3], number, TILE.RAW)
                chunk = tile * CHUNKS + i
                bring(chunk, True, number, place, sources, raw, D, CHUNK, TILE.RAW)
            bring_values(tile, step, place, sources[1], ring, D, TILE)
            step += 1


@gluon.jit
def produce(given, PART: gl.constexpr, D: gl.constexpr, TILE: gl.constexpr):
    """Four warps: fill the ring of expanded keys, a tile a step.

    A tile comes in chunks, every PARTS-th of them from PART on this group's. Without a LOADER the
    group brings its own, RAW ahead, and group 0 brings v.
    """
    sources, raw, ring, sizes, per_batch = given
    k_x, k_y = ring[0]
    k_full, k_empty = ring[2], ring[3]
    num_heads, group, turns = sizes[2], sizes[3], sizes[7]
    CHUNK: gl.constexpr = TILE.CHUNK
    RAW: gl.constexpr = TILE.RAW
    PARTS: gl.constexpr = TILE.PARTS
    CHUNKS: gl.constexpr = TILE.BLOCK_N // CHUNK
    across: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    step = 0
    for turn in range(turns):
        head, _, tiles = task(turn, sizes, TILE)
        place = head // num_heads, head % num_heads // group, head // num_heads * per_batch
        wanted = tiles * CHUNKS
        if not TILE.LOADER:
            for i in gl.static_range(PART, RAW, PARTS):
                bring(i, i < wanted, step * CHUNKS + i, place, sources, raw, D, CHUNK, RAW)
        for tile in range(tiles):
            if PART == 0 and not TILE.LOADER:
                bring_values(tile, step, place, sources[1], ring, D, TILE)
            x_tile, y_tile = k_x.index(step % TILE.KEYS), k_y.index(step % TILE.KEYS)
            for i in gl.static_range(PART, CHUNKS, PARTS):
                number = step * CHUNKS + i
                await_filled(raw[2], number, RAW)
                k = raw[0].index(number % RAW).reshape([CHUNK, D]).load(across)
                turn_tile = raw[1].index(number % RAW).reshape([2 * CHUNK, D])
                cos = turn_tile.slice(0, CHUNK, 0).load(across)
                sin = turn_tile.slice(CHUNK, CHUNK, 0).load(across)
                x, y = expanded(k, cos, sin, TILE.HALF)
                if i == PART:
                    await_emptied(k_empty, step, TILE.KEYS)
                x_tile.slice(i * CHUNK, CHUNK, 0).store(x)
                y_tile.slice(i * CHUNK, CHUNK, 0).store(y)
                # Tensor cores and TMA reach shared memory by another path (proxy) than stores do.
                fence_async_shared()
                barrier()  # all have stored, and all have read the slot, to be filled again
                if TILE.LOADER:
                    signal(raw[3], number, RAW)
                else:
                    later = tile * CHUNKS + i + RAW
                    bring(later, later < wanted, number + RAW, place, sources, raw, D, CHUNK, RAW)
            signal(k_full, step, TILE.KEYS)
            step += 1
