"""What builders of cos and sin tables share: tiles of a table on the device, and their launch.

A table has a row per position and a column per frequency; both functions return float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import mpmath
import torch
import triton
import triton.language as tl

from tightrope.launch import capability, launcher
from tightrope.turns import turned


@triton.jit
def _positions(positions, axis, axis_stride, place, column, length, columns, stride):
    """Positions of these rows, (rows, 1), or where columns have axes of their own (rows, columns).

    axis: None, or (columns,) int64 with the axis of positions that turns each column.
    """
    at, keep = place[:, None] * stride, (place < length)[:, None]
    if axis is not None:
        mine = tl.load(axis + column, mask=column < columns, other=0)
        at, keep = at + mine[None, :] * axis_stride, keep & (column < columns)[None, :]
    return tl.load(positions + at, mask=keep, other=0)


@triton.jit
def exact_tile(
    positions, high, low, cos, sin, length, columns, stride,
    BLOCK_POSITIONS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
    factor=1.0, axis=None, axis_stride=0,
):  # fmt: skip
    """This program's rows with exact angles, each value times `factor` (float64), rounded once.

    high, low: words of F (`tightrope.turns`), uint64 as int64; cos, sin: (length, columns).
    """
    place = tl.program_id(0).to(tl.int64) * BLOCK_POSITIONS + tl.arange(0, BLOCK_POSITIONS)
    column = tl.arange(0, BLOCK_COLUMNS)
    m = _positions(positions, axis, axis_stride, place, column, length, columns, stride)
    f_high = tl.load(high + column, mask=column < columns, other=0).to(tl.uint64)
    f_low = tl.load(low + column, mask=column < columns, other=0).to(tl.uint64)
    cosine, sine = turned(m.to(tl.int64), f_high[None, :], f_low[None, :])
    keep = (place < length)[:, None] & (column < columns)[None, :]
    out = place[:, None] * columns + column[None, :]
    tl.store(cos + out, (cosine * factor).to(tl.float32), mask=keep)
    tl.store(sin + out, (sine * factor).to(tl.float32), mask=keep)


@triton.jit
def float32_tile(
    positions, inv_freq, cos, sin, length, columns, stride,
    BLOCK_POSITIONS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
    factor=1.0, axis=None, axis_stride=0,
):  # fmt: skip
    """This program's rows in float32 throughout; inv_freq: (columns,) float32, factor float32."""
    place = tl.program_id(0).to(tl.int64) * BLOCK_POSITIONS + tl.arange(0, BLOCK_POSITIONS)
    column = tl.arange(0, BLOCK_COLUMNS)
    m = _positions(positions, axis, axis_stride, place, column, length, columns, stride)
    frequency = tl.load(inv_freq + column, mask=column < columns, other=0.0)
    angle = m.to(tl.float32) * frequency[None, :]
    keep = (place < length)[:, None] & (column < columns)[None, :]
    out = place[:, None] * columns + column[None, :]
    tl.store(cos + out, tl.cos(angle) * factor, mask=keep)
    tl.store(sin + out, tl.sin(angle) * factor, mask=keep)


class Config(NamedTuple):
    """Tile (powers of 2) and warps of a program."""

    BLOCK_POSITIONS: int
    BLOCK_COLUMNS: int
    num_warps: int


def config(length: int, columns: int, capability: tuple[int, int] | None) -> Config:
    """Pure. capability: (major, minor), or None for the interpreter: few programs there."""
    block = max(16, triton.next_power_of_2(columns))
    if capability is None:
        rows = triton.next_power_of_2(triton.cdiv(max(length, 1), 4))
        return Config(min(rows, max(1, 2**18 // block)), block, 4)
    return Config(max(1, 512 // block), block, 4)


def build(
    kernel: Any,
    positions: torch.Tensor,
    columns: int,
    given: tuple[torch.Tensor, ...],
    *others: torch.Tensor,
    numbers: tuple[float, ...] = (),
    **constants: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, (len, columns) float32, by kernel(positions, *given, cos, sin, *others, ...).

    positions: (len,), or (axes, len). others: further outputs; with any, one program runs also
    where there are no positions. numbers, constants: what the kernel takes beside its lengths and
    its stride, and beside its tile.
    """
    length, device = positions.shape[-1], positions.device
    tile = config(length, columns, capability(kernel, device))
    cos = torch.empty((length, columns), dtype=torch.float32, device=device)
    sin = torch.empty((length, columns), dtype=torch.float32, device=device)
    launch = launcher(
        kernel,
        device,
        programs=max(triton.cdiv(length, tile.BLOCK_POSITIONS), min(len(others), 1)),
        numbers=(length, columns, positions.stride(-1), *numbers),
        constants={
            "BLOCK_POSITIONS": tile.BLOCK_POSITIONS,
            "BLOCK_COLUMNS": tile.BLOCK_COLUMNS,
            **constants,
        },
        num_warps=tile.num_warps,
    )
    launch(positions, *given, cos, sin, *others)
    return cos, sin


def rounded(frequency: Callable[[int], mpmath.mpf], count: int, precision: int) -> list[float]:
    """Frequencies known as reals, each rounded once to so many bits (float64's range of exponents).

    frequency: index -> radians a position, in mpmath's precision at the time of the call.
    """
    with mpmath.workprec(200):
        found = [frequency(i) for i in range(count)]
    with mpmath.workprec(precision):
        return [float(+f) for f in found]
