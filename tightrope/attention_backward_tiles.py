"""Tiles of attention's gradients: one pure table, which launcher, budgets and laws read alike."""

from __future__ import annotations

from typing import NamedTuple


class Tile(NamedTuple):
    """Of one pass: what a program owns, what it walks over, warps, walked tiles in flight.

    OWN, WALKED: keys and rows, or rows and keys; powers of 2.
    """

    OWN: int
    WALKED: int
    num_warps: int
    num_stages: int


class Config(NamedTuple):
    """The tiles of the pass that owns keys (dk, dv) and of the one that owns rows (dq)."""

    keys: Tile
    queries: Tile


ROWS = 64  # of a program that reduces rows of dout and out
INTERPRETER = Config(Tile(16, 16, 4, 1), Tile(16, 16, 4, 1))
# By the widest head_dim that an entry is for.
HALF_SM90 = {
    64: Config(Tile(64, 64, 4, 3), Tile(64, 64, 4, 3)),
    128: Config(Tile(128, 64, 8, 2), Tile(64, 64, 4, 2)),
    256: Config(Tile(64, 32, 8, 2), Tile(64, 32, 8, 2)),
}
HALF = {  # fits the 99 KiB of shared memory that the smallest GPUs since sm_80 give a program
    64: Config(Tile(64, 32, 4, 2), Tile(64, 64, 4, 2)),
    128: Config(Tile(64, 32, 8, 2), Tile(64, 32, 4, 2)),
    256: Config(Tile(32, 32, 8, 1), Tile(32, 32, 8, 1)),
}
SINGLE = {
    64: Config(Tile(32, 32, 8, 1), Tile(32, 32, 8, 1)),
    128: Config(Tile(32, 16, 8, 1), Tile(32, 16, 8, 1)),
    256: Config(Tile(16, 16, 8, 1), Tile(16, 16, 8, 1)),
}


def config(width: int, itemsize: int, capability: tuple[int, int] | None) -> Config:
    """The entry for a case: no length and no number of heads decides, so that no bit does.

    width: the larger of head_dim and head_dim_v; itemsize: bytes an element; capability: the GPU's
    (major, minor), None for the interpreter.
    """
    if capability is None:
        return INTERPRETER
    half = HALF_SM90 if capability == (9, 0) else HALF
    table = SINGLE if itemsize == 4 else half
    return next(entry for widest, entry in table.items() if widest >= width)
