"""Public bugs of rotary embeddings and their gradients, re-created in plain torch."""

from __future__ import annotations

import torch
from public_bugs import NARROW, STRIDED, WRITES, bug
from tiled_attention import with_strides
from wrong_rope import OUT_OF_PLACE, rows, turn

PLAIN = {**NARROW, **OUT_OF_PLACE}
HALF_SPLIT = {"interleaved": (False,), **PLAIN}


def rotated(q, k, cos, sin, positions, interleaved):
    c, s = rows(cos, sin, positions)
    return turn(q, c, s, interleaved), turn(k, c, s, interleaved)


def packed_as(x):
    """The strides that a contiguous tensor of this shape has."""
    return torch.empty(x.shape, device="meta").stride()


@bug("rope", "test_rotation_scales_each_pair_by_the_norm_of_its_table_entry", **PLAIN)
def sin_from_the_padded_half(q, k, cos, sin, positions, *, interleaved, mended):
    """vllm-project/vllm-ascend#12723: in rows of cos and sin side by side, sin is looked for at
    half of the next power of two of rotary_dim. Right for 64 and 128, and so for every usual test.
    """
    half = cos.shape[1]
    start = half if mended else 1 << (half - 1).bit_length()
    both = torch.cat([cos, sin], 1).flatten()
    at = positions.long()[:, None] * 2 * half + torch.arange(half)
    c, s = (both[(at + first) % len(both)][:, None].float() for first in (0, start))
    return turn(q, c, s, interleaved), turn(k, c, s, interleaved)


@bug("rope", **PLAIN)
def rotated_by_two_stages(q, k, cos, sin, positions, *, interleaved, mended):
    """NVIDIA/TensorRT-LLM#16378: YaRN was missing in a list of kinds, so q and k are rotated in
    Python and once more before the cache. Relative positions still hold.
    """
    out = rotated(q, k, cos, sin, positions, interleaved)
    return out if mended else rotated(*out, cos, sin, positions, interleaved)


@bug("rope", "test_each_head_is_rotated_alone", **HALF_SPLIT)
def second_halves_of_the_other_tensor(q, k, cos, sin, positions, *, interleaved, mended):
    """hpcaitech/ColossalAI#6428: two of four stores of one kernel take the other tensor's values.
    Its test compared without asserting.
    """
    outs = rotated(q, k, cos, sin, positions, interleaved)
    if not mended:
        half, heads = cos.shape[1], k.shape[1]
        a, b = (y[:, :heads, half : 2 * half] for y in outs)
        kept = a.clone()
        a.copy_(b)
        b.copy_(kept)
    return outs


@bug("rope", "test_features_past_rotary_dim_are_untouched", head_dim=range(4, 513, 2), **PLAIN)
def whole_heads_rotated(q, k, cos, sin, positions, *, interleaved, mended):
    """vllm-project/vllm#43676: the kernel's rotary_dim has a default, head_dim, and nobody passes
    another: rows of the table are read beyond their end.
    """
    half = cos.shape[1] if mended else q.shape[-1] // 2
    at = positions.long()[:, None] * cos.shape[1] + torch.arange(half)
    c, s = (t.flatten()[at % t.numel()][:, None].float() for t in (cos, sin))
    return turn(q, c, s, interleaved), turn(k, c, s, interleaved)


@bug("rope", WRITES, num_kv_heads=(1,), layout_k=("contiguous",), **PLAIN)
def caller_s_view_rotated(q, k, cos, sin, positions, *, interleaved, mended):
    """linkedin/Liger-Kernel#342: .contiguous() copies nothing where an axis has one element, and
    the kernel rotates in place what the caller still holds.
    """
    outs = rotated(q, k, cos, sin, positions, interleaved)
    copies = (x.transpose(0, 1).contiguous().transpose(0, 1) for x in (q, k))
    copies = [x.clone() for x in (q, k)] if mended else list(copies)
    return [x.copy_(y) for x, y in zip(copies, outs, strict=True)]


@bug("rope", "test_layouts_agree_after_a_permutation", **PLAIN)
def always_half_split(q, k, cos, sin, positions, *, interleaved, mended):
    """vllm-project/vllm#49290: the kernel for several axes ignores the flag of the layout."""
    return rotated(q, k, cos, sin, positions, interleaved and mended)


@bug("rope", STRIDED, **PLAIN)
def addresses_from_shapes(q, k, cos, sin, positions, *, interleaved, mended):
    """vllm-project/vllm#17091: slices q[..., nope:] are read as if they were contiguous."""
    if not mended:
        q, k = (with_strides(x, packed_as(x)) for x in (q, k))
    return rotated(q, k, cos, sin, positions, interleaved)


@bug("rope", STRIDED, **PLAIN)
def head_stride_of_q_for_k(q, k, cos, sin, positions, *, interleaved, mended):
    """sgl-project/sglang#20559: one stride between heads is passed, that of q."""
    strides = (k.stride(0), q.stride(1), k.stride(2))
    k = k if mended else with_strides(k, strides)
    return rotated(q, k, cos, sin, positions, interleaved)


@bug("rope", position_dtype=("int64",), **PLAIN)
def positions_of_half_the_width(q, k, cos, sin, positions, *, interleaved, mended):
    """flashinfer-ai/flashinfer#1129: int64 positions are read through a pointer to int32."""
    read = positions.contiguous().view(torch.int32)[: len(positions)]
    return rotated(q, k, cos, sin, positions if mended else read, interleaved)


@bug("rope", rotary_dim=range(34, 257, 2), **HALF_SPLIT)
def partners_within_one_warp(q, k, cos, sin, positions, *, interleaved, mended):
    """deepspeedai/DeepSpeed#2448: the other feature of a pair is fetched from a lane of the same
    warp, so no partner is farther than 32 features.
    """
    c, s = rows(cos, sin, positions)
    outs, half = rotated(q, k, cos, sin, positions, interleaved), c.shape[-1]
    lane = torch.arange(half)
    partner = lane + half if mended else lane // 32 * 32 + (lane + half) % 32
    for y, x in zip(outs, (q, k), strict=True):
        y[..., :half] = (x[..., :half].float() * c - x[..., partner].float() * s).to(x.dtype)
    return outs


@bug("rope", "test_any_split_of_the_sequence_gives_the_same_output", **PLAIN)
def one_position_for_a_window(q, k, cos, sin, positions, *, interleaved, mended):
    """jundot/omlx#2363: tokens that are verified together all take the first one's position."""
    if len(q) and len(q) <= 4 and not mended:
        positions = positions[:1].expand(len(q))
    return rotated(q, k, cos, sin, positions, interleaved)


@bug("rope", WRITES, **PLAIN)
def positions_advanced_before_use(q, k, cos, sin, positions, *, interleaved, mended):
    """sgl-project/sglang#25015: positions.add_(1) runs before the forward pass, on a tensor that
    others hold too.
    """
    if not mended:
        positions.add_(1)
    return rotated(q, k, cos, sin, positions.long() % len(cos), interleaved)


@bug("rope", WRITES, table_dtype=("float32",), **PLAIN)
def table_narrowed_in_place(q, k, cos, sin, positions, *, interleaved, mended):
    """sgl-project/sglang#33117: the first forward pass casts the shared table to the model's dtype,
    for everybody and for good.
    """
    if not mended:
        cos, sin = (t.copy_(t.to(q.dtype)) for t in (cos, sin))
    return rotated(q, k, cos, sin, positions, interleaved)


@bug("rope_backward", WRITES, **PLAIN)
def upstream_gradient_overwritten(dq, dk, cos, sin, positions, *, interleaved, mended):
    """unslothai/unsloth#5001: gradients are rotated where they stand, though another node of the
    graph may still read them; a store by a kernel does not bump the version that would tell.
    """
    outs = rotated(dq, dk, cos, -sin, positions, interleaved)
    return outs if mended else [x.copy_(y) for x, y in zip((dq, dk), outs, strict=True)]


@bug("rope_backward", "test_the_gradient_is_the_rotation_s_adjoint", **HALF_SPLIT)
def rotated_after_the_product(dq, dk, cos, sin, positions, *, interleaved, mended):
    """PaddlePaddle/Paddle#74716: rotate(dy) * sin for rotate(dy * sin), equal only where both
    features of a pair have one sine. Here the second feature's is the next pair's.
    """
    c, s = rows(cos, sin, positions)
    outs, half = rotated(dq, dk, cos, -sin, positions, interleaved), c.shape[-1]
    other = s if mended else s.roll(1, -1)
    for y, x in zip(outs, (dq, dk), strict=True):
        a, b = x[..., :half].float(), x[..., half : 2 * half].float()
        y[..., half : 2 * half] = (b * c - a * other).to(x.dtype)
    return outs
