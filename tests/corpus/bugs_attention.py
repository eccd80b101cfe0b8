"""Public bugs of attention's forward pass, re-created in plain torch."""

from __future__ import annotations

import torch
from public_bugs import NARROW, ORACLE, STRIDED, WRITES, bug
from tiled_attention import (
    BLOCK,
    LOG2E,
    LOWEST,
    Steps,
    attention,
    finish,
    single,
    with_strides,
)

HIDDEN, SEEN = "test_a_hidden_key_has_no_influence", "test_a_visible_key_has_influence"
MERGES, ORDER = "test_any_split_of_the_keys_merges_by_lse", "test_the_order_of_keys_is_irrelevant"
EMPTY = {"bias": ("mask",), "empty_rows": (True,), **NARROW}
LEFT = (0, 1, 2, 3, 7)  # windows that hide keys of small cases
CAP = 5.0


def stepped(mended, *args, steps, **options):
    """Attention with the mistakes of `steps`, or none."""
    return attention(*args, steps=None if mended else steps, **options)


FAR = {"data": ("far_groups",), "causal": (True,), "softcap": (None,), "sink": (False,)}


@bug("attention", **FAR, **NARROW)
def maximum_of_0_kept(*args, mended, **options):
    """Dao-AILab/flash-attention#2082: where a tile is all masked, 0 stands in for the maximum so
    that nothing is NaN, and stays: later logits far below 0 all underflow.
    """
    return stepped(mended, *args, steps=Steps(first=0.0), **options)


@bug("attention", "test_masked_keys_are_as_if_absent", **EMPTY)
def rows_without_a_key_are_nan(*args, mended, **options):
    """pytorch/pytorch#103749: softmax of nothing but -inf."""

    def unguarded(acc, l, m, late):
        return acc / l[..., None], finish(acc, l, m, m)[1]

    return stepped(mended, *args, steps=Steps(finish=unguarded), **options)


@bug("attention", MERGES, **EMPTY)
def lse_of_no_key_is_plus_infinity(*args, mended, **options):
    """Dao-AILab/flash-attention#978: +inf marks rows without keys, and takes all the weight once
    states are merged.
    """
    out, lse = attention(*args, **options)
    return out, lse if mended else torch.where(lse == LOWEST, -LOWEST, lse)


@bug("attention", MERGES, **NARROW)
def lse_of_base_2(*args, mended, **options):
    """sgl-project/sglang#40903: the kernel returns log2 of the sum, the merge exponentiates with
    e. Either is right alone, and equal splits hide it.
    """
    out, lse = attention(*args, **options)
    return out, lse if mended else lse * LOG2E


@bug("attention", ORDER, **NARROW)
def inverse_of_the_rescale(*args, mended, **options):
    """Dao-AILab/flash-attention#991: the formula printed in the FlashAttention-2 paper rescales the
    accumulator by the inverse of exp(m_old - m_new).
    """

    def inverse(alpha):
        return torch.where(alpha > 0, 1 / alpha, 0)

    return stepped(mended, *args, steps=Steps(alpha_of_acc=inverse), **options)


@bug("attention", hidden=("nan",), window_left=LEFT, **NARROW)
def nan_of_unused_values(*args, mended, **options):
    """Dao-AILab/flash-attention#1745: scores of keys that nobody sees are masked, their values are
    not, and 0 * NaN is NaN.
    """
    return stepped(mended, *args, steps=Steps(unseen_are_zero=False), **options)


@bug("attention", STRIDED, **NARROW)
def first_tile_with_v_s_strides(q, k, v, *, mended, **options):
    """flagos-ai/FlagAttention#46: the first pointers to k are made with v's strides; the steps
    after it are right.
    """
    if not mended:
        k = torch.cat([with_strides(k, v.stride())[:, :, :BLOCK], k[:, :, BLOCK:]], 2)
    return attention(q, k, v, **options)


@bug("attention", WRITES, **NARROW)
def out_stored_with_q_s_strides(q, k, v, *, mended, **options):
    """ezrakoreen/pope-memory-optimal@ab2648ac: out is addressed with the strides of q; where q is a
    slice of packed q, k and v, half of it stays unwritten.
    """
    out, lse = attention(q, k, v, **options)
    if mended or out.shape != q.shape or not out.numel():
        return out, lse
    place = sum(
        (torch.arange(n) * t).reshape(-1, *[1] * (3 - axis))
        for axis, (n, t) in enumerate(zip(q.shape, q.stride(), strict=True))
    )
    stored, inside = torch.empty_like(out), place < out.numel()
    stored.view(-1)[place[inside]] = out[inside]
    return stored, lse


@bug("attention", SEEN, window_left=(None,), window_right=(None,), **NARROW)
def no_window_taken_for_minus_1(*args, causal=False, window_size=(None, None), mended, **options):
    """NVIDIA/TransformerEngine#3532: one library's "unbounded" is the other's bound of -1: no key
    is left, and out is 0.
    """
    left, right = window_size
    if causal and left is None and not mended:
        left = -1
    return attention(*args, causal=causal, window_size=(left, right), **options)


@bug("attention", softcap=(1.0, CAP, 20.0), **NARROW)
def scores_times_tanh(*args, mended, **options):
    """Dao-AILab/flash-attention#2402: s * tanh(s / cap) for cap * tanh(s / cap)."""

    def logits(s, scale, softcap, bias):
        z = s * single(scale)
        z = z * torch.tanh(z / softcap)
        return z if bias is None else z + bias

    return stepped(mended, *args, steps=Steps(logits=logits), **options)


@bug("attention", HIDDEN, softcap=(CAP,), causal=(True,), **NARROW)
def mask_before_the_softcap(*args, mended, **options):
    """onnx/onnx#7865: tanh comes after the mask and turns -inf into -cap, so that masked keys weigh
    something. The specification said so, and its reference agreed.
    """
    return stepped(mended, *args, steps=Steps(hidden=-CAP * LOG2E), **options)


@bug("attention", softcap=(1.0, CAP), **NARROW)
def softcap_never_passed_on(*args, softcap=None, mended, **options):
    """vllm-project/vllm-metal#666: the parameter ends in the wrapper."""
    return attention(*args, softcap=softcap if mended else None, **options)


@bug("attention", HIDDEN, causal=(True,), window_left=LEFT, window_right=(None,), **NARROW)
def window_on_both_sides(*args, causal=False, window_size=(None, None), mended, **options):
    """huggingface/transformers#39408: (w, w) where (w - 1, 0) is meant."""
    left, right = window_size
    if left is not None and not mended:
        causal, right = False, left
    return attention(*args, causal=causal, window_size=(left, right), **options)


@bug("attention", HIDDEN, seqlen_q=(1,), window_left=LEFT, **NARROW)
def window_forgotten_in_decode(q, *args, window_size=(None, None), mended, **options):
    """karpathy/nanochat#452: the fast path for one query takes no mask at all."""
    if q.shape[2] == 1 and not mended:
        window_size = (None, window_size[1])
    return attention(q, *args, window_size=window_size, **options)


@bug("attention", softmax_scale=(None,), **NARROW)
def scale_multiplied_for_divided(q, *args, softmax_scale=None, mended, **options):
    """AI-Hypercomputer/maxtext#1370: queries are divided by the scale that they should be
    multiplied with.
    """
    scale = q.shape[-1] ** (-0.5 if mended else 0.5)
    return attention(q, *args, softmax_scale=scale, **options)


@bug("attention", "test_a_sequence_is_the_same_alone_and_in_a_batch", batch=(2, 3), **NARROW)
def batch_stride_of_one_token(q, *args, mended, **options):
    """flashinfer-ai/flashinfer#3800: q's batch stride is that of a token, unless offsets are
    passed, which the wrapper always does.
    """
    q = q if mended else with_strides(q, (q.stride(2), *q.stride()[1:]))
    return attention(q, *args, **options)


@bug("attention", ORACLE, dtype=("float32",))
def products_in_tf32(q, k, v, *, mended, **options):
    """triton-lang/triton#1821: tl.dot of float32 keeps 10 bits unless told otherwise."""
    if not mended:
        q, k = ((x.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32) for x in (q, k))
    return attention(q, k, v, **options)
