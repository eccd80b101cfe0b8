"""From a call of the contract `pope_attention` to the launches of its Hopper kernel.

Two, with delta three: float16 tables of all angles (`tightrope.pope_angles_call`), cos and sin of
delta, attention. All that metadata decides is decided once and kept; a call copies templates of TMA
descriptors and gives them addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tightrope import Arithmetic, compiles
from tightrope.attention_tiles import heads_together
from tightrope.launch import capability, check_plain, launcher
from tightrope.pope_angles_call import Tables, places, tables, written
from tightrope.pope_hopper_tile import Tile, check_hopper, check_tile, tile_for
from tightrope.sequence_call import Options, Plan, arithmetic, planned
from tightrope.softplus import ABSOLUTE, ULPS
from tightrope.turns import ANGLE_ERROR, ROUNDED_ONCE, cos_sin, inverse_turn, phase
from tightrope.validate import dtype_name, refuse
from tightrope.validate_pope_attention import check_finite_values, check_frequency_values

Tensors = tuple[Any, ...]
FORMATS = {"float16": gl.float16, "bfloat16": gl.bfloat16}


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


def descriptor(
    x: torch.Tensor, shape: tuple[int, ...], rows: int, planes: int = 1
) -> TensorDescriptor:
    """Of tiles (planes, 1, rows, features) of a tensor cut to `shape`; past it, zeros are read.

    Strides of axes of one element, which may be any number, become one that TMA takes.
    """
    strides = [s if n > 1 else 8 for n, s in zip(x.shape[:3], x.stride()[:3], strict=True)]
    block, dtype = [planes, 1, rows, shape[3]], FORMATS[dtype_name(x)]
    layout = gl.NVMMASharedLayout.get_default_for(block, dtype)
    return TensorDescriptor(x, list(shape), [*strides, 1], block, layout)


def _launcher(
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


def sizes(q: Any, k: Any, causal: bool, q_offset: int, tile: Tile, processors: int) -> Sizes:
    """Who does what, by metadata of q and k; pure. processors: of the GPU."""
    (batch, num_heads, seqlen_q, head_dim), (_, num_kv_heads, seqlen_k, _) = q.shape, k.shape
    offset = max(-seqlen_q, min(q_offset, seqlen_k)) if causal else seqlen_k
    visible = max(0, min(seqlen_k, seqlen_q + offset))
    heads, group = batch * num_heads, num_heads // num_kv_heads
    row_tiles = triton.cdiv(seqlen_q, tile.BLOCK_M)
    fits = heads_together(heads, group, 4 * head_dim * seqlen_k)
    together = min(heads, fits, max(1, tile.HEADS // group) * group)
    turns = max(1, triton.cdiv(heads * row_tiles, processors * tile.RESIDENT))
    return Sizes(
        triton.cdiv(heads * row_tiles, turns), seqlen_q, visible, num_heads, group, heads,
        row_tiles, max(1, together), turns, offset,
    )  # fmt: skip


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
    if capability(kernel, device) != (9, 0):
        refuse("device", "a GPU of capability (9, 0)", device)
    tile = given or tile_for(batch * num_heads, seqlen_q, head_dim, dtype_name(q))
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    programs, *numbers = found = sizes(q, k, options.causal, options.q_offset, tile, processors)
    nothing = torch.empty(0, dtype=torch.float32, device=device)
    if not programs or not found.seqlen_k:
        return Plan(_nothing_seen, None, nothing, nothing, False, None)
    q_sequences, k_sequences = places(q_positions)[0], places(k_positions)[0]
    heads = 1 if delta is None else delta.shape[0]
    numbers += [int(k_sequences > 1), num_heads // heads, heads * head_dim]
    numbers += [s // 8 for s in q.stride()[:3]]
    numbers += [seqlen_q * head_dim * (q_sequences > 1), q_sequences * seqlen_q * head_dim]
    kv, cut = (batch, k.shape[1], found.seqlen_k, head_dim), (2, k_sequences, found.seqlen_k)
    launch = _launcher(
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
    return Plan(_nothing_seen, None, nothing, nothing, False, work)


def _delta_launcher(delta: torch.Tensor) -> Callable[..., None]:
    heads, width = delta.shape
    numbers = (heads, *delta.stride())
    return launcher(delta_kernel, delta.device, heads, numbers, {"WIDTH": width}, 1)


def _nothing_seen(out: torch.Tensor, lse: torch.Tensor) -> None:
    out.zero_()
    lse.fill_(-torch.inf)


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
    if (q.data_ptr() | k.data_ptr() | v.data_ptr()) % 16:
        refuse("addresses of q, k and v", "multiples of 16", [x.data_ptr() for x in (q, k, v)])
    if validate:
        check_frequency_values(inv_freq)
        check_finite_values("delta", delta)
    out = torch.empty(q.shape, dtype=options.out_dtype or q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
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
