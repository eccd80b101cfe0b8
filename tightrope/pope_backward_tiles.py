"""Tiles of the gradients of PoPE attention: one pure table, for launcher, budgets and laws alike.

A tile of features is two of points, so that programs hold more than those of attention's gradients.
"""

from __future__ import annotations

from tightrope.attention_backward_tiles import INTERPRETER, Config, Tile

Sizes = tuple[int, int, int, int]


def _table(**widest: tuple[Sizes, Sizes]) -> dict[int, Config]:
    """By the widest head_dim that an entry is for: tiles of the passes that own keys, and rows."""
    return {
        int(name.removeprefix("to_")): Config(Tile(*keys), Tile(*rows))
        for name, (keys, rows) in widest.items()
    }


# 64 owned by 32 walked in 4 warps is left out: ptxas 12.8 reads other memory in some such builds
# (docs/findings.md).
HALF_SM90 = _table(
    to_64=((128, 64, 8, 1), (64, 64, 4, 1)),
    to_128=((64, 32, 8, 2), (64, 32, 8, 2)),
    to_256=((32, 16, 8, 1), (32, 16, 8, 1)),
)
# The smallest GPUs since sm_80 give a program 99 KiB of shared memory, enough but for float32 heads
# above 128 of which a part is plain.
HALF = _table(
    to_64=((32, 32, 4, 1), (32, 32, 4, 1)),
    to_128=((32, 32, 8, 1), (32, 32, 8, 1)),
    to_256=((16, 16, 4, 1), (16, 16, 4, 1)),
)
SINGLE = _table(
    to_64=((32, 16, 8, 1), (32, 16, 8, 1)),
    to_128=((16, 16, 8, 1), (16, 16, 8, 1)),
    to_256=((16, 16, 8, 1), (16, 16, 8, 1)),
)


def config(width: int, itemsize: int, capability: tuple[int, int] | None) -> Config:
    """The entry for a case; neither lengths nor heads decide, so that a batch changes no bit.

    width: the larger of head_dim and head_dim_v; itemsize: bytes of an element; capability: the
    GPU's (major, minor), None for the interpreter.
    """
    if capability is None:
        return INTERPRETER
    table = SINGLE if itemsize == 4 else HALF_SM90 if capability == (9, 0) else HALF
    return next(table[widest] for widest in sorted(table) if widest >= width)
