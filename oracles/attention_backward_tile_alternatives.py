"""Gradients of kernels that mask too little inside their tiles.

The pass over queries holds a tile of rows and reads every key that one of them sees; the pass over
keys holds a tile of keys and reads every row that sees one of them. What such a pass reads and does
not mask counts: P = exp(t - lse) of hidden keys, or dS.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tightrope.formats import Array
from tightrope.oracles.attention_backward_problem import (
    Backward,
    from_ds,
    slope,
    upstream,
    weights,
)

Triple = tuple[Array, Array, Array]
TILES = (16, 32, 64, 128)
SIDES = ("", " left of the window", " right of the window")


def of_tiles(b: Backward) -> Iterator[tuple[str, Triple]]:
    """(what is computed instead, (dq, dk, dv)) for tiles of rows and of keys."""
    rows, keys = b.forward.visible.shape[1:]
    if not rows * keys:
        return
    right = from_ds(b, weights(b), weights(b) * upstream(b) * slope(b.forward))
    for side in SIDES:
        by_rows = {t: _unmasked(b, t, 1, side) for t in _sizes(rows)}
        by_keys = {t: _unmasked(b, t, 2, side) for t in _sizes(keys)}
        for (tall, dq), (wide, dk) in ((x, y) for x in by_rows.items() for y in by_keys.items()):
            told = f"hidden keys{side} not masked in tiles of {tall} rows and {wide} keys"
            yield told, (dq[0], dk[1], dk[2])
            yield f"{told} (in P alone)", (right[0], right[1], dk[2])
            yield f"{told} (in dS alone)", (dq[0], dk[1], right[2])


def _sizes(length: int) -> tuple[int, ...]:
    """Tiles that differ: all that are longer see the whole."""
    whole = [t for t in TILES if t >= length][:1]
    return (*(t for t in TILES if t < length), *whole) or (TILES[-1],)


def _unmasked(b: Backward, tile: int, axis: int, side: str) -> Triple:
    f = b.forward
    live = f.visible.any(-1, keepdims=True)
    seen = f.visible | (_hull(f.visible, tile, axis) & live & _side(f.visible, side))
    other = replace(b, forward=replace(f, visible=seen))
    p = weights(other)
    return from_ds(other, p, p * upstream(other) * slope(f))


def _hull(seen: Array, tile: int, axis: int) -> Array:
    """What some line of the same tile along the axis sees."""
    length = seen.shape[axis]
    parts = [
        np.broadcast_to(part.any(axis, keepdims=True), part.shape)
        for part in np.split(seen, range(tile, length, tile), axis)
    ]
    return np.concatenate(parts, axis)


def _side(seen: Array, side: str) -> Array:
    """Keys before the first, or after the last one that a row sees."""
    if not side:
        return np.ones_like(seen)
    before = ~np.logical_or.accumulate(seen, -1)
    after = ~np.logical_or.accumulate(seen[..., ::-1], -1)[..., ::-1]
    return before if side == SIDES[1] else after
