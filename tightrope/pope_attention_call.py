"""From a call of the contract `pope_attention` to its launches: tables of angles, and attention."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton

from tightrope import Arithmetic
from tightrope.attention_call import broadcast_strides
from tightrope.attention_tiles import PROCESSORS, Config, heads_together
from tightrope.launch import capability, check_plain
from tightrope.pope_angles_call import places, tables, written
from tightrope.sequence_call import Options, Plan, arithmetic, make_plan, planned, strides
from tightrope.softplus import FORMS, form_for, stages
from tightrope.turns import ANGLE_ERROR, ROUNDED_ONCE
from tightrope.validate import dtype_name, refuse
from tightrope.validate_attention import check_attention, check_blocks
from tightrope.validate_pope_attention import (
    check_finite_values,
    check_frequency_values,
    check_pope_attention,
)

Tensors = tuple[Any, ...]


class Ways(NamedTuple):
    """How a call is computed, where the case does not say; None: as the tables here have it.

    blocks: the tile. form: of softplus.
    """

    blocks: Config | None = None
    form: str | None = None


# Angles are exact everywhere; far positions are asked only of kernels that name them.
POSITIONS = ("range", "offset", "random", "per_batch", "long")
# By the widest head that an entry is for: a crowd of tiles, many, fewer, and few rows.
HALF_SM90 = {
    64: (Config(128, 64, 4, 2), Config(128, 128, 8, 3), Config(64, 64, 4, 3), Config(16, 64, 4, 3)),
    128: (*[Config(128, 64, 8, 2)] * 2, Config(64, 64, 4, 1), Config(16, 32, 4, 2)),
    256: (*[Config(64, 32, 8, 1)] * 3, Config(16, 32, 4, 1)),
}
HALF = {  # fits the 99 KiB of shared memory that the smallest GPUs since sm_80 give a program
    64: (*[Config(64, 64, 4, 1)] * 3, Config(16, 64, 4, 1)),
    128: (*[Config(64, 32, 4, 1)] * 3, Config(16, 32, 4, 1)),
    256: (*[Config(32, 16, 4, 1)] * 3, Config(16, 16, 4, 1)),
}
SINGLE = {
    64: (*[Config(32, 32, 4, 1)] * 3, Config(16, 32, 4, 1)),
    128: (*[Config(32, 16, 8, 1)] * 3, Config(16, 16, 4, 1)),
    256: (*[Config(16, 16, 8, 1)] * 3, Config(16, 16, 8, 1)),
}


def tile_for(
    heads: int, seqlen_q: int, width: int, itemsize: int, capability: tuple[int, int] | None
) -> Config:  # fmt: skip
    """The tile for a case; pure. Chosen as `attention_tiles.config` chooses.

    heads: batch * num_heads. width: the larger of head_dim and head_dim_v. Not batch invariant for
    16-bit types up to width 128 on sm_90, where the number of heads decides the keys of a tile.
    """
    if capability is None:
        return Config(16, 16, 4, 1)
    half = HALF_SM90 if capability == (9, 0) else HALF
    table = SINGLE if itemsize == 4 else half
    crowd, many, fewer, few = next(found for widest, found in table.items() if widest >= width)
    if seqlen_q <= 2 * few.BLOCK_M:
        return few
    tiles = heads * -(-seqlen_q // many.BLOCK_M)
    if tiles < PROCESSORS:
        return fewer
    return many if tiles < 8 * PROCESSORS else crowd  # a crowd lives off many tiles a processor


def promise(case: Any, device: Any) -> Arithmetic:
    """What the kernel promises for a case."""
    width, size = max(case.head_dim, case.head_dim_v), 4 if case.dtype == "float32" else 2
    tile = tile_for(case.batch * case.num_heads, case.seqlen_q, width, size, device.capability)
    return Arithmetic(
        **arithmetic(case, device, tile.BLOCK_N), **stages(form_for(case.dtype)),
        angle="exact", angle_error=ANGLE_ERROR, trig_ulp=ROUNDED_ONCE, table="float16",
        phase="query", features="input", feature_order="blocks",
    )  # fmt: skip


def _delta_strides(delta: Any, num_heads: int) -> tuple[int, int, int]:
    """Of the query head, of the kv head, of the feature: one of the first two is 0."""
    if delta is None:
        return 0, 0, 0
    head, feature = delta.stride()
    return (head, 0, feature) if delta.shape[0] == num_heads else (0, head, feature)


def _plan(kernel: Any, tensors: Tensors, options: Options, ways: Ways) -> Plan:
    q, k, v, inv_freq, delta, *positions = tensors
    (batch, num_heads, seqlen_q, head_dim), head_dim_v = q.shape, v.shape[3]
    heads, size, gpu = batch * num_heads, q.element_size(), capability(kernel, q.device)
    width, group, polar = max(head_dim, head_dim_v), num_heads // k.shape[1], inv_freq.shape[0]
    tile = Config(*(ways.blocks or tile_for(heads, seqlen_q, width, size, gpu)))
    row_tiles, plain = triton.cdiv(seqlen_q, tile.BLOCK_M), head_dim - polar
    together = heads_together(heads, group, k.shape[2] * (head_dim + head_dim_v) * size)
    sink, q_offset = options.sink, options.q_offset
    offsets = isinstance(q_offset, torch.Tensor)
    early = gpu is not None and gpu >= (9, 0)

    def numbers(unit: int) -> tuple[float, ...]:
        reach = [
            (seqlen * polar // unit if sequences > 1 else 0, sequences * seqlen * polar // unit)
            for sequences, seqlen, *_ in map(places, positions)
        ]
        return (
            *(seqlen_q, k.shape[2], polar // unit, plain // unit, head_dim_v // unit),
            *(num_heads, group, heads, row_tiles, together),
            *(sink is not None, offsets, delta is not None), *strides((q, k, v), unit),
            *reach[0], *reach[1], *broadcast_strides(sink, 1), *_delta_strides(delta, num_heads),
            *broadcast_strides(q_offset, 1), 0 if offsets else q_offset, *options.numbers(head_dim),
        )  # fmt: skip

    constants = {
        "SOFTCAP": options.softcap is not None,
        "BLOCK_REST": max(16, triton.next_power_of_2(plain)) if plain else 0,
        "FORM": ways.form or form_for(dtype_name(q)), "EARLY": early,
    }  # fmt: skip
    return make_plan(
        kernel, (q, k, v), (polar, head_dim_v, plain), heads * row_tiles, numbers, constants,
        tile, tables(inv_freq, positions[0], positions[1], early),
    )  # fmt: skip


def check(tensors: Tensors, options: Options, validate: Any, blocks: Any) -> None:
    """Refuse what metadata shows to be outside the contract, before anything is launched.

    Raises as check_attention, check_pope_attention and check_blocks.
    """
    q, k, v, *rest = tensors
    check_attention(q, k, v, **options._asdict(), validate=validate)
    check_pope_attention(q, k, *rest)
    check_blocks(blocks)


def check_values(inv_freq: Any, delta: Any) -> None:
    """Refuse frequencies not finite or not above 0, and phases not finite. Raises ValueError."""
    check_frequency_values(inv_freq)
    check_finite_values("delta", delta)


def _check_ways(q: Any, ways: Ways) -> None:
    forms = (None, *(f for f in FORMS if f != "half" or dtype_name(q) == "float16"))
    if ways.form not in forms:
        refuse("form", f"{' or '.join(map(str, forms))} for {q.dtype}", repr(ways.form))


def attend(
    kernel: Any, tensors: Tensors, options: Options, validate: bool, ways: Ways
) -> tuple[torch.Tensor, torch.Tensor]:
    """Check, plan once for a set of metadata, and launch: out and lse.

    tensors: the contract's, in order. Raises as check_attention, check_blocks,
    check_pope_attention, check_frequency_values, check_finite_values.
    """
    q, _, v, inv_freq, delta, *positions = tensors

    def checked() -> None:
        check(tensors, options, validate, ways.blocks)
        _check_ways(q, ways)

    key = (kernel, *tensors, *options, validate, *ways)
    plan = planned(key, checked, lambda: _plan(kernel, tensors, options, ways))
    check_plain(*tensors, options.sink, options.q_offset)
    if validate or plan.on_cpu:
        check_values(inv_freq, delta)
    rows = q.shape[:3]
    out = torch.empty((*rows, v.shape[3]), dtype=options.out_dtype or q.dtype, device=q.device)
    lse = torch.empty(rows, dtype=torch.float32, device=q.device)
    wide = (*tensors[:3], out, *written(plan.rest, inv_freq, *positions))
    phases = plan.no_sink if delta is None else delta
    plan.launch(wide, options.sink, options.q_offset, phases, plan.rest.inverse_turn, lse)
    return out, lse
