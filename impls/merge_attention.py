"""Merge attention over parts of the keys by their lse: the n-ary form, in one Triton launch.

With m the largest lse, w_i = exp2((lse_i - m) * log2 e) and L the sum of all w_i in their order,
out = (sum w_i out_i) / L, one fma a state, and lse = m + log2(L) * ln 2, in float32. What one
online softmax does between key tiles, done once at the end (Flash-Decoding; Ye et al., FlashInfer,
arXiv 2501.01005, section 2.2, show that it is associative).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from tightrope import Arithmetic, implements
from tightrope.arithmetic import EXP2, LOG2
from tightrope.launch import capability, check_plain, launcher
from tightrope.sequence_call import Plan, planned
from tightrope.validate_attention import check_blocks
from tightrope.validate_sequences import check_merge

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
LOWEST = tl.constexpr(float("-inf"))


@triton.jit(do_not_specialize=[*range(18)])  # everything but the constants: lengths cost no build
def merge_kernel(
    outs, lses, out, lse,
    splits: tl.int32, rows: tl.int64, rows_2: tl.int64, rows_3: tl.int64, head_dim: tl.int32,
    outs_split: tl.int64, outs_1: tl.int64, outs_2: tl.int64, outs_3: tl.int64, outs_dim: tl.int64,
    lses_split: tl.int64, lses_1: tl.int64, lses_2: tl.int64, lses_3: tl.int64,
    BLOCK_D: tl.constexpr, BLOCK_ROWS: tl.constexpr,
):  # fmt: skip
    # Layout: outs (splits, rows_1, rows_2, rows_3, head_dim) and lses, by strides; out and lse
    # contiguous; rows = rows_1 * rows_2 * rows_3. A program owns a tile of rows.
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    mine, d = row < rows, tl.arange(0, BLOCK_D)[None, :]
    keep = mine[:, None] & (d < head_dim)
    x, y, z = row // (rows_2 * rows_3), row // rows_3 % rows_2, row % rows_3
    lses_at = lses + x * lses_1 + y * lses_2 + z * lses_3
    outs_at = outs + (x * outs_1 + y * outs_2 + z * outs_3)[:, None] + d * outs_dim

    m = tl.full([BLOCK_ROWS], LOWEST, tl.float32)
    for split in tl.range(0, splits):
        at = tl.cast(split, tl.int64) * lses_split
        m = tl.maximum(m, tl.load(lses_at + at, mask=mine, other=LOWEST))
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    acc = tl.zeros([BLOCK_ROWS, BLOCK_D], tl.float32)
    for split in tl.range(0, splits):
        at = tl.cast(split, tl.int64)
        part = tl.load(lses_at + at * lses_split, mask=mine, other=LOWEST)
        live = part != LOWEST  # what an empty state holds is not even read
        weight = tl.exp2(tl.where(live, (part - m) * LOG2E, LOWEST))
        value = tl.load(outs_at + at * outs_split, mask=keep & live[:, None], other=0.0)
        # Nothing is added to the first product, so that it keeps the sign of a zero.
        added = tl.fma(weight[:, None], value, acc)
        added = tl.where((total == 0.0)[:, None], weight[:, None] * value, added)
        acc = tl.where(live[:, None], added, acc)
        total += weight
    # Where one state is all there is, its bits come back as they are.
    alone = total == 1.0
    lse_tile = tl.where(alone, m, m + tl.log2(total) * LN2)
    acc = tl.where(alone[:, None], acc, acc / tl.where(total == 0.0, 1.0, total)[:, None])
    acc = tl.where((total == 0.0)[:, None], 0.0, acc)
    tl.store(lse + row, lse_tile, mask=mine)
    tl.store(out + row[:, None] * head_dim + d, acc, mask=keep)


class Config(NamedTuple):
    """Rows of a program (a power of 2) and its warps."""

    BLOCK_ROWS: int
    num_warps: int


def config(rows: int, head_dim: int, capability: tuple[int, int] | None) -> Config:
    """Tile and warps for a case; pure. On a GPU a program holds 4 KiB of sums.

    capability: the GPU's (major, minor); None for the interpreter, where few programs are best.
    """
    width = triton.next_power_of_2(head_dim)
    if capability is None:
        return Config(min(triton.next_power_of_2(max(1, rows)), 2**14 // width), 4)
    return Config(max(1, 1024 // width), 4)


def _plan(outs: Any, lses: Any, blocks: Config | None) -> Plan:
    splits, *axes, head_dim = outs.shape
    missing = 3 - len(axes)
    shape = [*[1] * missing, *axes]
    rows, gpu = shape[0] * shape[1] * shape[2], capability(merge_kernel, outs.device)
    tile = Config(*(blocks or config(rows, head_dim, gpu)))

    def steps(tensor: Any) -> tuple[int, ...]:
        first, *rest = tensor.stride()
        return (first, *[0] * missing, *rest)

    facts = (splits, rows, shape[1], shape[2], head_dim, *steps(outs), *steps(lses))
    constants = {"BLOCK_D": triton.next_power_of_2(head_dim), "BLOCK_ROWS": tile.BLOCK_ROWS}
    programs = triton.cdiv(rows, tile.BLOCK_ROWS)
    launch = launcher(merge_kernel, outs.device, programs, facts, constants, tile.num_warps)
    nothing = torch.empty(0, device=outs.device)
    return Plan(launch, None, nothing, nothing, False, None)


def _check(outs: Any, lses: Any, blocks: Any) -> None:
    check_merge(outs, lses)
    check_blocks(blocks, ("BLOCK_ROWS",), 1, ())


PROMISE = Arithmetic(
    form="division", order="once", exp_ulp=EXP2, exp_flush=True, division_ulp=2.5, log_ulp=LOG2
)


@implements("merge_attention", name="triton", arithmetic=PROMISE)
def merge_attention(
    outs: torch.Tensor, lses: torch.Tensor, *, blocks: Config | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse of attention over all keys, from states that each saw some of them.

    outs (splits, rows.., head_dim), one to three axes of rows; lses (splits, rows..), natural; both
    float32, any strides. A state of lse -inf saw no key: its outs may hold anything. Returns out
    (rows.., head_dim) and lse (rows..), float32; 0 and -inf where no state saw a key; where one
    did, its bits. blocks: a tile other than `config`'s. Raises as `validate_sequences.check_merge`
    and `validate_attention.check_blocks`.
    """
    plan = planned(
        ("merge_attention", outs, lses, blocks),
        lambda: _check(outs, lses, blocks),
        lambda: _plan(outs, lses, blocks),
    )
    check_plain(outs, lses)
    out = torch.empty(outs.shape[1:], dtype=torch.float32, device=outs.device)
    lse = torch.empty(lses.shape[1:], dtype=torch.float32, device=outs.device)
    plan.general(outs, lses, out, lse)
    return out, lse
