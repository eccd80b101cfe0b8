"""Who does which tile when in the Hopper kernel of PoPE attention, and the warps that expand keys.

A ring is a few slots of shared memory that one side fills and the other empties, in turns: slot
n % STAGES at step n. Two barriers a slot say "filled" and "emptied"; how often a barrier has
completed, modulo 2, is its phase, and a wait names the phase that it waits for the end of.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from tightrope.softplus_hopper import expanded

barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier  # renamed in Triton 3.7


@gluon.jit
def barriers(STAGES: gl.constexpr, SIGNALS: gl.constexpr):
    """A barrier for each slot, that completes with every SIGNALS-th signal."""
    bars = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(bars.index(i), count=SIGNALS)
    return bars


@gluon.jit
def await_filled(bars, step, STAGES: gl.constexpr):
    mbarrier.wait(bars.index(step % STAGES), (step // STAGES) & 1)


@gluon.jit
def await_emptied(bars, step, STAGES: gl.constexpr):
    """In the ring's first round nothing has been filled: the phase before the first has ended."""
    mbarrier.wait(bars.index(step % STAGES), ((step // STAGES) & 1) ^ 1)


@gluon.jit
def signal(bars, step, STAGES: gl.constexpr):
    mbarrier.arrive(bars.index(step % STAGES), count=1)


@gluon.jit
def seen(row, sizes):
    """How many keys a row sees: the first ones."""
    return gl.minimum(gl.maximum(row + sizes[8] + 1, 0), sizes[1])


@gluon.jit
def task(turn, sizes, TILE: gl.constexpr):
    """Head, first row, and tiles of keys of this program's turn; without work, a row past the last.

    Of `together` heads, whose keys fit the cache, the last rows come first: they see most keys.
    Programs take what there is in order, then in opposite order, so that their sums are alike.
    """
    seqlen_q, _, _, _, all_heads, row_tiles, together, _, _ = sizes
    program, programs = gl.program_id(0), gl.num_programs(0)
    place = turn * programs + gl.where(turn % 2 == 0, program, programs - 1 - program)
    some = place < all_heads * row_tiles
    place = gl.where(some, place, 0)
    before = place // (together * row_tiles) * together
    place = place % (together * row_tiles)
    width = gl.minimum(together, all_heads - before)
    first_row = (row_tiles - 1 - place // width) * TILE.BLOCK_M
    last_row = gl.minimum(first_row + TILE.BLOCK_M, seqlen_q) - 1
    tiles = gl.where(some, gl.cdiv(seen(last_row, sizes), TILE.BLOCK_N), 0)
    return before + place % width, gl.where(some, first_row, seqlen_q), tiles


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
def bring_values(tile, step, place, sources, ring, D: gl.constexpr, TILE: gl.constexpr):
    """Ask for a tile of v, once all consumers have left its slot."""
    _, _, values, _, _, full, empty = ring
    await_emptied(empty, step, TILE.VALUES)
    slot = step % TILE.VALUES
    mbarrier.expect(full.index(slot), TILE.BLOCK_N * D * 2)
    tma.async_copy_global_to_shared(
        sources[1], [place[0], place[1], tile * TILE.BLOCK_N, 0], full.index(slot),
        values.index(slot),
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
            bring_values(tile, step, place, sources, ring, D, TILE)
            step += 1


@gluon.jit
def produce(given, PART: gl.constexpr, D: gl.constexpr, TILE: gl.constexpr):
    """Four warps: fill the ring of expanded keys, a tile a step.

    A tile comes in chunks, every PARTS-th of them from PART on this group's. Without a LOADER the
    group brings its own, RAW ahead, and group 0 brings v.
    """
    sources, raw, ring, sizes, per_batch = given
    k_x, k_y, k_full, k_empty = ring[0], ring[1], ring[3], ring[4]
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
                bring_values(tile, step, place, sources, ring, D, TILE)
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
