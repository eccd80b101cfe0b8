"""Packed, paged, merged and rotated attention with one mistake each, and their right twins.

`tightrope run --impl=tests/wrong_attention_sequences.py` must reject all but the right ones;
tests/test_wrong_kernels.py demands it.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from tiled_attention import BLOCK, DTYPES, LOWEST, attention, with_strides

from tightrope import implements


def wrong(contract, name, **limits):
    return implements(contract, name=name, **{"dtype": DTYPES, **limits})


def spans(ends):
    ends = ends.tolist()
    return list(pairwise(ends))


def packed(q, sequences, width, *, q_offset=None, out_dtype=None, **options):
    """Attention of packed queries; sequences: (first row, last, k, v, default offset) of each, k
    and v (seqlen_k, num_kv_heads, features). Rows of no sequence are empty.
    """
    tokens, num_heads = q.shape[:2]
    out = torch.zeros(tokens, num_heads, width, dtype=out_dtype or q.dtype, device=q.device)
    lse = torch.full((num_heads, tokens), LOWEST, device=q.device)
    for s, (first, last, k, v, offset) in enumerate(sequences):
        offset = offset if q_offset is None else int(q_offset[s])
        heads = [x.transpose(0, 1)[None] for x in (q[first:last], k, v)]
        mine = attention(*heads, q_offset=offset, out_dtype=out_dtype, **options)
        out[first:last], lse[:, first:last] = mine[0][0].transpose(0, 1), mine[1][0]
    return out, lse


def varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, *, reach=None, top_left=False, **options):
    """reach: the last key that is read, of (first, last, rows); last if None."""
    sequences = []
    for (a, b), (c, d) in zip(spans(cu_seqlens_q), spans(cu_seqlens_k), strict=True):
        end = d if reach is None else reach(c, d, len(k))
        sequences.append((a, b, k[c:end], v[c:end], 0 if top_left else (d - c) - (b - a)))
    return packed(q, sequences, v.shape[-1], **options)


@implements("attention_varlen", name="right", dtype=(*DTYPES, "float32"))
def _(q, k, v, cu_seqlens_q, cu_seqlens_k, **options):
    return varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, **options)


@wrong("attention_varlen", "last_tile_reads_the_next_sequence")
def _(q, k, v, cu_seqlens_q, cu_seqlens_k, **options):
    def reach(first, last, rows):
        return min(first + -(-(last - first) // BLOCK) * BLOCK, rows)

    return varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, reach=reach, **options)


@wrong("attention_varlen", "last_key_of_a_sequence_dropped")
def _(q, k, v, cu_seqlens_q, cu_seqlens_k, **options):
    def reach(first, last, rows):
        return max(first, last - 1)

    return varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, reach=reach, **options)


@wrong("attention_varlen", "top_left_by_default")
def _(q, k, v, cu_seqlens_q, cu_seqlens_k, **options):
    return varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, top_left=True, **options)


@wrong("attention_varlen", "keys_start_where_queries_do")
def _(q, k, v, cu_seqlens_q, cu_seqlens_k, **options):
    lengths = cu_seqlens_k.diff()
    starts = cu_seqlens_q[:-1].clamp(max=len(k))
    sequences = [
        (a, b, k[s : s + n], v[s : s + n], n - (b - a))
        for (a, b), s, n in zip(spans(cu_seqlens_q), starts.tolist(), lengths.tolist(), strict=True)
    ]
    return packed(q, sequences, v.shape[-1], **options)


@wrong("attention_varlen", "lse_kept_tokens_first")
def _(q, k, v, cu_seqlens_q, cu_seqlens_k, **options):
    out, lse = varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, **options)
    return out, lse.T.reshape(lse.shape)


@wrong("attention_varlen", "rows_of_no_sequence_unwritten")
def _(q, k, v, cu_seqlens_q, cu_seqlens_k, **options):
    out, lse = varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, **options)
    kept, end = torch.empty_like(out), int(cu_seqlens_q[-1])
    kept[:end] = out[:end]
    return kept, lse


def paged(q, k_cache, v_cache, cu_seqlens_q, block_table, cache_seqlens, *, length=None, **options):
    """length: keys that are read of a sequence with so many, some of its queries and pages."""
    page, sequences = k_cache.shape[1], []
    for s, (a, b) in enumerate(spans(cu_seqlens_q)):
        own = int(cache_seqlens[s])
        n = own if length is None else length(own, b - a, page)
        pages = block_table[s, : -(-n // page)].long().clamp(0, max(len(k_cache) - 1, 0))
        k, v = (cache[pages].flatten(0, 1)[:n] for cache in (k_cache, v_cache))
        sequences.append((a, b, k, v, own - (b - a)))
    return packed(q, sequences, v_cache.shape[-1], **options)


@implements("attention_paged", name="right", dtype=(*DTYPES, "float32"))
def _(q, k_cache, v_cache, cu_seqlens_q, block_table, cache_seqlens, **options):
    return paged(q, k_cache, v_cache, cu_seqlens_q, block_table, cache_seqlens, **options)


@wrong("attention_paged", "v_pages_with_the_strides_of_k")
def _(q, k_cache, v_cache, cu_seqlens_q, block_table, cache_seqlens, **options):
    v_cache = with_strides(v_cache, k_cache.stride())
    return paged(q, k_cache, v_cache, cu_seqlens_q, block_table, cache_seqlens, **options)


@wrong("attention_paged", "stale_table_tail_followed")
def _(q, k_cache, v_cache, cu_seqlens_q, block_table, cache_seqlens, **options):
    longest = int(cache_seqlens.max()) if len(cache_seqlens) else 0
    most = block_table.shape[1] * k_cache.shape[1]

    def length(own, queries, page):
        return min(longest + page, most)

    args = (q, k_cache, v_cache, cu_seqlens_q, block_table, cache_seqlens)
    return paged(*args, length=length, **options)


@wrong("attention_paged", "whole_last_page_read")
def _(q, k_cache, v_cache, cu_seqlens_q, block_table, cache_seqlens, **options):
    args = (q, k_cache, v_cache, cu_seqlens_q, block_table, cache_seqlens)
    return paged(*args, length=lambda own, queries, page: -(-own // page) * page, **options)


@wrong("attention_paged", "new_tokens_not_counted")
def _(q, k_cache, v_cache, cu_seqlens_q, block_table, cache_seqlens, **options):
    args = (q, k_cache, v_cache, cu_seqlens_q, block_table, cache_seqlens)
    return paged(*args, length=lambda own, queries, page: max(own - queries, 0), **options)


@wrong("attention_paged", "pages_in_storage_order")
def _(q, k_cache, v_cache, cu_seqlens_q, block_table, cache_seqlens, **options):
    order = torch.arange(block_table.shape[1], device=q.device).expand(block_table.shape)
    return paged(q, k_cache, v_cache, cu_seqlens_q, order, cache_seqlens, **options)


@wrong("attention_paged", "first_sequences_pages_for_all")
def _(q, k_cache, v_cache, cu_seqlens_q, block_table, cache_seqlens, **options):
    table = block_table[:1].expand(block_table.shape)
    return paged(q, k_cache, v_cache, cu_seqlens_q, table, cache_seqlens, **options)
