"""From a call of the contract `attention` to the launch of its Hopper kernel, in one launch.

All that metadata decides is decided once and kept; a call copies templates of TMA descriptors and
gives them addresses. The Hopper kernel of PoPE attention is launched by the same means.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, NamedTuple

import torch
import triton
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tightrope import Arithmetic, compiles
from tightrope.attention_call import Options, factors
from tightrope.attention_hopper_tile import Tile, check_hopper, check_tile, tile_for
from tightrope.attention_tiles import heads_together
from tightrope.launch import capability, check_plain
from tightrope.sequence_call import Plan, arithmetic, planned
from tightrope.validate import dtype_name, refuse

Tensors = tuple[Any, ...]
ON_HOPPER = (
    os.environ.get("TIGHTROPE_DEVICE") != "cpu"
    and torch.cuda.is_available()
    and torch.cuda.get_device_capability() == (9, 0)
)
MISSING = None if ON_HOPPER else "runs on a GPU of capability 9.0 alone"
FORMATS = {"float16": gl.float16, "bfloat16": gl.bfloat16}


def promise(case: Any, device: Any) -> Arithmetic:
    """What the kernel promises for a case of `attention`."""
    heads = case.batch * case.num_heads
    tile = tile_for(heads, case.seqlen_q, case.head_dim, case.head_dim_v)
    return arithmetic(case, device, tile.BLOCK_N)


def descriptor(
    x: torch.Tensor, shape: tuple[int, ...], rows: int, planes: int = 1, parts: int = 1
) -> TensorDescriptor:
    """Of tiles (planes, 1, rows, features / parts) of a tensor cut to `shape`; past it, zeros.

    Strides of axes of one element, which may be any number, become one that TMA takes.
    """
    strides = [s if n > 1 else 8 for n, s in zip(x.shape[:3], x.stride()[:3], strict=True)]
    block, dtype = [planes, 1, rows, shape[3] // parts], FORMATS[dtype_name(x)]
    layout = gl.NVMMASharedLayout.get_default_for(block, dtype)
    return TensorDescriptor(x, list(shape), [*strides, 1], block, layout)


def tiled_launcher(
    kernel: Any, device: torch.device, programs: int, boxes: Sequence[tuple[Any, ...]],
    rest: tuple[Any, ...], registers: int,
) -> Callable[..., None]:  # fmt: skip
    """launch(plain, tiled): addresses, and tensors behind descriptors, in the kernel's order.

    As `tightrope.launch.launcher`, whose kernels take no descriptors. boxes: `descriptor`'s
    arguments beside each of `tiled`.
    """
    compiles.watch()
    compiled: Callable[..., None] | None = None
    templates: list[TensorDescriptor] = []
    options = {"num_warps": 4, "maxnreg": registers, "enable_fp_fusion": False, "launch_pdl": True}

    def launch(plain: Tensors, tiled: Tensors) -> None:
        nonlocal compiled
        if device.index != torch.cuda.current_device():
            with torch.cuda.device(device):
                return launch(plain, tiled)
        if compiled is None:
            templates[:] = [descriptor(x, *box) for x, box in zip(tiled, boxes, strict=True)]
            made = kernel[programs, 1, 1](*plain, *templates, *rest, **options)
            compiled = made[programs, 1, 1]
            return
        pointed = [copy(t) for t in templates]  # 1 us each; a checked one takes 10
        for to, x in zip(pointed, tiled, strict=True):
            to.base = x
        compiled(*[t.data_ptr() for t in plain], *pointed, *rest)

    return launch


class Sizes(NamedTuple):
    """Numbers of a launch; but for `programs` in the kernel's order.

    seqlen_k: keys that some row sees; the rest may hold anything, and is not read. offset: row i
    sees keys up to i + offset. together: heads that run side by side. turns: tasks of a program.
    """

    programs: int
    seqlen_q: int
    seqlen_k: int
    num_heads: int
    group: int
    heads: int
    row_tiles: int
    together: int
    turns: int
    offset: int


def sizes(
    q: Any, k: Any, causal: bool, q_offset: int, tile: Any, processors: int, key_bytes: int
) -> Sizes:
    """Who does what, by metadata of q and k; pure.

    processors: of the GPU. key_bytes: of a key and its value, as programs read them.
    """
    (batch, num_heads, seqlen_q, _), (_, num_kv_heads, seqlen_k, _) = q.shape, k.shape
    offset = max(-seqlen_q, min(q_offset, seqlen_k)) if causal else seqlen_k
    visible = max(0, min(seqlen_k, seqlen_q + offset))
    heads, group = batch * num_heads, num_heads // num_kv_heads
    row_tiles = triton.cdiv(seqlen_q, tile.BLOCK_M)
    fits = heads_together(heads, group, key_bytes * seqlen_k)
    together = min(heads, fits, max(1, tile.HEADS // group) * group)
    turns = max(1, triton.cdiv(heads * row_tiles, processors * tile.RESIDENT))
    return Sizes(
        triton.cdiv(heads * row_tiles, turns), seqlen_q, visible, num_heads, group, heads,
        row_tiles, max(1, together), turns, offset,
    )  # fmt: skip


def processors_of(kernel: Any, device: torch.device) -> int:
    """Of a Hopper GPU. Raises ValueError for another device."""
    if capability(kernel, device) != (9, 0):
        refuse("device", "a GPU of capability (9, 0)", device)
    return torch.cuda.get_device_properties(device).multi_processor_count


def plan_of(device: torch.device, rest: Any) -> Plan:
    """A plan whose `rest` does the work; None: there is none, and `general` writes what is due."""
    nothing = torch.empty(0, dtype=torch.float32, device=device)
    return Plan(_nothing_seen, None, nothing, nothing, False, rest)


def _nothing_seen(out: torch.Tensor, lse: torch.Tensor) -> None:
    out.zero_()
    lse.fill_(-torch.inf)


def check_addresses(tensors: Tensors) -> None:
    """Refuse q, k and v that do not begin where TMA can (ValueError)."""
    q, k, v = tensors
    if (q.data_ptr() | k.data_ptr() | v.data_ptr()) % 16:
        refuse("addresses of q, k and v", "multiples of 16", [x.data_ptr() for x in tensors])


def outputs(
    q: torch.Tensor, head_dim_v: int, out_dtype: torch.dtype | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse, allocated."""
    out = torch.empty((*q.shape[:3], head_dim_v), dtype=out_dtype or q.dtype, device=q.device)
    return out, torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)


def _plan(kernel: Any, tensors: Tensors, options: Options, given: Tile | None) -> Plan:
    q, k, v = tensors
    (batch, num_heads, seqlen_q, head_dim), head_dim_v = q.shape, v.shape[3]
    processors = processors_of(kernel, q.device)
    tile = given or tile_for(batch * num_heads, seqlen_q, head_dim, head_dim_v)
    key_bytes = 2 * (head_dim + head_dim_v)
    found = sizes(q, k, options.causal, options.q_offset, tile, processors, key_bytes)
    if not found.programs or not found.seqlen_k:
        return plan_of(q.device, None)
    steps = [s // 8 for s in q.stride()[:3]]
    scale = factors(options.softmax_scale, None, head_dim)[0]
    cut = (*k.shape[:2], found.seqlen_k)
    boxes = (
        (tuple(q.shape), tile.BLOCK_M // tile.CONSUMERS),
        ((*cut, head_dim), tile.BLOCK_N),
        ((*cut, head_dim_v), tile.BLOCK_N),
    )
    rest = (*found[1:], *steps, scale, head_dim, head_dim_v, tile)
    launch = tiled_launcher(kernel, q.device, found.programs, boxes, rest, tile.registers)
    return plan_of(q.device, launch)


def attend(
    kernel: Any, tensors: Tensors, options: Options, validate: bool, tile: Tile | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Check, plan once for a set of metadata, and launch: out and lse.

    tensors: q, k, v. Raises as check_hopper, check_tile; ValueError for a device other than a
    Hopper GPU, or q, k, v not at multiples of 16 bytes.
    """
    q, _, v = tensors
    plan = planned(
        (kernel, *tensors, *options, validate, tile),
        lambda: _check(tensors, options, validate, tile),
        lambda: _plan(kernel, tensors, options, tile),
    )
    check_plain(*tensors)
    check_addresses(tensors)
    out, lse = outputs(q, v.shape[3], options.out_dtype)
    if plan.rest is None:
        plan.general(out, lse)
    else:
        plan.rest((q, out, lse), tensors)
    return out, lse


def _check(tensors: Tensors, options: Options, validate: Any, tile: Any) -> None:
    q, k, v = tensors
    check_hopper(q, k, v, options._asdict(), validate)
    check_tile(tile, q.shape[3], v.shape[3])
