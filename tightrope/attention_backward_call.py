"""From a call of the contract `attention_backward` to its three launches.

A pass of the gradients' kernel owns keys or rows and walks over the others; what the two passes
differ in is decided here, so that the kernel knows one of them only by a flag.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

import torch
import triton

from tightrope.attention_backward_tiles import ROWS, Config, Tile, config
from tightrope.attention_call import (
    NO_KEY,
    UNIT,
    Options,
    bounds,
    broadcast_strides,
    described,
    factors,
)
from tightrope.attention_tiles import heads_together
from tightrope.launch import aligned, capability, check_plain, launcher
from tightrope.validate_attention_backward import check_attention_backward, check_tiles

Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Launch = Callable[..., None]


class Kernels(NamedTuple):
    """rows(tensors, numbers, constants): delta and shift; gradients(...): a pass, by KEYS."""

    rows: Any
    gradients: Any


class Build(NamedTuple):
    """The three launches of one build, ready but for the addresses."""

    rows: Launch
    keys: Launch
    queries: Launch


class Plan(NamedTuple):
    """What one set of metadata decides; padded: numbers a row of heads in delta and shift."""

    general: Build
    aligned: Build | None
    padded: int
    no_offsets: torch.Tensor


class Call(NamedTuple):
    """The tensors of a call that decide its launches; (batch, heads, length, width) all."""

    dout: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor

    @property
    def group(self) -> int:
        return self.q.shape[1] // self.k.shape[1]

    def passed(self, keys: bool) -> tuple[torch.Tensor, ...]:
        """own_1, own_2, walked_1, walked_2 of the pass that owns keys, or rows."""
        rows = (self.q, self.dout)
        return (self.k, self.v, *rows) if keys else (*rows, self.k, self.v)


_PLANS: dict[Any, Plan] = {}


def _strides(tensors: Any, unit: int) -> list[int]:
    """In units, but the last axis', which counts elements."""
    each = ((*(s // unit for s in t.stride()[:-1]), t.stride(-1)) for t in tensors)
    return list(chain(*each))


def _rows_launch(kernel: Any, call: Call, padded: int, unit: int) -> Launch:
    batch, num_heads, seqlen_q, width = call.out.shape
    tiles = padded // ROWS
    numbers = (
        *(seqlen_q, width // unit, num_heads, tiles, padded),
        *_strides((call.out, call.dout), unit), *call.lse.stride(),
    )  # fmt: skip
    constants = {"UNIT": unit, "BLOCK_DV": max(16, triton.next_power_of_2(width)), "ROWS": ROWS}
    return launcher(kernel, call.q.device, batch * num_heads * tiles, numbers, constants, 4)


def _together(call: Call, keys: bool, heads: int) -> int:
    """Owned heads that run side by side, so that what they walk over stays in cache."""
    _, _, walked_1, walked_2 = call.passed(keys)
    each = walked_1.shape[3] + walked_2.shape[3]
    size = walked_1.shape[2] * each * walked_1.element_size()
    return heads_together(heads, 1, size * call.group) if keys else (
        heads_together(heads, call.group, size)
    )  # fmt: skip


def _numbers(
    call: Call, options: Options, keys: bool, tiles: int, padded: int, unit: int
) -> tuple[float, ...]:
    """Numbers of a pass in the kernel's order; what a key sees mirrors what a row sees."""
    own, value, walked, _ = tensors = call.passed(keys)
    batch, heads, length, width = own.shape
    share, repeat = (1, call.group) if keys else (call.group, 1)
    offset, (left, right) = options.q_offset, bounds(options.causal, options.window_size)
    given = hasattr(offset, "stride")
    offset = 0 if given else offset
    scale = width**-0.5 if options.softmax_scale is None else float(options.softmax_scale)
    return (
        *(length, walked.shape[2], width // unit, value.shape[3] // unit),
        *(heads, share, repeat, batch * heads, tiles, _together(call, keys, batch * heads)),
        *(padded, given), *_strides(tensors[:2], unit),
        *factors(scale, options.softcap, width), scale, *_strides(tensors[2:], unit),
        *broadcast_strides(options.q_offset, 1),
        *((-offset, right, left) if keys else (offset, left, right)),
    )  # fmt: skip


def _pass_launch(
    kernel: Any, call: Call, options: Options, keys: bool, tile: Tile, padded: int, unit: int
) -> Launch:
    own, value, *_ = call.passed(keys)
    batch, heads, length, width = own.shape
    tiles = triton.cdiv(length, tile.OWN)
    blocks = [max(16, triton.next_power_of_2(n)) for n in (width, value.shape[3])]
    constants = {
        "KEYS": keys, "GROUPED": keys and call.group > 1, "UNIT": unit,
        "PADDED": unit == 1 or blocks != [width, value.shape[3]],
        "SOFTCAP": options.softcap is not None, "BLOCK_D": blocks[0], "BLOCK_DV": blocks[1],
        "OWN": tile.OWN, "WALKED": tile.WALKED,
    }  # fmt: skip
    numbers = _numbers(call, options, keys, tiles, padded, unit)
    return launcher(
        kernel, own.device, batch * heads * tiles, numbers, constants, tile.num_warps,
        tile.num_stages,
    )  # fmt: skip


def _plan(kernels: Kernels, call: Call, options: Options, blocks: Any) -> Plan:
    dout, q, k, v, out, _ = call
    widths = q.shape[3], v.shape[3]
    gpu = capability(kernels.gradients, q.device)
    chosen = blocks or config(max(widths), q.element_size(), gpu)
    tiles = Config(*(Tile(*tile) for tile in chosen))
    most = max(ROWS, tiles.keys.WALKED, tiles.queries.OWN)  # powers of 2: each divides the largest
    padded = triton.cdiv(q.shape[2], most) * most

    def build(unit: int) -> Build:
        keys, queries = (
            _pass_launch(kernels.gradients, call, options, flag, tile, padded, unit)
            for flag, tile in ((True, tiles.keys), (False, tiles.queries))
        )
        return Build(_rows_launch(kernels.rows, call, padded, unit), keys, queries)

    words = build(UNIT) if aligned(UNIT, (dout, q, k, v, out), widths) else None
    nothing = torch.empty(0, dtype=torch.int32, device=q.device)
    return Plan(build(1), words, padded, nothing)


def differentiate(
    kernels: Kernels, dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    out: torch.Tensor, lse: torch.Tensor, options: Options, blocks: Config | None,
) -> Gradients:  # fmt: skip
    """Check, plan once for a set of metadata, and launch: dq, dk and dv.

    blocks: tiles other than the table's. Raises as check_attention_backward and check_tiles.
    """
    call, offsets = Call(dout, q, k, v, out, lse), options.q_offset
    try:
        key = described((*call, *options, id(kernels), *chain(*(blocks or ()))))
        plan = _PLANS.get(key)
    except NO_KEY:  # the check says why
        plan = None
    if plan is None:
        check_attention_backward(*call, **options._asdict())
        check_tiles(blocks)
        if len(_PLANS) >= 4096:
            _PLANS.clear()
        plan = _PLANS[key] = _plan(kernels, call, options, blocks)
    check_plain(*call, offsets)
    dtype = options.out_dtype or q.dtype
    dq, dk, dv = (torch.empty(x.shape, dtype=dtype, device=x.device) for x in (q, k, v))
    shape = (*q.shape[:2], plan.padded)
    delta, shift = (torch.empty(shape, dtype=torch.float32, device=q.device) for _ in range(2))
    addresses = 0
    for x in (*call[:5], dq, dk, dv):
        addresses |= x.data_ptr()
    build = plan.general if plan.aligned is None or addresses % 16 else plan.aligned
    rest = (delta, shift, offsets if isinstance(offsets, torch.Tensor) else plan.no_offsets)
    build.rows(out, dout, lse, delta, shift)
    build.keys(*call.passed(True), *rest, dk, dv)
    build.queries(*call.passed(False), *rest, dq, dq)
    return dq, dk, dv
