"""Rotary position embedding of q and k in one Triton launch.

q and k are widened to float32 (float64 stays float64); product, product and sum are each rounded
once, and the result once to the output's dtype. No product is fused into a sum (see
`tightrope.launch`), so that an interpreter and a GPU agree bit for bit.

One kernel has two builds: a general one, for any strides, and an aligned one, for rows of 16-byte
words. Nothing is tuned at run time: `config` is a pure function of the case.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from tightrope import Arithmetic, implements
from tightrope.launch import aligned, capability, check_plain, launcher
from tightrope.rope_tiles import Config, config
from tightrope.validate import check_disjoint, check_rope, check_rows

# Strides and lengths of the aligned build count 8 elements: 16 bytes of a 16-bit type, and the
# factor in the kernel shows the compiler that the addresses are multiples.
UNIT = 8


@triton.jit(do_not_specialize=[*range(32)])  # everything but the constants: lengths cost no build
def rope_kernel(
    q, k, q_out, k_out, cos, sin, positions,
    tokens: tl.int64, rows: tl.int64, half: tl.int64, tail: tl.int64,
    num_heads: tl.int32, num_kv_heads: tl.int32, q_blocks: tl.int32, blocks: tl.int32,
    q_token: tl.int64, q_head: tl.int64, q_dim: tl.int64,
    k_token: tl.int64, k_head: tl.int64, k_dim: tl.int64,
    q_out_token: tl.int64, q_out_head: tl.int64, q_out_dim: tl.int64,
    k_out_token: tl.int64, k_out_head: tl.int64, k_out_dim: tl.int64,
    cos_row: tl.int64, cos_dim: tl.int64, sin_row: tl.int64, sin_dim: tl.int64, position: tl.int64,
    INTERLEAVED: tl.constexpr, UNIT: tl.constexpr, BLOCK_PAIRS: tl.constexpr,
    BLOCK_TAIL: tl.constexpr, BLOCK_TOKENS: tl.constexpr, BLOCK_HEADS: tl.constexpr,
    TRANSPOSED: tl.constexpr = False,
):  # fmt: skip
    # Layout: INTERLEAVED False, half-split (GPT-NeoX, Llama): feature i with i + rotary_dim/2;
    #         INTERLEAVED True, adjacent pairs (GPT-J, RoFormer): feature 2i with 2i + 1.
    #         Features from rotary_dim on are copied (BLOCK_TAIL > 0) or, in place, left alone.
    # A program owns a tile of tokens x heads of q, or of k; heads vary fastest over programs, so
    # that those which share rows of the table run side by side.
    token_block = tl.program_id(0) // blocks
    block = tl.program_id(0) % blocks
    if block < q_blocks:
        x, y, heads = q, q_out, num_heads
        x_token, x_head, x_dim = q_token, q_head, q_dim
        y_token, y_head, y_dim = q_out_token, q_out_head, q_out_dim
    else:
        block -= q_blocks
        x, y, heads = k, k_out, num_kv_heads
        x_token, x_head, x_dim = k_token, k_head, k_dim
        y_token, y_head, y_dim = k_out_token, k_out_head, k_out_dim
    if UNIT > 1:  # rows of words: as a constant, the stride 1 makes neighbours one wide access
        x_dim, y_dim, cos_dim, sin_dim = 1, 1, 1, 1
    half = half * UNIT
    out = y.dtype.element_ty
    wide = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32

    # Offsets are 64-bit before anything is multiplied: a tensor may reach past 2^31 elements.
    token = token_block.to(tl.int64) * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    head = block.to(tl.int64) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    pair = tl.arange(0, BLOCK_PAIRS)
    x_start = x + token[:, None, None] * (x_token * UNIT) + head[None, :, None] * (x_head * UNIT)
    y_start = y + token[:, None, None] * (y_token * UNIT) + head[None, :, None] * (y_head * UNIT)
    if UNIT > 1:
        x_start = tl.multiple_of(x_start, (16, 16, 16))
        y_start = tl.multiple_of(y_start, (16, 16, 16))
    mine = (token < tokens)[:, None, None] & (head < heads)[None, :, None]
    # Features are asked for before positions, so that they travel while the table is looked up.
    if INTERLEAVED:
        both = tl.arange(0, 2 * BLOCK_PAIRS)[None, None, :]
        keep = mine & (both < 2 * half)
        xs = tl.load(x_start + both * x_dim, mask=keep, other=0.0)
        a, b = tl.split(tl.reshape(xs, (BLOCK_TOKENS, BLOCK_HEADS, BLOCK_PAIRS, 2)))
    else:
        first = pair[None, None, :]
        keep = mine & (first < half)
        a = tl.load(x_start + first * x_dim, mask=keep, other=0.0)
        b = tl.load(x_start + (first + half) * x_dim, mask=keep, other=0.0)
    row = tl.load(positions + token * position, mask=token < tokens, other=0).to(tl.int64)
    # A row outside the table is never read; its token is turned by the angle 0.
    known = (token < tokens) & (row >= 0) & (row < rows)
    in_table = known[:, None] & (pair < half)[None, :]
    c_start = cos + row[:, None] * (cos_row * UNIT)
    s_start = sin + row[:, None] * (sin_row * UNIT)
    if UNIT > 1:
        c_start = tl.multiple_of(c_start, (16, 16))
        s_start = tl.multiple_of(s_start, (16, 16))
    # Rows of the table serve several programs and should stay in cache; results go past it (.cs).
    c_at, s_at = c_start + pair[None, :] * cos_dim, s_start + pair[None, :] * sin_dim
    c = tl.load(c_at, mask=in_table, other=1.0, eviction_policy="evict_last")
    s = tl.load(s_at, mask=in_table, other=0.0, eviction_policy="evict_last")
    c, s = c.to(wide)[:, None, :], s.to(wide)[:, None, :]
    a, b = a.to(wide), b.to(wide)
    # A pair is a point of the plane, turned by its angle (RoFormer, arXiv 2104.09864, eq. 34).
    if TRANSPOSED:
        a_out = (a * c + b * s).to(out)
        b_out = (b * c - a * s).to(out)
    else:
        a_out = (a * c - b * s).to(out)
        b_out = (b * c + a * s).to(out)
    if INTERLEAVED:
        tl.store(y_start + both * y_dim, tl.interleave(a_out, b_out), keep, cache_modifier=".cs")
    else:
        tl.store(y_start + first * y_dim, a_out, keep, cache_modifier=".cs")
        tl.store(y_start + (first + half) * y_dim, b_out, keep, cache_modifier=".cs")
    if BLOCK_TAIL > 0:
        rest = tl.arange(0, BLOCK_TAIL)[None, None, :]
        keep = mine & (rest < tail * UNIT)
        rest = rest + 2 * half
        kept = tl.load(x_start + rest * x_dim, mask=keep, other=0.0)
        tl.store(y_start + rest * y_dim, kept.to(out), mask=keep)


class _Plan(NamedTuple):
    """What one set of metadata decides: the launch of each build, ready but for the addresses."""

    general: Callable[..., None]
    aligned: Callable[..., None] | None
    on_cpu: bool
    rows: int
    disjoint: set[int]  # distances from q to k at which they, in place, are known to be disjoint


_PLANS: dict[Any, _Plan] = {}


def _plan(
    arguments: Any, interleaved: bool, inplace: bool, blocks: Config | None, transposed: bool
) -> _Plan:
    q, k, cos, sin, positions = arguments
    tokens, num_heads, head_dim = q.shape
    num_kv_heads, half = k.shape[1], cos.shape[1]
    tail = 0 if inplace else head_dim - 2 * half
    block_pairs = max(16, triton.next_power_of_2(half))
    block_tail = max(64, triton.next_power_of_2(tail)) if tail else 0
    width, gpu = max(2 * block_pairs, block_tail), capability(rope_kernel, q.device)
    tile = Config(*(blocks or config(tokens, num_heads, width, q.element_size(), gpu)))
    # Outputs are contiguous; meta tensors give their strides without memory.
    q_out, k_out = (q, k) if inplace else (x.new_empty(x.shape, device="meta") for x in (q, k))
    tensors = (q, k, q_out, k_out, cos, sin)
    q_blocks, k_blocks = (triton.cdiv(n, tile.BLOCK_HEADS) for n in (num_heads, num_kv_heads))
    programs = triton.cdiv(tokens, tile.BLOCK_TOKENS) * (q_blocks + k_blocks)

    def build(unit: int) -> Callable[..., None]:
        lengths = (tokens, cos.shape[0], half // unit, tail // unit)
        counts = (num_heads, num_kv_heads, q_blocks, q_blocks + k_blocks)
        strides = [(*(s // unit for s in t.stride()[:-1]), t.stride(-1)) for t in tensors]
        constants = {
            "INTERLEAVED": interleaved, "UNIT": unit, "BLOCK_PAIRS": block_pairs,
            "BLOCK_TAIL": block_tail, "BLOCK_TOKENS": tile.BLOCK_TOKENS,
            "BLOCK_HEADS": tile.BLOCK_HEADS, "TRANSPOSED": transposed,
        }  # fmt: skip
        numbers = (*lengths, *counts, *chain(*strides), positions.stride(0))
        return launcher(rope_kernel, q.device, programs, numbers, constants, tile.num_warps)

    words = build(UNIT) if aligned(UNIT, tensors, (half, tail)) else None
    return _Plan(build(1), words, positions.device.type == "cpu", cos.shape[0], set())


def _check_disjoint(plan: _Plan, q: torch.Tensor, k: torch.Tensor) -> None:
    """Refuse to rotate overlapping q and k in place; remembers, since decoding asks every time."""
    distance = k.data_ptr() - q.data_ptr()
    if distance not in plan.disjoint:
        check_disjoint("q and k", q, k)
        if len(plan.disjoint) >= 64:
            plan.disjoint.clear()
        plan.disjoint.add(distance)


def _promise(case: Any, device: Any) -> Arithmetic:
    wide = "float64" if case.dtype == "float64" else "float32"
    return Arithmetic(table="given", product=wide, sum=wide, contraction="none")


@implements("rope", name="triton", arithmetic=_promise)
def rope(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor,
    *, interleaved: bool, inplace: bool = False, out_dtype: torch.dtype | None = None,
    validate: bool = False, blocks: Config | None = None, transposed: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Rotate q (tokens, num_heads, head_dim) and k (tokens, num_kv_heads, head_dim); any strides.

    cos, sin: (rows, rotary_dim/2), float32, float16 or bfloat16, or float64 with float64 q.
    positions: (tokens,) int32 or int64 row numbers. A position outside the table raises IndexError
    if positions is on the CPU or with validate=True (which waits for the GPU); else nothing outside
    is read and its token is turned by the angle 0. out_dtype=torch.float32 shows the result before
    its last rounding. inplace returns q and k themselves. blocks: a tile other than `config`'s.
    transposed: by each pair's transposed matrix, as gradients turn (contract `rope_backward`).
    No gradients: refused where autograd would record. A CUDA graph may record a call that ran once
    before; for torch.compile, wrap in torch.compiler.disable. Raises as `validate.check_rope`.
    """
    arguments = (q, k, cos, sin, positions)
    try:
        metadata = [(t.shape, t.stride(), t.dtype, t.device) for t in arguments]
        kinds = type(interleaved), type(inplace)  # 1 == True, but is no option
        key = (*metadata, interleaved, inplace, *kinds, out_dtype, blocks, transposed)
        plan = _PLANS.get(key)
    except (AttributeError, TypeError, RuntimeError):  # no plain tensors or options: checked below
        plan = None
    if plan is None:
        check_rope(*arguments, interleaved=interleaved, inplace=inplace, out_dtype=out_dtype)
        if len(_PLANS) >= 4096:
            _PLANS.clear()
        plan = _PLANS[key] = _plan(arguments, interleaved, inplace, blocks, transposed)
    check_plain(*arguments)
    if validate or plan.on_cpu:
        check_rows(positions, plan.rows)
    if inplace:
        _check_disjoint(plan, q, k)
        q_out, k_out = q, k
    else:
        q_out = torch.empty(q.shape, dtype=out_dtype or q.dtype, device=q.device)
        k_out = torch.empty(k.shape, dtype=out_dtype or q.dtype, device=q.device)
    launch = plan.general
    if plan.aligned is not None:
        addresses = q.data_ptr() | k.data_ptr() | q_out.data_ptr() | k_out.data_ptr()
        if not (addresses | cos.data_ptr() | sin.data_ptr()) % 16:
            launch = plan.aligned
    launch(q, k, q_out, k_out, cos, sin, positions)
    if inplace:
        torch.autograd.graph.increment_version(arguments[:2])
    return q_out, k_out
