"""`attention_paged` in mpmath: pages laid end to end and cut to length. For tests only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tightrope.formats import Array
from tightrope.oracles.attention_varlen_mpmath import sequences


def attention_paged(case: Any, inputs: Mapping[str, Array]) -> dict[str, list[Any]]:
    """ "out" (tokens_q, num_heads, head_dim_v) and "lse" (num_heads, tokens_q), flat in C order;
    0 and -inf for tokens of no sequence."""
    keys, values = (
        [_gathered(cache, row, n) for row, n in _members(inputs)]
        for cache in (inputs["k_cache"], inputs["v_cache"])
    )
    return sequences(case, inputs, keys, values, inputs["v_cache"].shape[-1])


def _members(inputs: Mapping[str, Array]) -> list[tuple[list[int], int]]:
    tables, lengths = inputs["block_table"].tolist(), inputs["cache_seqlens"].tolist()
    return list(zip(tables, lengths, strict=True))


def _gathered(cache: Array, pages: list[int], length: int) -> Array:
    """(length, num_kv_heads, features); the table is not read beyond the length."""
    used = pages[: -(-length // cache.shape[1])]
    whole = [cache[page] for page in used] or [cache[:0].reshape(0, *cache.shape[2:])]
    return np.concatenate(whole)[:length]
