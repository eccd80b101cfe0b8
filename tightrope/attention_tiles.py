"""Tiles of the attention kernels: one pure table, which launchers, budgets and laws read alike."""

from __future__ import annotations

from typing import NamedTuple

L2_BYTES = 2**25  # keys and values of heads that run side by side; a Hopper L2 holds 50 MB


class Config(NamedTuple):
    """Rows and keys of a tile (powers of 2), warps of a program, key tiles in flight."""

    BLOCK_M: int
    BLOCK_N: int
    num_warps: int
    num_stages: int


PROCESSORS = 128  # programs that make a GPU busy
CROWD = 32  # heads from which short tiles, of which a processor holds more at once, are faster
INTERPRETER = (Config(16, 16, 4, 1),)
# By the widest head_dim that an entry is for; large tiles first.
HALF_SM90 = {
    64: (Config(64, 128, 4, 3), Config(64, 64, 4, 3), Config(16, 64, 4, 3)),
    128: (Config(64, 64, 4, 3), Config(16, 64, 4, 3)),
    256: (Config(128, 64, 8, 2), Config(64, 64, 8, 2), Config(16, 32, 4, 3)),
}
HALF = {  # fits the 99 KiB of shared memory that the smallest GPUs since sm_80 give a program
    64: (Config(64, 64, 4, 2), Config(16, 64, 4, 2)),
    128: (Config(64, 32, 4, 2), Config(16, 32, 4, 2)),
    256: (Config(32, 32, 4, 2), Config(16, 32, 4, 2)),
}
SINGLE = {
    64: (Config(32, 32, 4, 2), Config(16, 32, 4, 2)),
    128: (Config(32, 32, 8, 1), Config(16, 32, 4, 1)),
    256: (Config(16, 16, 8, 2),),
}


def configs(width: int, itemsize: int, capability: tuple[int, int] | None) -> tuple[Config, ...]:
    """All entries for a case. width: the larger of head_dim and head_dim_v; itemsize: bytes."""
    if capability is None:
        return INTERPRETER
    half = HALF_SM90 if capability == (9, 0) else HALF
    table = SINGLE if itemsize == 4 else half
    return next(entries for widest, entries in table.items() if widest >= width)


def config(
    heads: int, seqlen_q: int, width: int, itemsize: int, bias: bool,
    capability: tuple[int, int] | None,
) -> Config:  # fmt: skip
    """The entry for a case: the largest tile that still makes work for a GPU's processors.

    heads: all that one launch computes, those of a batch counted together. capability: the GPU's
    (major, minor), None for the interpreter.

    Not batch invariant for 16-bit types up to head_dim 64 on sm_90: there the number of heads
    decides the keys of a tile, and these the bits, so that a sequence may differ, within budget,
    from itself in a larger batch. A call's `blocks` fixes the tile where that matters.
    """
    *many, few = configs(width, itemsize, capability)
    if seqlen_q <= 2 * few.BLOCK_M or not many:
        chosen = few
    else:
        fit = (e for e in many if heads < CROWD or e.BLOCK_N <= 64)
        busy = (e for e in fit if heads * -(-seqlen_q // e.BLOCK_M) >= PROCESSORS)
        chosen = next(busy, many[-1])
    # Tiles of a bias wait in shared memory too, and three of the largest are too many.
    return chosen._replace(num_stages=min(chosen.num_stages, 2)) if bias else chosen


def heads_together(heads: int, group: int, kv_bytes: int) -> int:
    """Of `heads` query heads those that run side by side, so that their keys stay in cache.

    Whole groups of one kv head, whose keys and values take kv_bytes.
    """
    return min(heads, group * max(1, L2_BYTES // max(1, kv_bytes)))
