"""Tiles of the Hopper kernel of PoPE attention: the pure table, and what the kernel refuses."""

from __future__ import annotations

from typing import Any, NamedTuple

from tightrope.validate import dtype_name, refuse
from tightrope.validate_attention import check_attention, check_flag
from tightrope.validate_pope_attention import check_pope_attention

DTYPES = ("float16", "bfloat16")
WIDTHS = (64, 128)
MEMORY = 225 * 2**10  # of a processor's 227 KiB; the rest is for barriers and reductions


class Tile(NamedTuple):
    """How a program works.

    BLOCK_M rows of q are shared by CONSUMERS groups of four warps, which walk over tiles of BLOCK_N
    keys; KEYS expanded tiles and VALUES of v may wait for them. PARTS groups expand chunks of CHUNK
    keys, RAW of which are on their way, asked for by these groups, or by one more warp: LOADER.
    PIPELINED: consumers overlap a tile's softmax with the next one's scores, which takes two of
    each. Q_SHARED keeps q in shared memory, else in registers. Registers: of a thread, in programs
    of over two groups. HEADS: that run side by side. RESIDENT: programs a processor holds. HALF:
    keys are expanded in float16.
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

    @property
    def registers(self) -> int:
        """Of a thread before they are dealt out: what a processor has, in eights."""
        threads = 128 * (self.CONSUMERS + self.PARTS + self.LOADER) * self.RESIDENT
        return min(65536 // threads // 8 * 8, 248)

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
    groups = tile.CONSUMERS, tile.PARTS
    good = {
        "CONSUMERS and PARTS": groups in ((2, 1), (2, 2)) or (groups == (1, 1) and not tile.LOADER),
        "BLOCK_M": tile.BLOCK_M in (64 * tile.CONSUMERS, 128 * tile.CONSUMERS),
        "BLOCK_N and CHUNK": tile.BLOCK_N in (32, 64, 128, 256)
        and tile.CHUNK in (16, 32, 64, 128) and tile.BLOCK_N % (tile.CHUNK * tile.PARTS) == 0,
        "stages": min(tile.RAW, tile.KEYS, tile.VALUES, tile.HEADS, tile.RESIDENT) > 0
        and (tile.RAW % tile.PARTS == 0 or tile.LOADER),
        "PIPELINED": min(tile.KEYS, tile.VALUES) > 1 or not tile.PIPELINED,
        "Q_SHARED": tile.Q_SHARED or tile.PIPELINED or head_dim != tile.BLOCK_N,
        "HALF": dtype == "float16" or not tile.HALF,
        "bytes": tile.bytes(head_dim) * tile.RESIDENT <= MEMORY,
    }  # fmt: skip
    for name, fits in good.items():
        if not fits:
            refuse(f"tile ({name})", "one that `Tile` describes and a processor holds", tile)


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
    if dtype_name(q) not in DTYPES:
        refuse("q.dtype", " or ".join(DTYPES), dtype_name(q), TypeError)
    if len(set(widths)) > 1 or widths[0] not in WIDTHS:
        refuse("head_dim, head_dim_v, rotary_dim", f"the same, one of {WIDTHS}", widths)
    off = {"window_size": (None, None), "softcap": None, "sink": None}
    for name, nothing in off.items():
        if options[name] is not None and options[name] != nothing:
            refuse(name, f"{nothing}: this kernel has none", options[name])
    if not isinstance(options["q_offset"], int):
        refuse("q_offset", "an int: this kernel takes one for all", "a tensor")
    for name, x in zip("qkv", (q, k, v), strict=True):
        steps = [s for n, s in zip(x.shape[:3], x.stride()[:3], strict=True) if n > 1]
        if x.numel() and (x.stride(3) != 1 or any(s % 8 or s == 0 for s in steps)):
            refuse(f"{name}.stride()", "multiples of 8 elements above 0, the last 1", x.stride())
