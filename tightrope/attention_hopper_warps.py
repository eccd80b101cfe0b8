"""Who does which tile when in the Hopper kernels of attention, and the warp that brings tiles.

A ring is a few slots of shared memory that one side fills and the other empties, in turns: slot
n % STAGES at step n. Two barriers a slot say "filled" and "emptied"; how often a barrier has
completed, modulo 2, is its phase, and a wait names the phase that it waits for the end of.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier  # renamed in Triton 3.7


@gluon.jit
def barriers(STAGES: gl.constexpr, SIGNALS: gl.constexpr):
    """A barrier for each slot, that completes with every SIGNALS-th signal."""
    bars = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(bars.index(i), count=SIGNALS)
    return bars


@gluon.jit
def ring_of(keys, values, FILLERS: gl.constexpr, TILE: gl.constexpr):
    """Slots and their barriers. FILLERS: groups that fill one of keys; v's are one warp's."""
    KEYS: gl.constexpr = TILE.KEYS
    VALUES: gl.constexpr = TILE.VALUES
    CONSUMERS: gl.constexpr = TILE.CONSUMERS
    filled, emptied = barriers(KEYS, FILLERS), barriers(KEYS, CONSUMERS)
    return keys, values, filled, emptied, barriers(VALUES, 1), barriers(VALUES, CONSUMERS)


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
def bring_tile(
    tiles, place, row, step, slots, full, empty, STAGES: gl.constexpr, ROWS: gl.constexpr,
    D: gl.constexpr,
):  # fmt: skip
    """Ask for ROWS rows by TMA, of a head at place (batch, kv head), once all have left the slot.

    slots: a tuple; each takes D features more.
    """
    await_emptied(empty, step, STAGES)
    slot = step % STAGES
    mbarrier.expect(full.index(slot), len(slots) * ROWS * D * 2)
    for i in gl.static_range(len(slots)):
        at = [place[0], place[1], row, i * D]
        tma.async_copy_global_to_shared(tiles, at, full.index(slot), slots[i].index(slot))


@gluon.jit
def bring_values(tile, step, place, v_tiles, ring, D: gl.constexpr, TILE: gl.constexpr):
    """Ask for a tile of v."""
    row = tile * TILE.BLOCK_N
    bring_tile(
        v_tiles, place, row, step, (ring[1],), ring[4], ring[5], TILE.VALUES, TILE.BLOCK_N, D
    )  # fmt: skip


@gluon.jit
def feed(
    given, D: gl.constexpr, D_V: gl.constexpr, Q_TOO: gl.constexpr, TILE: gl.constexpr
):  # fmt: skip
    """One warp: fill the rings of keys and values, and, where Q_TOO, the place of a task's q.

    D: of a part of the keys. A task's first tile of keys is asked for before its q, whose place the
    last task still holds.
    """
    sources, q_place, ring, sizes = given
    q_tiles, k_tiles, v_tiles = sources
    q, q_full, q_empty = q_place
    num_heads, group, turns = sizes[2], sizes[3], sizes[7]
    CONSUMERS: gl.constexpr = TILE.CONSUMERS
    ROWS: gl.constexpr = TILE.BLOCK_M // CONSUMERS
    step, tasks = 0, 0
    for turn in range(turns):
        head, first_row, tiles = task(turn, sizes, TILE)
        b, h = head // num_heads, head % num_heads
        place = b, h // group
        for tile in range(tiles):
            row = tile * TILE.BLOCK_N
            bring_tile(
                k_tiles, place, row, step, ring[0], ring[2], ring[3], TILE.KEYS, TILE.BLOCK_N, D
            )  # fmt: skip
            if Q_TOO and tile == 0:
                await_emptied(q_empty, tasks, 1)
                mbarrier.expect(q_full.index(0), TILE.BLOCK_M * D * 2)
                for i in gl.static_range(CONSUMERS):
                    at = [b, h, first_row + i * ROWS, 0]
                    tma.async_copy_global_to_shared(q_tiles, at, q_full.index(0), q.index(i))
                tasks += 1
            bring_values(tile, step, place, v_tiles, ring, D_V, TILE)
            step += 1
