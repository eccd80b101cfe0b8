"""Tensors for small calls of the packed and paged kernels, and the same sequences one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from attention_calls import HOME, normal

Tensors = dict[str, torch.Tensor]
Lengths = Sequence[tuple[int, int]]

# Queries and keys of each sequence: fewer, more, as many; none of either, of both.
LENGTHS = ((3, 20), (0, 5), (17, 0), (1, 40), (0, 0), (16, 16), (33, 17))
NAN = float("nan")


def int32(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device=HOME)


def starts(lengths: Sequence[int]) -> torch.Tensor:
    """(sequences + 1,) int32, from 0 on."""
    return int32(0, *torch.tensor([*lengths], dtype=torch.int64).cumsum(0).tolist())


def packed(
    lengths: Lengths = LENGTHS, spare: int = 5, num_heads: int = 4, num_kv_heads: int = 2,
    head_dim: int = 16, head_dim_v: int = 24, dtype: str = "float16",
) -> Tensors:  # fmt: skip
    """Arguments of attention_varlen; `spare` rows of q, and of NaN in k and v, follow the last."""
    rows, keys = (sum(n) for n in zip(*lengths, strict=True)) if lengths else (0, 0)
    k = normal(keys + spare, num_kv_heads, head_dim, dtype=dtype, seed=1)
    v = normal(keys + spare, num_kv_heads, head_dim_v, dtype=dtype, seed=2)
    k[keys:], v[keys:] = NAN, NAN
    return {
        "q": normal(rows + spare, num_heads, head_dim, dtype=dtype),
        "k": k,
        "v": v,
        "cu_seqlens_q": starts([n for n, _ in lengths]),
        "cu_seqlens_k": starts([m for _, m in lengths]),
    }


def paged(tensors: Tensors, page_size: int, seed: int = 0, tail: int = 2**31 - 1) -> Tensors:
    """The same sequences for attention_paged: pages in random order, all other slots NaN.

    tail: what the block table holds past the pages of a sequence.
    """
    ends = tensors["cu_seqlens_k"].tolist()
    lengths = [b - a for a, b in pairwise(ends)]
    counts = [-(-n // page_size) for n in lengths]
    order = torch.randperm(sum(counts) + 2, generator=torch.Generator().manual_seed(seed)).tolist()
    shape = len(order), page_size
    caches = [
        torch.full((*shape, *x.shape[1:]), NAN, dtype=x.dtype, device=HOME)
        for x in (tensors["k"], tensors["v"])
    ]
    table = torch.full((len(lengths), max([0, *counts]) + 2), tail, dtype=torch.int32)
    for i, count in enumerate(counts):
        for j in range(count):
            table[i, j] = page = order.pop()
            first = ends[i] + j * page_size
            for cache, x in zip(caches, (tensors["k"], tensors["v"]), strict=True):
                held = x[first : min(first + page_size, ends[i + 1])]
                cache[page, : len(held)] = held
    return {
        "q": tensors["q"],
        "k_cache": caches[0],
        "v_cache": caches[1],
        "cu_seqlens_q": tensors["cu_seqlens_q"],
        "block_table": table.to(HOME),
        "cache_seqlens": int32(*lengths),
    }


def one_by_one(attention: Any, tensors: Tensors, options: dict[str, Any]) -> Iterator[Any]:
    """(rows, what `attention` gives) of each sequence; q_offset is bottom-right, or a list."""
    ends = [tensors[name].tolist() for name in ("cu_seqlens_q", "cu_seqlens_k")]
    given = options.get("q_offset")
    for i in range(len(ends[0]) - 1):
        rows, keys = (slice(e[i], e[i + 1]) for e in ends)
        call = [
            tensors[n][s].transpose(0, 1)[None] for n, s in (("q", rows), ("k", keys), ("v", keys))
        ]
        bottom_right = call[1].shape[2] - call[0].shape[2]
        offset = bottom_right if given is None else int(given[i])
        out, lse = attention(*call, **{**options, "q_offset": offset})
        yield rows, (out[0].transpose(0, 1), lse[0])
