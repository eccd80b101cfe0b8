"""From a call of the contract `attention` to a launch: what its kernels share on the host.

The kernels take the same tensors, numbers and constants in the same order (`_numbers`,
`_constants`), so that one function, `attend`, checks, plans and launches for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, NamedTuple

import torch
import triton

from tightrope.attention_tiles import Config
from tightrope.launch import aligned, capability, check_plain, launcher
from tightrope.validate import refuse
from tightrope.validate_attention import check_attention, check_blocks

UNIT = 8  # elements a stride of an aligned build counts: 16 bytes of a 16-bit type
PRECISIONS = ("ieee", "tf32x3")
NO_KEY = (AttributeError, TypeError, RuntimeError, ValueError)  # not strided tensors, no options
UNBOUNDED = 2**40  # keys on one side: past every sequence, and far from overflowing 64 bits


class Options(NamedTuple):
    """The contract's keywords, in its order."""

    softmax_scale: Any
    causal: Any
    q_offset: Any
    window_size: Any
    softcap: Any
    bias: Any
    sink: Any
    out_dtype: Any


class Schedule(NamedTuple):
    """How a kernel wants to be launched; all but the flags are pure functions.

    kernel(tensors, numbers, constants). config(heads, seqlen_q, width, itemsize, bias, capability):
    its tile. together(heads, group, kv_bytes): heads, or row tiles, that share what is read once.
    programs(heads, row_tiles, together): of a launch. has_aligned: whether it has that build.
    has_scratch: whether it wants head_dim_v + 2 float32 numbers a row, stored and loaded in loops,
    so that num_stages is 1 whatever `blocks` says.
    """

    kernel: Any
    config: Callable[..., Config]
    together: Callable[[int, int, int], int]
    programs: Callable[[int, int, int], int]
    has_aligned: bool
    has_scratch: bool


class Plan(NamedTuple):
    """What one set of metadata decides: the launch of each build, ready but for the addresses."""

    general: Callable[..., None]
    aligned: Callable[..., None] | None
    no_bias: torch.Tensor  # stand in, without memory, for what is off
    no_sink: torch.Tensor
    no_offsets: torch.Tensor


_PLANS: dict[Any, Plan] = {}


def described(arguments: Iterable[Any]) -> tuple[Any, ...]:
    """All about arguments but addresses and elements, as a key.

    Types stand beside values, and for those in a tuple behind all, since True == 1 == 1.0.
    Raises TypeError, AttributeError or RuntimeError (a sparse tensor) if there is no key.
    """
    found: list[Any] = []
    kinds: list[type] = []
    for x in arguments:
        if hasattr(x, "stride"):
            found.append((x.shape, x.stride(), x.dtype, x.device))
        else:
            found.append((type(x), x))
            if isinstance(x, tuple):
                kinds += map(type, x)
    return (*found, *kinds)


def bounds(causal: bool, window_size: tuple[int | None, int | None] | None) -> tuple[int, int]:
    """(left, right): row i sees keys i + q_offset - left to i + q_offset + right, both included."""
    left, right = (
        UNBOUNDED if side is None else min(side, UNBOUNDED) for side in window_size or (None, None)
    )
    return left, 0 if causal else right


def factors(
    softmax_scale: float | None, softcap: float | None, head_dim: int
) -> tuple[float, float, float]:
    """(scale * log2(e), scale or scale/softcap, softcap or 1) in float64; the launch rounds them.

    softmax_scale None: head_dim**-0.5.
    """
    scale = head_dim**-0.5 if softmax_scale is None else float(softmax_scale)
    cap = 1.0 if softcap is None else float(softcap)
    return scale * math.log2(math.e), scale / cap, cap


def broadcast_strides(tensor: Any, axes: int) -> tuple[int, ...]:
    """Strides of a tensor's axes, 0 along those of one element; all 0 if it is no tensor."""
    if not hasattr(tensor, "stride"):
        return (0,) * axes
    return tuple(0 if n == 1 else t for n, t in zip(tensor.shape, tensor.stride(), strict=True))


def _numbers(
    q: Any, k: Any, v: Any, options: Options, row_tiles: int, together: int, unit: int
) -> tuple[float, ...]:
    """Numbers of a launch in the kernels' order; lengths of rows and strides in units."""
    (batch, num_heads, seqlen_q, head_dim), (_, num_kv_heads, seqlen_k, head_dim_v) = (
        q.shape,
        v.shape,
    )
    offsets = hasattr(options.q_offset, "stride")
    return (
        *(seqlen_q, seqlen_k, head_dim // unit, head_dim_v // unit),
        *(num_heads, num_heads // num_kv_heads, batch * num_heads, row_tiles, together),
        *(options.sink is not None, offsets),
        *chain(*((*(s // unit for s in t.stride()[:-1]), t.stride(-1)) for t in (q, k, v))),
        *broadcast_strides(options.bias, 4),
        *broadcast_strides(options.sink, 1),
        *broadcast_strides(options.q_offset, 1),
        0 if offsets else options.q_offset,
        *bounds(options.causal, options.window_size),
        *factors(options.softmax_scale, options.softcap, head_dim),
    )


def _constants(
    head_dim: int, head_dim_v: int, options: Options, precision: str, tile: Config, unit: int
) -> dict[str, Any]:
    blocks = [max(16, triton.next_power_of_2(n)) for n in (head_dim, head_dim_v)]
    return {
        "UNIT": unit, "PADDED": unit == 1 or blocks != [head_dim, head_dim_v],
        "SOFTCAP": options.softcap is not None, "BIAS": options.bias is not None,
        "PRECISION": precision, "BLOCK_D": blocks[0], "BLOCK_DV": blocks[1],
        "BLOCK_M": tile.BLOCK_M, "BLOCK_N": tile.BLOCK_N,
    }  # fmt: skip


def _plan(
    schedule: Schedule, q: Any, k: Any, v: Any, options: Options, precision: str, blocks: Any
) -> Plan:
    (batch, num_heads, seqlen_q, head_dim), head_dim_v = q.shape, v.shape[-1]
    gpu, size, heads = capability(schedule.kernel, q.device), q.element_size(), batch * num_heads
    width, bias = max(head_dim, head_dim_v), options.bias is not None
    chosen = schedule.config(heads, seqlen_q, width, size, bias, gpu)
    tile = Config(*(blocks or chosen))
    if schedule.has_scratch:
        tile = tile._replace(num_stages=1)
    row_tiles = triton.cdiv(seqlen_q, tile.BLOCK_M)
    kv_bytes = k.shape[2] * (head_dim + head_dim_v) * size
    together = schedule.together(heads, num_heads // k.shape[1], kv_bytes)

    def build(unit: int) -> Callable[..., None]:
        return launcher(
            schedule.kernel, q.device, schedule.programs(heads, row_tiles, together),
            _numbers(q, k, v, options, row_tiles, together, unit),
            _constants(head_dim, head_dim_v, options, precision, tile, unit),
            tile.num_warps, tile.num_stages,
        )  # fmt: skip

    fits = schedule.has_aligned and aligned(UNIT, (q, k, v), (head_dim, head_dim_v))
    nothing = [torch.empty(0, dtype=t, device=q.device) for t in (torch.float32, torch.int32)]
    return Plan(build(1), build(UNIT) if fits else None, nothing[0], *nothing)


def _check(q: Any, k: Any, v: Any, options: Options, precision: Any, rest: Any) -> None:
    validate, blocks = rest
    check_attention(q, k, v, **options._asdict(), validate=validate)
    check_blocks(blocks)
    allowed = PRECISIONS if q.dtype == torch.float32 else PRECISIONS[:1]
    if not isinstance(precision, str):
        refuse("dot_precision", " or ".join(allowed), repr(precision), TypeError)
    if precision not in allowed:
        refuse("dot_precision", f"{' or '.join(allowed)} for {q.dtype}", precision)


def attend(
    schedule: Schedule, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: Options,
    precision: str, validate: bool, blocks: Config | None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Check, plan once for a set of metadata, and launch: out and lse.

    precision: of float32 dots, "ieee" or "tf32x3". blocks: a tile other than the schedule's.
    Raises as check_attention and check_blocks.
    """
    try:
        rest = (id(schedule), precision, validate, blocks)  # a kernel's hash takes long
        key = described((q, k, v, *options, *rest))
        plan = _PLANS.get(key)
    except NO_KEY:  # the check says why
        plan = None
    if plan is None:
        _check(q, k, v, options, precision, (validate, blocks))
        if len(_PLANS) >= 4096:
            _PLANS.clear()
        plan = _PLANS[key] = _plan(schedule, q, k, v, options, precision, blocks)
    bias, sink, offsets = options.bias, options.sink, options.q_offset
    check_plain(q, k, v, bias, sink, offsets)
    rows, out_dtype = q.shape[:3], options.out_dtype or q.dtype
    out = torch.empty((*rows, v.shape[3]), dtype=out_dtype, device=q.device)
    lse = torch.empty(rows, dtype=torch.float32, device=q.device)
    tensors = [q, k, v, plan.no_bias if bias is None else bias]
    tensors += [plan.no_sink if sink is None else sink]
    tensors += [offsets if isinstance(offsets, torch.Tensor) else plan.no_offsets, out, lse]
    if schedule.has_scratch:
        tensors += [lse.new_empty((*rows, v.shape[3] + 2))]
    launch = plan.general
    if plan.aligned is not None:
        addresses = q.data_ptr() | k.data_ptr() | v.data_ptr() | out.data_ptr()
        if not addresses % 16:
            launch = plan.aligned
    launch(*tensors)
    return out, lse
