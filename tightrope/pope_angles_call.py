"""cos and sin of all tokens' angles as float16 tables: the first launch of `pope_attention`.

Angles are exact at any position (`tightrope.turns`); cos and sin are rounded once. Kernels
that expand a tile of k as they meet it read them from here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from tightrope.launch import capability, launcher
from tightrope.turns import fraction, inverse_turn, turned

ANGLES, WARPS = 512, 4  # of a program on a GPU


@triton.jit(do_not_specialize=[*range(11)])
def table_kernel(
    positions, inv_freq, inverse_turn, table,
    rows: tl.int64, seqlen: tl.int64, blocks: tl.int32, rotary_dim: tl.int32,
    position_batch: tl.int64, position_step: tl.int64, frequency_step: tl.int64,
    BLOCK_ROWS: tl.constexpr, BLOCK_D: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    # Layout: table (2, rows, rotary_dim), cos and sin, contiguous; row b * seqlen + i is of token i
    # of sequence b.
    if AHEAD:  # the launch behind this one may begin as processors get free
        tl.extra.cuda.gdc_launch_dependents()
    b = (tl.program_id(0) // blocks).to(tl.int64)
    i = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    d, mine = tl.arange(0, BLOCK_D), i < seqlen
    at = positions + b * position_batch + i * position_step
    m = tl.load(at, mask=mine, other=0).to(tl.int64)
    frequency = tl.load(inv_freq + d * frequency_step, mask=d < rotary_dim, other=0.0)
    high, low = fraction(frequency.to(tl.float64), inverse_turn)
    c, s = turned(m[:, None], high[None, :], low[None, :])
    keep = mine[:, None] & (d < rotary_dim)[None, :]
    at = table + (b * seqlen + i)[:, None] * rotary_dim + d[None, :]
    tl.store(at, c.to(tl.float16), mask=keep)
    tl.store(at + rows * rotary_dim, s.to(tl.float16), mask=keep)


class Tables(NamedTuple):
    """What metadata decides of the tables of q and k: launches, and shapes (2, rows, rotary_dim).

    one: whether one table does for both, if q_positions and k_positions begin at one address.
    """

    launches: tuple[Any, Any]
    shapes: tuple[tuple[int, int, int], tuple[int, int, int]]
    one: bool
    inverse_turn: torch.Tensor


def places(positions: torch.Tensor) -> tuple[int, int, int, int]:
    """Of positions (seqlen,) or (batch, seqlen): sequences that differ, their length, both strides.

    A table has a row for each token of each of these.
    """
    *batch, seqlen = positions.shape
    *over, step = positions.stride()
    if not batch or batch[0] == 1 or (over[0] == 0 and batch[0]):
        return 1, seqlen, 0, step
    return batch[0], seqlen, over[0], step


def _launch(positions: torch.Tensor, inv_freq: torch.Tensor, ahead: bool) -> Any:
    """launch(positions, inv_freq, inverse_turn, table)."""
    (batch, seqlen, over, step), rotary_dim = places(positions), inv_freq.shape[0]
    rows, wide = batch * seqlen, max(16, triton.next_power_of_2(rotary_dim))
    block = max(1, ANGLES // wide)
    if capability(table_kernel, positions.device) is None:
        block = min(triton.next_power_of_2(triton.cdiv(max(seqlen, 1), 4)), max(1, 2**18 // wide))
    blocks = triton.cdiv(seqlen, block)
    return launcher(
        table_kernel, positions.device, batch * blocks,
        (rows, seqlen, blocks, rotary_dim, over, step, inv_freq.stride(0)),
        {"BLOCK_ROWS": block, "BLOCK_D": wide, "AHEAD": ahead}, WARPS,
    )  # fmt: skip


def tables(
    inv_freq: torch.Tensor, q_positions: torch.Tensor, k_positions: torch.Tensor, ahead: bool
) -> Tables:
    """Plan the tables of a call. ahead: whether the launch behind them waits for them itself."""
    q, k = places(q_positions), places(k_positions)
    width = inv_freq.shape[0]
    return Tables(
        (_launch(q_positions, inv_freq, ahead), _launch(k_positions, inv_freq, ahead)),
        ((2, q[0] * q[1], width), (2, k[0] * k[1], width)),
        q == k and q_positions.dtype == k_positions.dtype,
        inverse_turn(inv_freq.device),
    )


def written(
    plan: Tables, inv_freq: torch.Tensor, q_positions: torch.Tensor, k_positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The tables of q and of k, (2, rows, rotary_dim), cos and sin, float16: launched, not awaited.

    One and the same where the positions are the same memory.
    """

    def made(i: int, positions: torch.Tensor) -> torch.Tensor:
        table = torch.empty(plan.shapes[i], dtype=torch.float16, device=positions.device)
        plan.launches[i](positions, inv_freq, plan.inverse_turn, table)
        return table

    of_keys = made(1, k_positions)
    if plan.one and q_positions.data_ptr() == k_positions.data_ptr():
        return of_keys, of_keys
    return made(0, q_positions), of_keys
