"""From a call of `pope_attention` to an expansion of q and k, then to the bundled `attention`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import triton

from tightrope import Arithmetic
from tightrope.attention_tiles import Config
from tightrope.implementation import bundled
from tightrope.launch import capability, check_plain
from tightrope.pope_angles_call import places
from tightrope.pope_attention_call import Tensors, check, check_values
from tightrope.sequence_call import Options, Plan, make_plan, planned, strides
from tightrope.softplus import stages
from tightrope.turns import ANGLE_ERROR, ROUNDED_ONCE, inverse_turn
from tightrope.validate import refuse

PROGRAMS = 512  # that make a GPU busy while memory is what they wait for
WIDEST = 256  # features of a head of `attention`
SHIFTED = 2.0**-48
"""What cos and sin are off by, in float64, where delta has turned them."""


def promise(case: Any, device: Any) -> Arithmetic:
    """What the two launches promise for a case: attention's, of longer rows, and the points'."""
    wide = replace(case, head_dim=case.head_dim + case.rotary_dim)
    own = case.num_heads != case.num_kv_heads and case.delta == "heads"
    plain = case.delta == "none"
    return Arithmetic(
        **bundled("attention", "triton").promise(wide, device), **stages("precise"),
        angle="exact", angle_error=ANGLE_ERROR if plain else 2 * SHIFTED,
        trig_ulp=ROUNDED_ONCE if plain else 0.5 + 2.0**-20, table="float32",
        phase="query_angle" if own else "key", features="input", feature_order="joined",
    )  # fmt: skip


def heads_a_program(heads: int, blocks: int) -> int:
    """Of `heads`, those that one program expands with the angles that it found; pure.

    blocks: tiles of tokens in all sequences. Few programs take all heads in turn.
    """
    return max(1, min(heads, heads * blocks // PROGRAMS))


def _plan(kernel: Any, tensors: Tensors) -> Plan:
    """The launch that expands: 1024 features of a head at a time, or few programs."""
    q, k, _, inv_freq, delta, *positions = tensors
    (batch, *_, head_dim), polar = q.shape, inv_freq.shape[0]
    plain = head_dim - polar
    interpreted = capability(kernel, q.device) is None
    block = max(1, (2**14 if interpreted else 1024) // max(16, triton.next_power_of_2(polar)))
    shapes, programs = [], []
    for x in (q, k):
        heads, seqlen = x.shape[1:3]
        blocks = triton.cdiv(seqlen, block)
        each = heads if interpreted else heads_a_program(heads, batch * blocks)
        shapes.append((seqlen, heads, each, blocks))
        programs.append(batch * blocks * triton.cdiv(heads, each))
    of_keys = delta is not None and delta.shape[0] == k.shape[1]
    of_queries = delta is not None and not of_keys

    def numbers(unit: int) -> tuple[float, ...]:
        return (
            *(programs[0], polar // unit, plain // unit, inv_freq.stride(0)),
            *shapes[0], *places(positions[0])[2:], *shapes[1], *places(positions[1])[2:],
            *strides((q, k), unit), -of_queries, int(of_keys),
            *((0, 0) if delta is None else delta.stride()),
        )  # fmt: skip

    return make_plan(
        kernel, (q, k), (polar, plain or polar), sum(programs), numbers, {"PLAIN": plain > 0},
        Config(block, 16, 4, 1), inverse_turn(q.device),
    )  # fmt: skip


def _check(tensors: Tensors, options: Options, validate: Any, blocks: Any) -> None:
    check(tensors, options, validate, blocks)
    width = tensors[0].shape[3] + tensors[3].shape[0]
    if width > WIDEST:
        refuse("head_dim + rotary_dim", f"at most {WIDEST}, the widest row of attention", width)


def attend(
    kernel: Any, tensors: Tensors, options: Options, validate: bool, blocks: Config | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Check, plan once for a set of metadata, expand, and attend: out and lse.

    tensors: the contract's, in order. Raises as `pope_attention_call.attend`; ValueError for a
    head_dim + rotary_dim above 256.
    """
    q, k, v, inv_freq, delta, *positions = tensors
    plan = planned(
        (kernel, *tensors, *options, validate, blocks),
        lambda: _check(tensors, options, validate, blocks),
        lambda: _plan(kernel, tensors),
    )
    check_plain(*tensors, options.sink, options.q_offset)
    if validate or plan.on_cpu:
        check_values(inv_freq, delta)
    head_dim, width = q.shape[3], q.shape[3] + inv_freq.shape[0]
    wide = [torch.empty((*x.shape[:3], width), dtype=x.dtype, device=x.device) for x in (q, k)]
    phases = plan.no_sink if delta is None else delta
    plan.launch_all((q, k, *wide), *positions, inv_freq, plan.rest, phases)
    scale = head_dim**-0.5 if options.softmax_scale is None else options.softmax_scale
    given = options._replace(softmax_scale=scale)._asdict()
    found: tuple[torch.Tensor, torch.Tensor] = bundled("attention", "triton").fn(
        *wide, v, **given, blocks=blocks
    )
    return found
