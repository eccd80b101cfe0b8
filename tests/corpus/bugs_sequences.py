"""Public bugs of packed, paged, merged and rotated attention, re-created in plain torch."""

from __future__ import annotations

import torch
from public_bugs import NARROW, WRITES, bug
from tiled_attention import LN2, Steps, attention
from wrong_attention_parts import merge, turn
from wrong_attention_sequences import packed, paged, spans, varlen

IDENTITY = "test_a_state_without_keys_is_the_identity"
CHUNKS = "test_prefill_in_chunks_and_decode_equal_one_call"


@bug("attention_varlen", "test_other_sequences_have_no_influence", **NARROW)
def segments_accepted_and_ignored(q, k, v, cu_seqlens_q, cu_seqlens_k, *, mended, **options):
    """AI-Hypercomputer/maxtext#4476: sequences packed into one row attend to each other."""
    if mended:
        return varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, **options)
    everything = [
        (a, b, k, v, d - (b - a))
        for (a, b), (_, d) in zip(spans(cu_seqlens_q), spans(cu_seqlens_k), strict=True)
    ]
    return packed(q, everything, v.shape[-1], **options)


@bug("attention_varlen", WRITES, **NARROW)
def slack_rows_never_written(q, k, v, cu_seqlens_q, cu_seqlens_k, *, mended, **options):
    """fla-org/flash-linear-attention#892: a buffer is longer than its sequences together, and a sum
    over all of its rows meets what was left there.
    """
    out, lse = varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, **options)
    kept, end = torch.empty_like(out), len(out) if mended else int(cu_seqlens_q[-1])
    kept[:end] = out[:end]
    return kept, lse


@bug("attention_varlen", WRITES, empty_rows=(True,), **NARROW)
def sequences_without_keys_left_out(q, k, v, cu_seqlens_q, cu_seqlens_k, *, mended, **options):
    """Dao-AILab/flash-attention#1155: loops and early exits assume a tile of keys at least."""
    out, lse = varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, **options)
    kept = torch.empty_like(out)
    for (a, b), (c, d) in zip(spans(cu_seqlens_q), spans(cu_seqlens_k), strict=True):
        if d > c or mended:
            kept[a:b] = out[a:b]
    kept[int(cu_seqlens_q[-1]) :] = out[int(cu_seqlens_q[-1]) :]
    return kept, lse


@bug("attention_paged", CHUNKS, causal=(True,), offsets=("default",), **NARROW)
def chunks_anchored_top_left(*args, q_offset=None, mended, **options):
    """NVIDIA/cutlass#2336: the causal mask of a chunk starts at its first key, so cached keys are
    hidden; the verifier shared the mask's code.
    """
    if q_offset is None and not mended:
        q_offset = torch.zeros(len(args[5]), dtype=torch.int32)
    return paged(*args, q_offset=q_offset, **options)


@bug("attention_paged", causal=(True,), hidden=("nan",), offsets=("default",), **NARROW)
def values_behind_the_last_key_read(*args, mended, **options):
    """vllm-project/vllm#936: the last page is read whole and scores behind the sequence are masked,
    but values that nobody has written yet are multiplied with 0.
    """

    def length(own, queries, page):
        return own if mended else -(-own // page) * page

    return paged(*args, length=length, steps=Steps(unseen_are_zero=mended), **options)


@bug("merge_attention")
def lses_of_base_2_taken_for_base_e(outs, lses, *, mended):
    """vllm-project/vllm#28840: what the states were weighed with is of another base than they are;
    equal splits hide it.
    """
    return merge(outs, lses) if mended else merge(outs, lses, log2=LN2)


@bug("merge_attention", IDENTITY, empty=("all",))
def two_states_without_keys(outs, lses, *, mended):
    """vllm-project/vllm#39148: -inf minus -inf. One of two twin kernels had the guard."""
    return merge(outs, lses, guarded=mended)


@bug(
    "rope_attention",
    "test_a_sequence_is_the_same_alone_and_in_a_batch",
    positions=("per_batch",),
    batch=(2, 3),
    **NARROW,
)
def one_position_vector_for_a_padded_batch(
    q, k, v, cos, sin, q_positions, k_positions, *, interleaved, mended, **options
):
    """unslothai/unsloth#4078: sequences padded on the left all take the first one's positions."""
    places = [
        p if p.ndim == 1 or not len(p) or mended else p[0] for p in (q_positions, k_positions)
    ]
    q, k = (turn(x, cos, sin, p, interleaved) for x, p in zip((q, k), places, strict=True))
    return attention(q, k, v, **options)


@bug("rope_attention", **NARROW)
def cached_keys_rotated_again(
    q, k, v, cos, sin, q_positions, k_positions, *, interleaved, mended, **options
):
    """NVIDIA/TensorRT-LLM#16378: keys that another stage has rotated are rotated with the cache."""
    q, k = (turn(x, cos, sin, p, interleaved) for x, p in ((q, q_positions), (k, k_positions)))
    return attention(q, k if mended else turn(k, cos, sin, k_positions, interleaved), v, **options)
