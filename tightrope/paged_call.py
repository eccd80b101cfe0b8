"""From a call of the contract `attention_paged` to its one or two launches."""

from __future__ import annotations

from typing import Any

import torch
import triton

from tightrope.attention_call import broadcast_strides
from tightrope.attention_tiles import PROCESSORS, Config, config
from tightrope.launch import capability, check_plain, launcher
from tightrope.sequence_call import Options, Plan, make_plan, planned, strides
from tightrope.validate import refuse
from tightrope.validate_attention import check_blocks
from tightrope.validate_sequences import check_cache_values, check_paged, check_starts_values


def schedule(
    tokens_q: int, sequences: int, num_heads: int, num_kv_heads: int, width: int, itemsize: int,
    longest: int, capability: tuple[int, int] | None,
) -> tuple[Config, int]:  # fmt: skip
    """Tile and splits for a case; pure. longest: keys that a row of the block table can hold.

    The keys are split where rows alone make too few programs, into parts worth a launch.
    """
    rows = triton.cdiv(tokens_q, max(1, sequences)) * (num_heads // num_kv_heads)
    tile = config(sequences * num_kv_heads, rows, width, itemsize, False, capability)
    programs = max(1, sequences * num_kv_heads * triton.cdiv(rows, tile.BLOCK_M))
    parts = 1 if capability is None else min(2 * PROCESSORS // programs, longest // 512, 64)
    return tile, max(1, parts)


def _plan(
    kernels: Any, tensors: Any, options: Options, blocks: Config | None, given: int | None
) -> Plan:
    q, k, v, starts, table, lengths = tensors
    (tokens_q, num_heads, head_dim), head_dim_v = q.shape, v.shape[3]
    (pages, page_size, num_kv_heads), sequences = k.shape[:3], starts.shape[0] - 1
    gpu, width = capability(kernels[0], q.device), max(head_dim, head_dim_v)
    longest, size = table.shape[1] * page_size, q.element_size()
    tile, parts = schedule(
        tokens_q, sequences, num_heads, num_kv_heads, width, size, longest, gpu
    )  # fmt: skip
    tile, parts, group = Config(*(blocks or tile)), given or parts, num_heads // num_kv_heads
    tiles = tokens_q * group // tile.BLOCK_M + sequences + 1
    sink, q_offset = options.sink, options.q_offset

    def numbers(unit: int) -> tuple[float, ...]:
        return (
            *(sequences, tokens_q, pages, page_size, longest, head_dim // unit, head_dim_v // unit),
            *(num_kv_heads, group, tiles, parts, sink is not None, q_offset is not None),
            *strides((q, k, v), unit), *table.stride(), *broadcast_strides(sink, 1),
            *broadcast_strides(q_offset, 1), starts.stride(0), lengths.stride(0),
            *options.numbers(head_dim),
        )  # fmt: skip

    rows = 64 if gpu is None else 4
    facts = (tokens_q, num_heads, head_dim_v, parts)
    shape = {"BLOCK_DV": triton.next_power_of_2(head_dim_v), "BLOCK_M": rows}
    programs = triton.cdiv(tokens_q * num_heads, rows)
    merge = launcher(kernels[1], q.device, programs, facts, shape, num_warps=4)
    programs = tiles * num_kv_heads * parts if tokens_q else 0
    constants = {"SOFTCAP": options.softcap is not None, "SPLIT": parts > 1}
    return make_plan(
        kernels[0], (q, k, v), (head_dim, head_dim_v), programs, numbers, constants, tile,
        (merge, parts),
    )  # fmt: skip


def attend(
    kernels: tuple[Any, Any], tensors: tuple[torch.Tensor, ...], options: Options, validate: bool,
    blocks: Config | None, splits: int | None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Check, plan once for a set of metadata, and launch: out and lse.

    kernels: one that attends, and one that merges its splits. tensors: the contract's, in order.
    blocks, splits: others than `schedule`'s. Raises as check_paged, check_blocks, value checks.
    """
    q, k_cache, v_cache, cu_seqlens_q, block_table, cache_seqlens = tensors
    plan = planned(
        (kernels[0], *tensors, *options, validate, blocks, splits),
        lambda: _check(tensors, options, validate, blocks, splits),
        lambda: _plan(kernels, tensors, options, blocks, splits),
    )
    check_plain(*tensors, options.sink, options.q_offset)
    if validate or plan.on_cpu:
        check_starts_values("cu_seqlens_q", cu_seqlens_q, q.shape[0])
        check_cache_values(block_table, cache_seqlens, *k_cache.shape[:2])
    rows, head_dim_v = q.shape[:2], v_cache.shape[3]
    out = torch.empty((*rows, head_dim_v), dtype=options.out_dtype or q.dtype, device=q.device)
    lse = torch.empty((rows[1], rows[0]), dtype=torch.float32, device=q.device)
    merge, parts = plan.rest
    split = parts > 1
    acc = lse.new_empty((parts, *rows, head_dim_v)) if split else out
    state = lse.new_empty((2, parts * split, *rows))
    plan.launch(
        (q, k_cache, v_cache, acc), options.sink, options.q_offset, *tensors[3:], lse, state
    )
    if split:
        merge(acc, state, out, lse)
    return out, lse


def _check(tensors: Any, options: Options, validate: Any, blocks: Any, splits: Any) -> None:
    check_paged(*tensors, **options._asdict(), validate=validate)
    check_blocks(blocks)
    if splits is None:
        return
    if not isinstance(splits, int) or isinstance(splits, bool):
        refuse("splits", "None or an int", repr(splits), TypeError)
    if not 1 <= splits <= 1024:
        refuse("splits", "1 to 1024", splits)
