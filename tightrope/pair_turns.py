"""Turning pairs of features as a tile is loaded, in Triton: shared by kernels that rotate q or k.

A pair is a point of the plane, turned by its angle (RoFormer, arXiv 2104.09864, eq. 34): product,
product and sum in float32, rounded once each, and the result to the dtype of the tile.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def table_rows(wanted, place, table, UNIT: tl.constexpr):
    """Of each row: its cos and sin in the table, and whether the table has it.

    table: (cos, sin, rows, half, cos_row, cos_dim, sin_row, sin_dim); `place` points at the rows'
    numbers, which are read where wanted.
    """
    cos, sin, rows, _, cos_row, _, sin_row, _ = table
    row = tl.load(place, mask=wanted, other=0).to(tl.int64)
    c_at, s_at = cos + row[:, None] * cos_row, sin + row[:, None] * sin_row
    if UNIT > 1:
        c_at, s_at = tl.multiple_of(c_at, (16, 16)), tl.multiple_of(s_at, (16, 16))
    return c_at, s_at, (wanted & (row >= 0) & (row < rows))[:, None]


@triton.jit
def turned(
    x, x_rows, x_dim, head_dim, wanted, place, table,
    INTERLEAVED: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Load a tile, rows at x + x_rows, and turn each by its row of the table, at `place`.

    Rows not wanted are 0 and not read. A row outside the table is not read: the angle is 0.
    INTERLEAVED: pairs (2i, 2i + 1), else (i, i + half). Features from 2*half on are kept.
    """
    c_at, s_at, known = table_rows(wanted, place, table, UNIT)
    _, _, _, half, _, cos_dim, _, sin_dim = table
    x_at = x + x_rows[:, None]
    if UNIT > 1:
        x_at = tl.multiple_of(x_at, (16, 16))
    d = tl.arange(0, BLOCK_D)
    inside = wanted[:, None] & (d < head_dim)[None, :]
    tile = tl.load(x_at + d[None, :] * x_dim, mask=inside, other=0.0)
    second = d >= half
    pair = tl.arange(0, BLOCK_D // 2) if INTERLEAVED else tl.where(second, d - half, d)
    other = tl.where(second, d - half, d + half)
    if UNIT > 1 and not INTERLEAVED:  # half is a multiple of words too
        pair = tl.max_contiguous(tl.multiple_of(pair, UNIT), UNIT)
        other = tl.max_contiguous(tl.multiple_of(other, UNIT), UNIT)
    there = known & (pair < half)[None, :]
    c = tl.load(c_at + pair[None, :] * cos_dim, mask=there, other=1.0).to(tl.float32)
    s = tl.load(s_at + pair[None, :] * sin_dim, mask=there, other=0.0).to(tl.float32)
    if INTERLEAVED:
        # Not tl.interleave: past a join, tensor cores sum features in another order (kWidth 4).
        pairs = tl.reshape(tile.to(tl.float32), (ROWS, BLOCK_D // 2, 2))
        a, b = tl.split(pairs)
        c, s, odd = c[:, :, None], s[:, :, None], (tl.arange(0, 2) == 1)[None, None, :]
        y = tl.where(odd, a[:, :, None], b[:, :, None])
        turns = tl.reshape(pairs * c + y * tl.where(odd, s, -s), (ROWS, BLOCK_D))
    else:
        y = tl.load(x_at + other[None, :] * x_dim, mask=there, other=0.0).to(tl.float32)
        turns = tile.to(tl.float32) * c + y * tl.where(second[None, :], s, -s)
    return turns.to(tile.dtype)


@triton.jit
def turned_halves(x, x_rows, wanted, place, table, UNIT: tl.constexpr, BLOCK_D: tl.constexpr):
    """The same where 2*half = BLOCK_D, rows are of words, and pairs are (i, i + half), as halves.

    Everything is read once, while `turned` reads each row, and its row of the table, twice.
    """
    c_at, s_at, known = table_rows(wanted, place, table, UNIT)
    x_at = tl.multiple_of(x + x_rows[:, None], (16, 16))
    i = tl.arange(0, BLOCK_D // 2)[None, :]
    a = tl.load(x_at + i, mask=wanted[:, None], other=0.0)
    b = tl.load(x_at + BLOCK_D // 2 + i, mask=wanted[:, None], other=0.0)
    c = tl.load(c_at + i, mask=known, other=1.0).to(tl.float32)
    s = tl.load(s_at + i, mask=known, other=0.0).to(tl.float32)
    x, y = a.to(tl.float32), b.to(tl.float32)
    return (x * c + y * -s).to(a.dtype), (y * c + x * s).to(a.dtype)
