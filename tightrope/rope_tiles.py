"""Tiles of the rotation's kernel: one pure table, read by launcher, tests and oracle alike."""

from __future__ import annotations

from typing import NamedTuple

import triton


class Config(NamedTuple):
    """Tile (powers of 2) and warps of a program."""

    BLOCK_TOKENS: int
    BLOCK_HEADS: int
    num_warps: int


def config(
    tokens: int, num_heads: int, width: int, itemsize: int, capability: tuple[int, int] | None
) -> Config:
    """Tile and warps for a case; pure, so that launcher, tests and oracle can all read it.

    num_heads: of q, no fewer than of k. width: features that a program holds of a head, a power of
    2. itemsize: bytes an element. capability: the GPU's (major, minor); None for the interpreter,
    where a program takes milliseconds whatever its tile: up to 8 there. On a GPU it reads and
    writes about 2 KiB, 16 bytes a load: the fastest of 37 tiles on an H200 (docs/measurements).
    """
    if capability is None:
        heads = triton.next_power_of_2(num_heads)
        block = triton.next_power_of_2(triton.cdiv(max(tokens, 1), 4))
        return Config(min(block, max(1, 2**18 // (width * heads))), heads, 4)
    heads = 8
    row_bytes = heads * width * itemsize
    block = max(1, 2048 // row_bytes)
    return Config(block, heads, max(1, min(8, block * row_bytes // 1024)))
