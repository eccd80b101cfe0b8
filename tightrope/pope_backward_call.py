"""From a call of the contract `pope_attention_backward` to its launches.

The tables of angles come first, as in the forward pass; then the pass that owns rows, the pass that
owns keys, and, with a delta, the sum of the parts of its gradient. What the two passes differ in is
decided here, so that the kernel knows one of them only by a flag.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton

from tightrope import Arithmetic, attention_backward_call
from tightrope.attention_backward_tiles import Config, Tile
from tightrope.attention_call import UNIT, broadcast_strides
from tightrope.launch import aligned, capability, check_plain, launcher
from tightrope.pope_angles_call import places, tables, written
from tightrope.pope_attention_call import _delta_strides, check_values
from tightrope.pope_backward_steps import SIGMOID_ULP
from tightrope.pope_backward_tiles import config
from tightrope.sequence_call import Options, Plan, arithmetic, planned, strides
from tightrope.softplus import form_for, stages
from tightrope.turns import ANGLE_ERROR, ROUNDED_ONCE
from tightrope.validate import dtype_name
from tightrope.validate_attention_backward import check_attention_backward, check_tiles
from tightrope.validate_pope_attention import check_pope_attention

Tensors = tuple[Any, ...]
Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]
OF_FORWARD = ("dot", "scores", "p", "logits", "exp_ulp", "exp_flush", "division_ulp")
PARTS = 16  # of a phase's gradient, added at once by one program


class Kernels(NamedTuple):
    """gradients(tensors, numbers, constants): a pass, by KEYS; phases(...): sums of parts."""

    gradients: Any
    phases: Any


class Call(NamedTuple):
    """A call's tensors: those of attention's gradients, and what turns its features."""

    core: attention_backward_call.Call
    inv_freq: torch.Tensor
    delta: torch.Tensor | None
    q_positions: torch.Tensor
    k_positions: torch.Tensor

    @property
    def rotary_dim(self) -> int:
        return self.inv_freq.shape[0]

    @property
    def plain(self) -> int:
        return self.core.q.shape[3] - self.rotary_dim


def _reach(positions: torch.Tensor, rotary_dim: int, unit: int) -> tuple[int, int]:
    """Of a table, in words: from a sequence to the next, and from cos to sin."""
    sequences, seqlen, *_ = places(positions)
    row = rotary_dim // unit
    return (seqlen * row if sequences > 1 else 0), sequences * seqlen * row


def _numbers(call: Call, options: Options, keys: bool, tiles: int, unit: int) -> tuple[float, ...]:
    """Numbers of a pass in the kernel's order; what a key sees mirrors what a row sees."""
    core, _, delta, *positions = call
    own, value, walked, _ = tensors = core.passed(keys)
    batch, heads, length, width = own.shape
    share, repeat = (1, core.group) if keys else (core.group, 1)
    together = attention_backward_call._together(core, keys, batch * heads)
    given, offset = isinstance(options.q_offset, torch.Tensor), options.q_offset
    left, right, *factors = options.numbers(width)
    seen = (-1, right, left) if keys else (1, left, right)
    reach = [_reach(x, call.rotary_dim, unit) for x in (reversed(positions) if keys else positions)]
    return (
        *(length, walked.shape[2], call.rotary_dim // unit, call.plain // unit),
        *(value.shape[3] // unit, heads, share, repeat, batch * heads, tiles, together),
        *(given, delta is not None), *strides((*tensors, core.out), unit), *core.lse.stride(),
        *reach[0], *reach[1], *_delta_strides(delta, core.q.shape[1]),
        *broadcast_strides(offset, 1), 0 if given else seen[0] * offset, *seen[1:],
        *factors, width**-0.5 if options.softmax_scale is None else float(options.softmax_scale),
    )  # fmt: skip


def _pass(kernel: Any, call: Call, options: Options, keys: bool, tile: Tile, unit: int) -> Any:
    own, value, *_ = call.core.passed(keys)
    tiles, widths = triton.cdiv(own.shape[2], tile.OWN), (call.rotary_dim, value.shape[3])
    wide, rest, wide_v = (
        max(16, triton.next_power_of_2(n)) if n else 0 for n in (widths[0], call.plain, widths[1])
    )
    constants = {
        "KEYS": keys, "UNIT": unit, "PADDED": unit == 1 or (wide, wide_v) != widths,
        "SOFTCAP": options.softcap is not None, "FORM": form_for(dtype_name(own)),
        "BLOCK_D": wide, "BLOCK_REST": rest, "BLOCK_DV": wide_v,
        "OWN": tile.OWN, "WALKED": tile.WALKED,
    }  # fmt: skip
    return launcher(
        kernel, own.device, own.shape[0] * own.shape[1] * tiles,
        _numbers(call, options, keys, tiles, unit), constants, tile.num_warps, tile.num_stages,
    )  # fmt: skip


def _phases(kernel: Any, call: Call, tiles: int) -> Callable[..., None] | None:
    if call.delta is None:
        return None
    batch, num_heads = call.core.q.shape[:2]
    heads, rotary_dim = call.delta.shape
    numbers = (batch, heads, num_heads // heads * tiles, rotary_dim)
    constants = {"ROWS": PARTS, "BLOCK_D": max(16, triton.next_power_of_2(rotary_dim))}
    return launcher(kernel, call.delta.device, heads, numbers, constants, 4)


def _plan(kernels: Kernels, call: Call, options: Options, blocks: Any) -> Plan:
    dout, q, k, v, out, _ = call.core
    gpu = capability(kernels.gradients, q.device)
    chosen = blocks or config(max(q.shape[3], v.shape[3]), q.element_size(), gpu)
    keys, queries = (Tile(*tile) for tile in chosen)
    row_tiles = triton.cdiv(q.shape[2], queries.OWN)
    phases = _phases(kernels.phases, call, row_tiles)

    def build(unit: int) -> Callable[..., None]:
        rows = _pass(kernels.gradients, call, options, False, queries, unit)
        columns = _pass(kernels.gradients, call, options, True, keys, unit)

        def launch(*tensors: torch.Tensor) -> None:
            dout, q, k, v, out, dq, dk, dv, q_table, k_table, *rest, parts, ddelta = tensors
            rows(q, dout, k, v, q_table, k_table, out, dq, dq, *rest, parts)
            columns(k, v, q, dout, k_table, q_table, out, dk, dv, *rest, parts)
            if phases is not None:
                phases(parts, ddelta)

        return launch

    widths = (call.rotary_dim, call.plain, v.shape[3])
    words = build(UNIT) if aligned(UNIT, (dout, q, k, v, out), widths) else None
    no_phase = torch.empty(0, dtype=torch.float32, device=q.device)
    no_offsets = torch.empty(0, dtype=torch.int32, device=q.device)
    made = tables(call.inv_freq, call.q_positions, call.k_positions, False)
    on_cpu = q.device.type == "cpu"
    return Plan(build(1), words, no_phase, no_offsets, on_cpu, (made, row_tiles))


def promise(case: Any, device: Any) -> Arithmetic:
    """What the kernels promise for a case."""
    forward = arithmetic(case, device, None)
    return Arithmetic(
        state="given", ds="input", heads="summed", **{name: forward[name] for name in OF_FORWARD},
        **stages(form_for(case.dtype)), angle="exact", angle_error=ANGLE_ERROR,
        trig_ulp=ROUNDED_ONCE, table="float16", phase="query", features="input",
        feature_order="blocks", sigmoid_ulp=SIGMOID_ULP, sigmoid_error=0.0,
        point_gradients="float32", phase_sums="rows",
    )  # fmt: skip


def differentiate(
    kernels: Kernels, tensors: Tensors, options: Options, validate: bool, blocks: Config | None
) -> Gradients:
    """Check, plan once for a set of metadata, and launch: dq, dk, dv and ddelta, or None for it.

    tensors: the contract's, in order. blocks: tiles other than the table's. Raises as
    check_attention_backward, check_tiles, check_pope_attention and `pope_attention_call`'s values.
    """
    call = Call(attention_backward_call.Call(*tensors[:6]), *tensors[6:])
    (_, q, k, v, _, lse), inv_freq, delta, *positions = call

    def checked() -> None:
        check_attention_backward(*call.core, **options._asdict(), validate=validate)
        check_pope_attention(q, k, inv_freq, delta, *positions)
        check_tiles(blocks)

    key = (kernels, *tensors, *options, validate, *(blocks or ()))
    plan = planned(key, checked, lambda: _plan(kernels, call, options, blocks))
    check_plain(*tensors, options.q_offset)
    if validate or plan.on_cpu:
        check_values(inv_freq, delta)
    dtype, (made, row_tiles) = options.out_dtype or q.dtype, plan.rest
    dq, dk, dv = (torch.empty(x.shape, dtype=dtype, device=x.device) for x in (q, k, v))
    sums, shifts = (torch.empty(lse.shape, dtype=lse.dtype, device=q.device) for _ in range(2))
    parts = ddelta = plan.no_sink
    if delta is not None:
        parts = sums.new_empty((*q.shape[:2], row_tiles, delta.shape[1]))
        ddelta = delta.new_empty(delta.shape)
    offsets = options.q_offset if isinstance(options.q_offset, torch.Tensor) else plan.no_offsets
    rest = (lse, sums, shifts, offsets, plan.no_sink if delta is None else delta)
    wide = (*call.core[:5], dq, dk, dv, *written(made, inv_freq, *positions))
    plan.launch_all(wide, *rest, made.inverse_turn, parts, ddelta)
    return dq, dk, dv, None if delta is None else ddelta
