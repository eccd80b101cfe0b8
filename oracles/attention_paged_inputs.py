"""Tensors of an `attention_paged` case, as NumPy arrays in their own dtypes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from tightrope.formats import Array, stored
from tightrope.oracles.attention_varlen_inputs import (
    cumulated,
    keywords,
    member,
    offsets,
    poison,
    unseen,
)
from tightrope.oracles.attention_varlen_problems import Span

if TYPE_CHECKING:
    from tightrope.oracles.attention_paged_cases import AttentionPagedCase

TAIL = {"zero": 0, "negative": -1, "huge": 2**31 - 1}
POOL = 4099  # numbers that unused slots repeat; a prime


def inputs(case: AttentionPagedCase) -> dict[str, Array]:
    """q (tokens_q, num_heads, head_dim), k_cache (pages, page_size, num_kv_heads, head_dim),
    v_cache (..., head_dim_v) in `dtype`; cu_seqlens_q (sequences + 1,), block_table (sequences,
    columns), cache_seqlens (sequences,) int32; where they are on, sink (num_heads,) in
    `bias_dtype` and q_offset (sequences,) int32. Pages come in random order.
    """
    rng = np.random.default_rng(case.seed)
    parts = [
        member(case, n, m, rng) for n, m in zip(case.seqlens_q, case.seqlens_k, strict=True)
    ]  # fmt: skip
    chosen, table = offsets(case, rng), _table(case, rng)
    q = np.concatenate([*(q for q, _, _ in parts), member(case, case.spare, 0, rng)[0]])
    if case.layout_q == "expanded":
        q[:] = q[:, :1]  # stored once for all heads
    used = len(q) - case.spare
    poison(q, np.arange(len(q)) >= used, case.hidden, rng)
    pages = int(_counts(case).sum()) + case.spare_pages
    found = {}
    for name, width, keys in (
        ("k_cache", case.head_dim, [k for _, k, _ in parts]),
        ("v_cache", case.head_dim_v, [v for _, _, v in parts]),
    ):
        found[name] = _cache(case, (pages, case.page_size, case.num_kv_heads, width), rng)
        poison(found[name], np.ones((pages, case.page_size), bool), case.hidden, rng)
        fill(found[name], table, keys, unseen(case, chosen), case.hidden)
    if case.layout_v == "view of k":
        found["v_cache"] = np.ascontiguousarray(found["k_cache"][..., : case.head_dim_v])
    lengths = np.array(case.seqlens_k, np.int32)
    ends = cumulated(case.seqlens_q)
    rest = {"cu_seqlens_q": ends, "block_table": table, "cache_seqlens": lengths}
    return {"q": q, **found, **rest, **keywords(case, chosen, rng)}


def _counts(case: AttentionPagedCase) -> Array:
    """Pages of each sequence."""
    return -(-np.array(case.seqlens_k, np.int64) // case.page_size)


def _table(case: AttentionPagedCase, rng: np.random.Generator) -> Array:
    counts = _counts(case)
    columns = int(counts.max(initial=0)) + case.tail_length
    table = np.full((len(counts), columns), TAIL[case.tail], np.int32)
    order = rng.permutation(int(counts.sum()) + case.spare_pages)
    first = 0
    for row, count in zip(table, counts.tolist(), strict=True):
        row[:count] = order[first : first + count]
        first += count
    return table


def _cache(
    case: AttentionPagedCase, shape: tuple[int, ...], rng: np.random.Generator
) -> Array:  # fmt: skip
    """Other finite numbers, of the size of real ones, where nothing is hidden."""
    return np.resize(stored(3.0 * rng.standard_normal(POOL), case.dtype), shape)


def fill(
    cache: Array, table: Array, keys: list[Array], nobody: list[Array], hidden: str
) -> None:  # fmt: skip
    """Store every sequence's keys; those that nobody sees stay hidden, unless "finite"."""
    size = cache.shape[1]
    for row, x, out in zip(table, keys, nobody, strict=True):
        j = np.arange(len(x)) if hidden == "finite" else np.flatnonzero(~out)
        cache[row[j // size], j % size] = x[j]


def layouts(case: AttentionPagedCase) -> dict[str, str]:
    view = "view of k_cache" if case.layout_v == "view of k" else case.layout_v
    caches = {"k_cache": case.layout_k, "v_cache": view}
    return {"q": case.layout_q, **caches, "block_table": case.layout_table}


def stated(case: AttentionPagedCase, inputs: Mapping[str, Array], **changes: Array) -> list[Span]:
    """The sequences of a call. changes: other k_cache, v_cache, block_table, cache_seqlens or
    q_offset; pages that are not there are the last ones.
    """
    given = {**inputs, **changes}
    k, v, table = given["k_cache"], given["v_cache"], given["block_table"]
    ends, lengths = given["cu_seqlens_q"].tolist(), given["cache_seqlens"].tolist()
    found = []
    for s, length in enumerate(lengths):
        j = np.arange(max(0, min(length, table.shape[1] * k.shape[1])))
        pages = np.clip(table[s, j // k.shape[1]], 0, max(len(k) - 1, 0))
        at = (pages, j % k.shape[1])
        default = length - ends[s + 1] + ends[s]
        offset = int(given["q_offset"][s]) if "q_offset" in given else default
        found.append(Span(slice(ends[s], ends[s + 1]), k[at], v[at], offset))
    return found
