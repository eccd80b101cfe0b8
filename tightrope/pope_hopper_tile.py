"""Tiles of the Hopper kernel of PoPE attention: the pure table, and what the kernel refuses."""

from __future__ import annotations

from typing import Any, NamedTuple

from tightrope.attention_hopper_tile import MEMORY, check_narrow, demand, evenly
from tightrope.validate import refuse
from tightrope.validate_attention import check_attention, check_flag
from tightrope.validate_pope_attention import check_pope_attention

WIDTHS = (64, 128)


class Tile(NamedTuple):
    """How a program works.

    BLOCK_M rows of q are shared by CONSUMERS groups of four warps, which walk over tiles of BLOCK_N
    keys; KEYS expanded tiles and VALUES of v may wait for them. PARTS groups expand chunks of CHUNK
    keys, RAW of which are on their way, asked for by these groups, or by one more warp: LOADER.
    PIPELINED: consumers overlap a tile's softmax with the next one's scores, which takes two of
    each. Q_SHARED keeps q in shared memory, else in registers. Registers: of a thread, in programs
    of over two groups. HEADS: that run side by side. RESIDENT: programs a processor holds. HALF:
    keys are expanded in float16. OVERLAPPED: as `attention_hopper_tile.Tile` has it.
    """

    BLOCK_M: int
    BLOCK_N: int
    CHUNK: int
    RAW: int
    KEYS: int
    VALUES: int
    PIPELINED: bool
    Q_SHARED: bool
    CONSUMERS: int
    PARTS: int
    CONSUMER_REGISTERS: int
    PRODUCER_REGISTERS: int
    LOADER: bool = False
    HEADS: int = 16
    RESIDENT: int = 1
    HALF: bool = True
    OVERLAPPED: bool = False

    @property
    def registers(self) -> int:
        """Of a thread before they are dealt out: what a processor has, in eights."""
        return evenly(self.CONSUMERS + self.PARTS + self.LOADER, self.RESIDENT)

    def bytes(self, head_dim: int) -> int:
        """Shared memory of a program, barriers aside."""
        keys = (2 * self.KEYS + self.VALUES) * self.BLOCK_N
        raw = 3 * self.RAW * self.CHUNK
        return 2 * head_dim * (keys + raw + 2 * self.BLOCK_M * self.Q_SHARED)


# The fastest of a sweep (docs/measurements, h200-tiles-pope). Few tiles, each alone on a
# processor; some; and several for every processor.
LONE = Tile(64, 64, 64, 3, 3, 3, True, False, 1, 1, 200, 104)
SOME = Tile(128, 128, 64, 3, 2, 2, False, False, 2, 1, 192, 88, LOADER=True)
MANY = Tile(256, 64, 64, 3, 3, 3, True, True, 2, 1, 216, 72)
WIDE = Tile(128, 64, 32, 4, 1, 2, False, True, 2, 2, 192, 64, HEADS=8)
PROCESSORS = 132
BUSY = 512  # tiles of 256 rows from which on every processor gets several


def tile_for(heads: int, seqlen_q: int, head_dim: int, dtype: str) -> Tile:
    """The tile for a case; pure. heads: batch * num_heads."""

    def tiles(tile: Tile) -> int:
        return heads * -(-seqlen_q // tile.BLOCK_M)

    narrow = MANY if tiles(MANY) >= BUSY else LONE if tiles(LONE) <= PROCESSORS else SOME
    return (WIDE if head_dim == 128 else narrow)._replace(HALF=dtype == "float16")


def check_tile(tile: Any, head_dim: int, dtype: str) -> None:
    """Refuse what is no Tile (TypeError), or one that the kernel cannot be built for (ValueError).

    None passes: `tile_for`'s. Queries in registers and BLOCK_N = head_dim without PIPELINED gave
    wrong results in a prototype on an H200 (cause unknown), and are refused.
    """
    if tile is None:
        return
    if not isinstance(tile, Tile):
        refuse("tile", "None or a Tile", repr(tile), TypeError)
    groups, ahead = (tile.CONSUMERS, tile.PARTS), tile.PIPELINED or tile.OVERLAPPED
    demand(tile, {
        "CONSUMERS and PARTS": groups in ((2, 1), (2, 2)) or (groups == (1, 1) and not tile.LOADER),
        "BLOCK_M": tile.BLOCK_M in (64 * tile.CONSUMERS, 128 * tile.CONSUMERS),
        "BLOCK_N and CHUNK": tile.BLOCK_N in (32, 64, 128, 256)
        and tile.CHUNK in (16, 32, 64, 128) and tile.BLOCK_N % (tile.CHUNK * tile.PARTS) == 0,
        "stages": min(tile.RAW, tile.KEYS, tile.VALUES, tile.HEADS, tile.RESIDENT) > 0
        and (tile.RAW % tile.PARTS == 0 or tile.LOADER),
        "PIPELINED": min(tile.KEYS, tile.VALUES) > 1 or not ahead,
        "Q_SHARED": tile.Q_SHARED or ahead or head_dim != tile.BLOCK_N,
        "HALF": dtype == "float16" or not tile.HALF,
        "bytes": tile.bytes(head_dim) * tile.RESIDENT <= MEMORY,
    })  # fmt: skip


def check_hopper(tensors: tuple[Any, ...], options: dict[str, Any], validate: Any) -> None:
    """Refuse what the contract excludes, and of it what this kernel has not; from metadata.

    tensors: the contract's, in order. options: its keywords. Raises: TypeError (types, dtypes),
    ValueError (shapes, strides, devices, options).
    """
    q, k, v, inv_freq, *rest = tensors
    check_attention(q, k, v, **options, validate=validate)
    check_pope_attention(q, k, inv_freq, *rest)
    check_flag("validate", validate)
    widths = q.shape[3], v.shape[3], inv_freq.shape[0]
    if len(set(widths)) > 1 or widths[0] not in WIDTHS:
        refuse("head_dim, head_dim_v, rotary_dim", f"the same, one of {WIDTHS}", widths)
    check_narrow(q, options, ("q", q), ("k", k), ("v", v))
