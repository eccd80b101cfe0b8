"""From a call of the contract `attention_varlen_backward` to its two launches.

What the pass that owns rows and the one that owns keys differ in is decided here, so that the
kernel knows one of them only by a flag.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from tightrope import Arithmetic, attention_tiles
from tightrope.attention_backward_tiles import Config, Tile, config
from tightrope.attention_call import broadcast_strides
from tightrope.attention_tiles import heads_together
from tightrope.implementation import bundled
from tightrope.launch import capability, check_plain
from tightrope.sequence_call import Options, Plan, make_plan, planned, strides
from tightrope.validate import check_device, check_tensor, dtype_name, refuse
from tightrope.validate_attention_backward import check_tiles
from tightrope.validate_sequences import check_starts_values, check_varlen

Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Call(NamedTuple):
    """A call's tensors in the contract's order; (tokens, heads, width), lse (heads, tokens)."""

    dout: Any
    q: Any
    k: Any
    v: Any
    out: Any
    lse: Any
    cu_seqlens_q: Any
    cu_seqlens_k: Any

    @property
    def group(self) -> int:
        return int(self.q.shape[1] // self.k.shape[1])

    @property
    def sequences(self) -> int:
        return int(self.cu_seqlens_q.shape[0] - 1)

    def passed(self, keys: bool) -> tuple[Any, ...]:
        """own_1, own_2, walked_1, walked_2 of the pass that owns keys, or rows."""
        rows, others = (self.q, self.dout), (self.k, self.v)
        return (*others, *rows) if keys else (*rows, *others)

    def starts(self, keys: bool) -> tuple[Any, Any]:
        """cu_seqlens of what the pass owns, and of what it walks over."""
        both = (self.cu_seqlens_q, self.cu_seqlens_k)
        return both[::-1] if keys else both


def check(call: Call, options: Options, validate: Any) -> None:
    """Refuse what the contract excludes, from metadata alone.

    Raises: TypeError (types, dtypes), ValueError (shapes, devices, values of options).
    """
    dout, q, k, v, out, lse, *starts = call
    check_varlen(q, k, v, *starts, **options._asdict(), validate=validate)
    (tokens, heads, _), width = q.shape, v.shape[2]
    rows = ("tokens_q", "num_heads", "head_dim_v"), (tokens, heads, width), (dtype_name(q),)
    sums = ("num_heads", "tokens_q"), (heads, tokens), ("float32",)
    named = {"dout": (dout, *rows), "out": (out, *rows), "lse": (lse, *sums)}
    for name, (x, axes, shape, dtypes) in named.items():
        check_tensor(name, x, axes, dtypes)
        check_device(name, x, q.device)
        if tuple(x.shape) != shape:
            refuse(f"{name}.shape", f"{shape}, rows of q and features of v", tuple(x.shape))


def promise(case: Any, device: Any) -> Arithmetic:
    """What the kernel promises for a case: what that of `attention_backward` does."""
    promised: Any = bundled("attention_backward", "triton").arithmetic
    found: Arithmetic = promised(case, device)
    return found


def _together(call: Call, keys: bool) -> int:
    """Owned heads that run side by side, so that what they walk over stays in cache."""
    own, _, walked_1, walked_2 = call.passed(keys)
    size = (walked_1.shape[2] + walked_2.shape[2]) * walked_1.element_size()
    size *= walked_1.shape[0] // max(1, call.sequences)
    each, size = (1, size * call.group) if keys else (call.group, size)
    return heads_together(own.shape[1], each, size)


def _numbers(call: Call, options: Options, keys: bool, tiles: int, unit: int) -> tuple[float, ...]:
    """Numbers of a pass in the kernel's order; what a key sees mirrors what a row sees."""
    own, _, walked, _ = tensors = call.passed(keys)
    share, repeat = (1, call.group) if keys else (call.group, 1)
    width, scale = call.q.shape[2], options.softmax_scale
    left, right, *factors = options.numbers(width)
    left, right = (right, left) if keys else (left, right)
    return (
        *(call.sequences, own.shape[0], walked.shape[0], width // unit, call.v.shape[2] // unit),
        *(own.shape[1], share, repeat, tiles, _together(call, keys), options.q_offset is not None),
        *strides((*tensors, call.out), unit), *call.lse.stride(),
        *broadcast_strides(options.q_offset, 1), *(x.stride(0) for x in call.starts(keys)),
        *(left, right, *factors, width**-0.5 if scale is None else float(scale)),
    )  # fmt: skip


def _pass(kernel: Any, call: Call, options: Options, keys: bool, tile: Tile, rest: Any) -> Plan:
    own, widths = call.passed(keys)[0], (call.q.shape[2], call.v.shape[2])
    tiles = own.shape[0] // tile.OWN + call.sequences + 1

    def numbers(unit: int) -> tuple[float, ...]:
        return _numbers(call, options, keys, tiles, unit)

    return make_plan(
        kernel, call[:5], widths, tiles * own.shape[1] if own.shape[0] else 0, numbers,
        {"SOFTCAP": options.softcap is not None, "KEYS": keys},
        attention_tiles.Config(*tile), rest,
    )  # fmt: skip


def _plan(kernel: Any, call: Call, options: Options, blocks: Config | None) -> Plan:
    """The plan of the pass that owns rows; its rest is that of the pass that owns keys."""
    gpu, widths = capability(kernel, call.q.device), (call.q.shape[2], call.v.shape[2])
    chosen = blocks or config(max(widths), call.q.element_size(), gpu)
    tiles = Config(*(Tile(*tile) for tile in chosen))
    keys = _pass(kernel, call, options, True, tiles.keys, None)
    return _pass(kernel, call, options, False, tiles.queries, keys)


def differentiate(
    kernel: Any, tensors: tuple[Any, ...], options: Options, validate: bool, blocks: Config | None
) -> Gradients:
    """Check, plan once for a set of metadata, and launch: dq, dk and dv.

    tensors: the contract's, in order. blocks: tiles other than the table's. Raises as `check`,
    check_tiles and, for values on the CPU or with validate, check_starts_values.
    """
    call = Call(*tensors)

    def checked() -> None:
        check(call, options, validate)
        check_tiles(blocks)

    key = ("attention_varlen_backward", *call, *options, validate, blocks)
    plan = planned(key, checked, lambda: _plan(kernel, call, options, blocks))
    _, q, k, v, out, lse, *starts = call
    check_plain(*call, options.q_offset)
    if validate or plan.on_cpu:
        for name, given, x in zip(("cu_seqlens_q", "cu_seqlens_k"), starts, (q, k), strict=True):
            check_starts_values(name, given, x.shape[0])
    dtype = options.out_dtype or q.dtype
    dq, dk, dv = (torch.empty(x.shape, dtype=dtype, device=x.device) for x in (q, k, v))
    shape = (q.shape[1], q.shape[0])
    sums, shifts = (torch.empty(shape, dtype=torch.float32, device=q.device) for _ in range(2))
    rest = (lse, sums, shifts, plan.no_offsets if options.q_offset is None else options.q_offset)
    plan.launch_all((*call.passed(False), out, dq, dq), *rest, *call.starts(False))
    plan.rest.launch_all((*call.passed(True), out, dk, dv), *rest, *call.starts(True))
    return dq, dk, dv
