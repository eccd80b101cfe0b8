"""From a call of the contract `rope_attention` to its one or two launches."""

from __future__ import annotations

from typing import Any

import torch
import triton

from tightrope import Arithmetic
from tightrope.attention_call import broadcast_strides
from tightrope.attention_tiles import Config, config, heads_together
from tightrope.launch import capability, check_plain
from tightrope.sequence_call import Options, Plan, arithmetic, make_plan, planned, strides
from tightrope.validate_attention import check_attention, check_blocks, check_flag
from tightrope.validate_sequences import check_position_values, check_rope_attention

Tensors = tuple[torch.Tensor, ...]


def tile_for(
    heads: int, seqlen_q: int, width: int, itemsize: int, copied: bool,
    capability: tuple[int, int] | None,
) -> Config:  # fmt: skip
    """The tile for a case; pure. Tiles of k that are turned in registers are small.

    heads: batch * num_heads. width: the larger of head_dim and head_dim_v.
    """
    tile = config(heads, seqlen_q, width, itemsize, False, capability)
    if copied or capability is None:
        return tile
    keys = min(tile.BLOCK_N, 64 if width <= 64 else 32)
    # In flight are a tile of k, its partners, and two tiles of the table: more than most GPUs hold.
    roomy = capability == (9, 0) and width <= 128
    return tile._replace(BLOCK_N=keys, num_stages=min(tile.num_stages, 2) if roomy else 1)


def promise(case: Any, device: Any, copied: bool = False) -> Arithmetic:
    """What the kernels promise for a case."""
    width, size = max(case.head_dim, case.head_dim_v), 4 if case.dtype == "float32" else 2
    heads, gpu = case.batch * case.num_heads, device.capability
    tile = tile_for(heads, case.seqlen_q, width, size, copied, gpu)
    return Arithmetic(**arithmetic(case, device, tile.BLOCK_N), rotated="input", contraction="none")


def _halves(x: torch.Tensor, half: int, interleaved: bool) -> bool:
    """Whether all features are turned, in pairs (i, i + half), and fill a tile's width."""
    width = x.shape[3]
    return not interleaved and width == 2 * half == max(16, triton.next_power_of_2(width))


def _places(positions: torch.Tensor) -> tuple[int, int]:
    """Strides of batch and token."""
    first, *rest = positions.stride()
    return (first, rest[0]) if rest else (0, first)


def _plan(
    kernels: Any, tensors: Tensors, interleaved: bool, options: Options, copied: bool, blocks: Any
) -> Plan:
    q, k, v, cos, sin, q_positions, k_positions = tensors
    (batch, num_heads, seqlen_q, head_dim), head_dim_v = q.shape, v.shape[3]
    heads, size, gpu = batch * num_heads, q.element_size(), capability(kernels[0], q.device)
    width, group = max(head_dim, head_dim_v), num_heads // k.shape[1]
    tile = Config(*(blocks or tile_for(heads, seqlen_q, width, size, copied, gpu)))
    row_tiles, (table, half) = triton.cdiv(seqlen_q, tile.BLOCK_M), cos.shape
    together = heads_together(heads, group, k.shape[2] * (head_dim + head_dim_v) * size)
    sink, q_offset = options.sink, options.q_offset
    offsets = isinstance(q_offset, torch.Tensor)
    if copied:
        k = k.new_empty(k.shape, device="meta")  # contiguous strides, no memory

    def numbers(unit: int) -> tuple[float, ...]:
        return (
            *(seqlen_q, k.shape[2], head_dim // unit, head_dim_v // unit, num_heads, group, heads),
            *(row_tiles, together, table, half // unit, sink is not None, offsets),
            *strides((q, k, v, cos, sin), unit), *_places(q_positions), *_places(k_positions),
            *broadcast_strides(sink, 1), *broadcast_strides(q_offset, 1),
            0 if offsets else q_offset, *options.numbers(head_dim),
        )  # fmt: skip

    halves = copied and _halves(q, half, interleaved)
    constants = {
        "SOFTCAP": options.softcap is not None, "INTERLEAVED": interleaved, "HALVES": halves,
    }  # fmt: skip
    turn = _turn_plan(kernels[1], tensors, interleaved) if copied else None
    return make_plan(
        kernels[0], (q, k, v, cos, sin), (head_dim, head_dim_v, half), heads * row_tiles, numbers,
        {**constants, "TURN_K": not copied}, tile, turn,
    )  # fmt: skip


def _turn_plan(kernel: Any, tensors: Tensors, interleaved: bool) -> Plan:
    """The launch that turns k: 4 KiB a program, or few programs on the interpreter."""
    _, k, _, cos, sin, _, positions = tensors
    batch, num_kv_heads, seqlen_k, head_dim = k.shape
    heads = min(8, triton.next_power_of_2(max(1, num_kv_heads)))
    size = 2**14 if capability(kernel, k.device) is None else 4096 // k.element_size()
    rows = max(16, size // max(16, triton.next_power_of_2(head_dim)))
    blocks = triton.cdiv(seqlen_k, rows // heads)

    def numbers(unit: int) -> tuple[float, ...]:
        return (
            *(seqlen_k, head_dim // unit, num_kv_heads, blocks, cos.shape[0], cos.shape[1] // unit),
            *strides((k, cos, sin), unit), *_places(positions),
        )  # fmt: skip

    return make_plan(
        kernel, (k, cos, sin), (head_dim, head_dim, cos.shape[1]),
        batch * triton.cdiv(num_kv_heads, heads) * blocks, numbers,
        {
            "INTERLEAVED": interleaved, "HALVES": _halves(k, cos.shape[1], interleaved),
            "BLOCK_HEADS": heads,
        },
        Config(rows, 16, 4, 1),
    )  # fmt: skip


def _check(
    tensors: Tensors, interleaved: Any, options: Options, copied: Any, validate: Any, blocks: Any
) -> None:  # fmt: skip
    q, k, v, cos, sin, q_positions, k_positions = tensors
    check_attention(q, k, v, **options._asdict(), validate=validate)
    check_rope_attention(q, k, cos, sin, q_positions, k_positions, interleaved)
    check_flag("copied", copied)
    check_blocks(blocks)


def attend(
    kernels: tuple[Any, Any], tensors: Tensors, interleaved: bool, options: Options, copied: bool,
    validate: bool, blocks: Config | None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Check, plan once for a set of metadata, and launch: out and lse.

    kernels: one that attends, and one that turns a copy of k for it. tensors: the contract's, in
    order. Raises as check_attention, check_rope_attention, check_blocks, check_position_values.
    """
    q, k, v, cos, sin, q_positions, k_positions = tensors
    plan = planned(
        (kernels[0], *tensors, interleaved, *options, copied, validate, blocks),
        lambda: _check(tensors, interleaved, options, copied, validate, blocks),
        lambda: _plan(kernels, tensors, interleaved, options, copied, blocks),
    )
    check_plain(*tensors, options.sink, options.q_offset)
    if validate or plan.on_cpu:
        check_position_values(q_positions, k_positions, cos.shape[0])
    rows = q.shape[:3]
    out = torch.empty((*rows, v.shape[3]), dtype=options.out_dtype or q.dtype, device=q.device)
    lse = torch.empty(rows, dtype=torch.float32, device=q.device)
    if copied:
        turned = torch.empty(k.shape, dtype=k.dtype, device=k.device)
        plan.rest.launch_all((k, turned, cos, sin), k_positions)
        k = turned
    wide = (q, k, v, out, cos, sin)
    plan.launch(wide, options.sink, options.q_offset, q_positions, k_positions, lse)
    return out, lse
