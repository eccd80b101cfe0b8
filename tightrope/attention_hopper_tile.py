"""Tiles of the Hopper kernel of attention: the pure table, and what the kernel refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tightrope.validate import dtype_name, refuse
from tightrope.validate_attention import check_attention

DTYPES = ("float16", "bfloat16")
WIDTHS = (64, 128, 256)
WIDTHS_V = (64, 128)
MEMORY = 225 * 2**10  # of a processor's 227 KiB; the rest is for barriers and reductions
OFF = {"window_size": (None, None), "softcap": None, "bias": None, "sink": None}


class Tile(NamedTuple):
    """How a program works.

    BLOCK_M rows of q are shared by CONSUMERS groups of four warps, which walk over tiles of BLOCK_N
    keys; KEYS tiles of k and VALUES of v are there or on their way, asked for by one warp more.
    PIPELINED: consumers overlap a tile's softmax with the next one's scores, which takes two of
    each; OVERLAPPED: with the product of the last one's values, too. Q_SHARED keeps q in shared
    memory, else in registers. CONSUMER_REGISTERS: of a thread. HEADS: that run side by side.
    RESIDENT: programs a processor holds.
    """

    BLOCK_M: int
    BLOCK_N: int
    KEYS: int
    VALUES: int
    PIPELINED: bool
    OVERLAPPED: bool
    Q_SHARED: bool
    CONSUMERS: int
    CONSUMER_REGISTERS: int
    HEADS: int = 16
    RESIDENT: int = 1

    @property
    def registers(self) -> int:
        """Of a thread before they are dealt out: what a processor has, in eights."""
        return evenly(self.CONSUMERS + 1, self.RESIDENT)

    def bytes(self, head_dim: int, head_dim_v: int) -> int:
        """Shared memory of a program, barriers aside."""
        rows = self.KEYS * self.BLOCK_N + self.BLOCK_M * self.Q_SHARED
        return 2 * (rows * head_dim + self.VALUES * self.BLOCK_N * head_dim_v)


def evenly(groups: int, resident: int) -> int:
    """Registers of a thread where `resident` programs of so many warpgroups share a processor's."""
    return min(65536 // (128 * groups * resident) // 8 * 8, 248)


# The fastest of a sweep (docs/measurements, h200-tiles-hopper). By (head_dim, head_dim_v), where
# there are tiles for every processor over and over, and where there are few.
CROWDED = Tile(192, 128, 2, 2, False, False, True, 3, 160)
PAIRS = Tile(64, 128, 2, 2, False, True, True, 1, 240, HEADS=8, RESIDENT=2)
SQUARE = Tile(128, 128, 2, 2, False, True, True, 2, 240, HEADS=32)
DEEP = Tile(128, 64, 4, 4, False, True, False, 2, 240, HEADS=8)
MANY = {
    (64, 64): CROWDED._replace(KEYS=3, VALUES=3, HEADS=32),
    (128, 64): CROWDED,
    (64, 128): SQUARE,
    (128, 128): SQUARE,
}
FEW = {(64, 64): PAIRS, (128, 64): SQUARE}
BUSY = 2048  # tiles of 192 rows from which on they are many


def tile_for(heads: int, seqlen_q: int, head_dim: int, head_dim_v: int) -> Tile:
    """The tile for a case; pure. heads: batch * num_heads."""
    many = MANY.get((head_dim, head_dim_v), DEEP)
    busy = heads * -(-seqlen_q // 192) >= BUSY
    return many if busy else FEW.get((head_dim, head_dim_v), many)


def takes(
    dtype: str, head_dim: int, head_dim_v: int, options: Mapping[str, Any], q_offset: Any
) -> bool:
    """Whether the kernel computes such a call, tensors' strides and addresses aside; pure."""
    plain = all(options[n] is None or options[n] == off for n, off in OFF.items() if n in options)
    widths = head_dim in WIDTHS and head_dim_v in WIDTHS_V
    return dtype in DTYPES and widths and plain and isinstance(q_offset, int)


def demand(tile: Any, good: Mapping[str, bool]) -> None:
    """Refuse a tile (ValueError) for the first thing about it that is not good."""
    for name, fits in good.items():
        if not fits:
            refuse(f"tile ({name})", "one that `Tile` describes and a processor holds", tile)


def check_tile(tile: Any, head_dim: int, head_dim_v: int) -> None:
    """Refuse what is no Tile (TypeError), or one that the kernel cannot be built for (ValueError).

    None passes: `tile_for`'s. Queries in registers and BLOCK_N = head_dim = head_dim_v without
    PIPELINED gave wrong results in a prototype on an H200 (cause unknown); one of both is refused.
    """
    if tile is None:
        return
    if not isinstance(tile, Tile):
        refuse("tile", "None or a Tile", repr(tile), TypeError)
    ahead = tile.PIPELINED or tile.OVERLAPPED
    alike = tile.BLOCK_N in (head_dim, head_dim_v)
    demand(tile, {
        "CONSUMERS": tile.CONSUMERS in (1, 2, 3),
        "BLOCK_M": tile.BLOCK_M in (64 * tile.CONSUMERS, 128 * tile.CONSUMERS),
        "BLOCK_N": tile.BLOCK_N in (32, 64, 128, 256),
        "stages": min(tile.KEYS, tile.VALUES, tile.HEADS, tile.RESIDENT) > 0,
        "PIPELINED": min(tile.KEYS, tile.VALUES) > 1 or not ahead,
        "Q_SHARED": tile.Q_SHARED or ahead or not alike,
        "bytes": tile.bytes(head_dim, head_dim_v) * tile.RESIDENT <= MEMORY,
    })  # fmt: skip


def in_words(x: Any) -> bool:
    """Whether TMA can read a tensor of four axes by its strides; its address is another matter."""
    steps = [s for n, s in zip(x.shape[:3], x.stride()[:3], strict=True) if n > 1]
    return not x.numel() or (x.stride(3) == 1 and not any(s % 8 or s == 0 for s in steps))


def check_narrow(q: Any, options: Mapping[str, Any], *tensors: tuple[str, Any]) -> None:
    """Refuse dtypes, options and strides that no Hopper kernel has; from metadata.

    options: the contract's keywords. tensors: names and tensors that TMA reads. Raises: TypeError
    (dtypes), ValueError (options, strides).
    """
    if dtype_name(q) not in DTYPES:
        refuse("q.dtype", " or ".join(DTYPES), dtype_name(q), TypeError)
    for name, nothing in OFF.items():
        if options.get(name) is not None and options[name] != nothing:
            refuse(name, f"{nothing}: this kernel has none", options[name])
    if not isinstance(options["q_offset"], int):
        refuse("q_offset", "an int: this kernel takes one for all", "a tensor")
    for name, x in tensors:
        if not in_words(x):
            refuse(f"{name}.stride()", "multiples of 8 elements above 0, the last 1", x.stride())


def check_hopper(q: Any, k: Any, v: Any, options: Mapping[str, Any], validate: Any) -> None:
    """Refuse what the contract excludes, and of it what this kernel has not; from metadata.

    options: the contract's keywords. Raises: TypeError (types, dtypes), ValueError (shapes,
    strides, devices, options).
    """
    check_attention(q, k, v, **options, validate=validate)
    for name, width, allowed in (
        ("head_dim", q.shape[3], WIDTHS),
        ("head_dim_v", v.shape[3], WIDTHS_V),
    ):
        if width not in allowed:
            refuse(name, f"one of {allowed}", width)
    check_narrow(q, options, ("q", q), ("k", k), ("v", v))
