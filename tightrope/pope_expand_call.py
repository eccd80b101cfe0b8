"""From a call of `pope_attention` to an expansion of q and k, then to the bundled `attention`."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import triton

from tightrope import Arithmetic
from tightrope.attention_hopper_tile import Tile, check_tile, in_words, takes
from tightrope.attention_tiles import Config
from tightrope.implementation import Implementation, bundled, registered
from tightrope.launch import capability, check_plain
from tightrope.pope_angles_call import places
from tightrope.pope_attention_call import Tensors, check, check_values
from tightrope.pope_hopper_points import attend_to_points
from tightrope.sequence_call import Options, Plan, make_plan, planned, strides
from tightrope.softplus import stages
from tightrope.turns import ANGLE_ERROR, ROUNDED_ONCE, inverse_turn
from tightrope.validate import dtype_name, refuse

FEATURES = 1024  # of a head that a program expands at a time, 8 a thread: 16 bytes
PROGRAMS = 512  # that make a GPU busy while memory is what they wait for
WIDEST = 256  # features of a head of `attention`
SHIFTED = 2.0**-48
"""What cos and sin are off by, in float64, where delta has turned them."""


def for_hopper() -> Any:
    """The bundled attention in Gluon; None but on a GPU of capability 9.0."""
    module = importlib.import_module("tightrope.impls.attention_hopper").__name__
    return next(iter(registered(module)), None)


def attention_for(dtype: str, width: int, head_dim_v: int, **options: Any) -> Implementation:
    """Who attends to points of this width: Hopper's kernel where it can.

    options: window_size, softcap, sink and q_offset of the call.
    """
    hopper = for_hopper()
    if hopper is None or not takes(dtype, width, head_dim_v, options, options["q_offset"]):
        hopper = bundled("attention", "triton")
    found: Implementation = hopper
    return found


def promise(case: Any, device: Any) -> Arithmetic:
    """What the two launches promise for a case: attention's, of longer rows, and the points'."""
    wide = replace(case, head_dim=case.head_dim + case.rotary_dim)
    own = case.num_heads != case.num_kv_heads and case.delta == "heads"
    plain = case.delta == "none"
    attention = attention_for(
        case.dtype, wide.head_dim, case.head_dim_v,
        window_size=(case.window_left, case.window_right), softcap=case.softcap,
        sink=case.sink or None, q_offset=case.q_offset if case.offsets == "int" else None,
    )  # fmt: skip
    return Arithmetic(
        **attention.promise(wide, device), **stages("precise"),
        angle="exact", angle_error=ANGLE_ERROR if plain else 2 * SHIFTED,
        trig_ulp=ROUNDED_ONCE if plain else 0.5 + 2.0**-20, table="float32",
        phase="query_angle" if own else "key", features="input", feature_order="joined",
    )  # fmt: skip


def pieces(planes: int, tiles: int) -> tuple[int, int]:
    """(each, pieces): `planes` in so many pieces, each a program's for a tile of tokens; pure.

    tiles: of tokens. As few pieces, each of which finds the same angles, as make PROGRAMS.
    """
    parts = max(1, min(planes, PROGRAMS // max(tiles, 1)))
    each = max(1, triton.cdiv(planes, parts))
    return each, max(1, triton.cdiv(planes, each))


class Rest(NamedTuple):
    """What a plan keeps beside the expansion.

    shared: the one for q and k at the same positions; None if metadata excludes it. by_tma: whether
    `attention` reads tiles so. table: the shape of q's cos and sin, where a kernel expands queries
    itself; None: points are made of them.
    """

    inverse_turn: torch.Tensor
    attention: Implementation
    by_tma: bool
    table: tuple[int, int, int] | None
    shared: Plan | None


def _attention(tensors: Tensors, options: Options, blocks: Any) -> Implementation:
    """Who attends; `blocks` may ask for one. ValueError for a Tile where Hopper's cannot."""
    q, v, polar = tensors[0], tensors[2], tensors[3].shape[0]
    given = {n: getattr(options, n) for n in ("window_size", "softcap", "sink", "q_offset")}
    found = attention_for(dtype_name(q), q.shape[3] + polar, v.shape[3], **given)
    if blocks is not None and not isinstance(blocks, Tile):
        found = bundled("attention", "triton")
    if isinstance(blocks, Tile) and found.name != "hopper":
        refuse("blocks", "None or a Config: Hopper's kernel does not take this call", blocks)
    return found


def _shape(x: Any, positions: Any, block: int, heads: int, one: bool) -> tuple[int, ...]:
    """A tensor's numbers of a launch, from seqlen to blocks: as `expand_kernel` has them.

    heads: those that its programs expand. one: a program takes all of its planes.
    """
    batch, own, seqlen = x.shape[:3]
    sequences = max(1, places(positions)[0])
    copies, blocks = batch // sequences, triton.cdiv(seqlen, block)
    planes = copies * heads
    each, parts = (planes, 1) if one else pieces(planes, sequences * blocks)
    return seqlen, own, copies, each, parts, blocks


def _plan(
    kernel: Any, tensors: Tensors, attention: Implementation, shared: bool = False
) -> Plan:  # fmt: skip
    """The launch that expands: FEATURES of a head at a time, or few programs.

    shared: q_positions are k_positions.
    """
    q, k, v, inv_freq, delta, *positions = tensors
    head_dim, polar = q.shape[3], inv_freq.shape[0]
    plain, by_tma = head_dim - polar, attention.name == "hopper"
    one = capability(kernel, q.device) is None
    block = max(1, (2**14 if one else FEATURES) // max(16, triton.next_power_of_2(polar)))
    of_keys = delta is not None and delta.shape[0] == k.shape[1]
    of_queries = delta is not None and not of_keys
    sequences = max(1, places(positions[0])[0])
    table = (2, sequences * q.shape[2], polar)
    tabulated = by_tma and not plain and not of_queries and polar == v.shape[3] and in_words(q)
    of_q = _shape(q, positions[0], block, q.shape[1] * (not tabulated) + k.shape[1] * shared, one)
    of_k = _shape(k, positions[1], block, k.shape[1], one)
    programs = [
        max(1, places(p)[0]) * blocks * parts if len(x) and x.shape[1] else 0
        for x, p, (*_, parts, blocks) in zip((q, k), positions, (of_q, of_k), strict=True)
    ]

    def numbers(unit: int) -> tuple[float, ...]:
        return (
            *(programs[0], int(shared), polar // unit, plain // unit, inv_freq.stride(0)),
            *of_q, table[1] * polar, *places(positions[0])[2:], *of_k, *places(positions[1])[2:],
            *strides((q, k), unit), -of_queries, int(of_keys),
            *((0, 0) if delta is None else delta.stride()),
        )  # fmt: skip

    both = None
    if not shared and len({(p.dtype, *places(p)) for p in positions}) == 1:
        both = _plan(kernel, tensors, attention, True)
    tile = Config(block, 16, max(1, FEATURES // 256), 1)
    return make_plan(
        kernel, (q, k), (polar, plain or polar), programs[0] + (0 if shared else programs[1]),
        numbers, {"PLAIN": plain > 0, "AHEAD": by_tma and not one}, tile,
        Rest(inverse_turn(q.device), attention, by_tma, table if tabulated else None, both),
    )  # fmt: skip


def _check(tensors: Tensors, options: Options, validate: Any, blocks: Any) -> None:
    check(tensors, options, validate, None if isinstance(blocks, Tile) else blocks)
    width = tensors[0].shape[3] + tensors[3].shape[0]
    if width > WIDEST:
        refuse("head_dim + rotary_dim", f"at most {WIDEST}, the widest row of attention", width)
    if isinstance(blocks, Tile):
        check_tile(blocks, width, tensors[2].shape[3])


def attend(
    kernel: Any, tensors: Tensors, options: Options, validate: bool, blocks: Config | Tile | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Check, plan once for a set of metadata, expand, and attend: out and lse.

    tensors: the contract's, in order. Raises as `pope_attention_call.attend`; ValueError for a
    head_dim + rotary_dim above 256.
    """
    q, k, v, inv_freq, delta, *positions = tensors
    plan = planned(
        (kernel, *tensors, *options, validate, blocks),
        lambda: _check(tensors, options, validate, blocks),
        lambda: _plan(kernel, tensors, _attention(tensors, options, blocks)),
    )
    check_plain(*tensors, options.sink, options.q_offset)
    if validate or plan.on_cpu:
        check_values(inv_freq, delta)
    rest, width = plan.rest, q.shape[3] + inv_freq.shape[0]
    if rest.by_tma and (v.data_ptr() % 16 or not in_words(v)):
        v = v.clone(memory_format=torch.contiguous_format)
    if rest.table and q.data_ptr() % 16:
        q = q.clone()
    k_points = torch.empty((*k.shape[:3], width), dtype=k.dtype, device=k.device)
    made = (rest.table, torch.float32) if rest.table else ((*q.shape[:3], width), q.dtype)
    q_points = torch.empty(made[0], dtype=made[1], device=q.device)
    if rest.shared and positions[0].data_ptr() == positions[1].data_ptr():
        plan = rest.shared
    points = q, k, q_points, k_points
    phases = plan.no_sink if delta is None else delta
    plan.launch_all(points, *positions, inv_freq, rest.inverse_turn, phases)
    if rest.table:
        tile = blocks if isinstance(blocks, Tile) else None
        return attend_to_points(q, q_points, k_points, v, positions[0], options, tile)
    scale = q.shape[3] ** -0.5 if options.softmax_scale is None else options.softmax_scale
    given = options._replace(softmax_scale=scale)._asdict()
    given["tile" if rest.by_tma else "blocks"] = blocks
    found: tuple[torch.Tensor, torch.Tensor] = rest.attention.fn(q_points, k_points, v, **given)
    return found
