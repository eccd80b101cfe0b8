"""From a call of the contract `pope_attention` to the launches of its Hopper kernel.

Two, with delta three: float16 tables of all angles (`tightrope.pope_angles_call`), cos and sin of
delta, attention. All that metadata decides is decided once and kept; a call copies templates of TMA
descriptors and gives them addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from tightrope import Arithmetic
from tightrope.attention_hopper_call import (
    Tensors,
    check_addresses,
    outputs,
    plan_of,
    processors_of,
    sizes,
    tiled_launcher,
)
from tightrope.launch import check_plain, launcher
from tightrope.pope_angles_call import Tables, places, tables, written
from tightrope.pope_hopper_tile import Tile, check_hopper, check_tile, tile_for
from tightrope.sequence_call import Options, Plan, arithmetic, planned
from tightrope.softplus import ABSOLUTE, ULPS
from tightrope.turns import ANGLE_ERROR, ROUNDED_ONCE, cos_sin, inverse_turn, phase
from tightrope.validate import dtype_name
from tightrope.validate_pope_attention import check_finite_values, check_frequency_values


def promise(case: Any, device: Any) -> Arithmetic:
    """What the kernel promises for a case: of q's softplus, in float32, more than is said here.

    The error of "half" contains the rounding of the magnitude, which only k suffers.
    """
    tile = tile_for(case.batch * case.num_heads, case.seqlen_q, case.head_dim, case.dtype)
    form = "half" if tile.HALF else "short"
    return Arithmetic(
        **arithmetic(case, device, tile.BLOCK_N), angle="exact", angle_error=ANGLE_ERROR,
        trig_ulp=ROUNDED_ONCE, table="float16", phase="query", magnitude="float32",
        softplus_ulp=ULPS[form], softplus_error=ABSOLUTE[form], features="input",
        feature_order="blocks",
    )  # fmt: skip


@triton.jit(do_not_specialize=[*range(6)])
def delta_kernel(
    delta, inverse_turn, table, rows: tl.int64, delta_row: tl.int64, delta_dim: tl.int64,
    WIDTH: tl.constexpr,
):  # fmt: skip
    # Layout: table (2, rows, WIDTH), cos and sin of delta (rows, WIDTH), contiguous.
    row, d = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    angle = tl.load(delta + row * delta_row + d * delta_dim)
    c, s = cos_sin(phase(angle.to(tl.float64), inverse_turn))
    at = table + row * WIDTH + d
    tl.store(at, c.to(tl.float32))
    tl.store(at + rows * WIDTH, s.to(tl.float32))


class Work(NamedTuple):
    """The launches of a call that has something to compute; of_delta: None without delta."""

    tables: Tables
    boxed: tuple[int, int, int, int]
    of_delta: Callable[..., None] | None
    delta: tuple[int, ...]
    inverse_turn: torch.Tensor
    attend: Callable[..., None]


def _plan(kernel: Any, tensors: Tensors, options: Options, given: Tile | None) -> Plan:
    q, k, _, inv_freq, delta, q_positions, k_positions = tensors
    (batch, num_heads, seqlen_q, head_dim), device = q.shape, q.device
    processors = processors_of(kernel, device)
    tile = given or tile_for(batch * num_heads, seqlen_q, head_dim, dtype_name(q))
    found = sizes(q, k, options.causal, options.q_offset, tile, processors, 4 * head_dim)
    programs, *numbers = found
    if not programs or not found.seqlen_k:
        return plan_of(device, None)
    q_sequences, k_sequences = places(q_positions)[0], places(k_positions)[0]
    heads = 1 if delta is None else delta.shape[0]
    numbers += [int(k_sequences > 1), num_heads // heads, heads * head_dim]
    numbers += [s // 8 for s in q.stride()[:3]]
    numbers += [seqlen_q * head_dim * (q_sequences > 1), q_sequences * seqlen_q * head_dim]
    kv, cut = (batch, k.shape[1], found.seqlen_k, head_dim), (2, k_sequences, found.seqlen_k)
    launch = tiled_launcher(
        kernel, device, programs,
        ((kv, tile.CHUNK), (kv, tile.BLOCK_N), ((*cut, head_dim), tile.CHUNK, 2)),
        (*numbers, options.numbers(head_dim)[2], head_dim, delta is not None, True, tile),
        tile.registers,
    )  # fmt: skip
    work = Work(
        tables(inv_freq, q_positions, k_positions, True), (2, k_sequences, k.shape[2], head_dim),
        None if delta is None else _delta_launcher(delta), (2, heads, head_dim),
        inverse_turn(device), launch,
    )  # fmt: skip
    return plan_of(device, work)


def _delta_launcher(delta: torch.Tensor) -> Callable[..., None]:
    heads, width = delta.shape
    numbers = (heads, *delta.stride())
    return launcher(delta_kernel, delta.device, heads, numbers, {"WIDTH": width}, 1)


def attend(
    kernel: Any, tensors: Tensors, options: Options, validate: bool, tile: Tile | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Check, plan once for a set of metadata, and launch: out and lse.

    tensors: the contract's, in order. Raises as check_hopper, check_tile, check_frequency_values;
    ValueError for a device other than a Hopper GPU, or q, k, v not at multiples of 16 bytes.
    """
    q, k, v, inv_freq, delta, *positions = tensors
    plan = planned(
        (kernel, *tensors, *options, validate, tile),
        lambda: _check(tensors, options, validate, tile),
        lambda: _plan(kernel, tensors, options, tile),
    )
    check_plain(*tensors)
    check_addresses((q, k, v))
    if validate:
        check_frequency_values(inv_freq)
        check_finite_values("delta", delta)
    out, lse = outputs(q, v.shape[3], options.out_dtype)
    work = plan.rest
    if work is None:
        plan.general(out, lse)
        return out, lse
    phases = plan.no_sink
    if delta is not None:
        phases = torch.empty(work.delta, dtype=torch.float32, device=q.device)
        work.of_delta(delta, work.inverse_turn, phases)
    q_table, k_table = written(work.tables, inv_freq, *positions)
    work.attend((q, out, lse, q_table, phases), (k, v, k_table.view(work.boxed)))
    return out, lse


def _check(tensors: Tensors, options: Options, validate: Any, tile: Any) -> None:
    check_hopper(tensors, options._asdict(), validate)
    check_tile(tile, tensors[0].shape[3], dtype_name(tensors[0]))
