"""Exact results of `attention_paged` in ball arithmetic: one head of one cached sequence at a time.

Key j of sequence s stands in slot j % page_size of page block_table[s, j // page_size].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tightrope.formats import Array
from tightrope.oracles.attention_exact import Head, Value, values
from tightrope.oracles.attention_row_exact import Rule, dyadic
from tightrope.oracles.attention_varlen_exact import packed_places


def exact(case: Any, inputs: Mapping[str, Array], output: str, flat: Sequence[int]) -> list[Value]:
    """Exact values of "out" (tokens_q, num_heads, head_dim_v) or "lse" (num_heads, tokens_q) at
    flat (C order) indices, within 2**-100 of themselves.

    None stands for -inf, the lse of a row without a key. Raises ArithmeticError if an input that
    the row sees is not finite.
    """
    q, k, v = inputs["q"], inputs["k_cache"], inputs["v_cache"]
    ends, pages, seqlens = inputs["cu_seqlens_q"], inputs["block_table"], inputs["cache_seqlens"]
    offsets, sink = inputs.get("q_offset"), inputs.get("sink")
    page_size, group = k.shape[1], q.shape[1] // k.shape[2]

    def cached(cache: Array, sequence: int, head: int, keys: Array) -> Array:
        return cache[pages[sequence, keys // page_size], keys % page_size, head // group]

    def head(at: tuple[int, int]) -> Head:
        s, h = at
        first, seqlen_k = int(ends[s]), int(seqlens[s])
        seqlen_q = int(ends[s + 1]) - first
        return Head(
            q=lambda rows: dyadic(q[first + rows, h]),
            k=lambda keys: dyadic(cached(k, s, h, keys)),
            v=lambda keys: cached(v, s, h, keys),
            seqlen_k=seqlen_k,
            q_offset=seqlen_k - seqlen_q if offsets is None else int(offsets[s]),
            sink=None if sink is None else float(sink[h]),
        )

    places = packed_places(q, ends, v.shape[-1], output, flat)
    return values(Rule.of(case, q.shape[-1]), head, output, places)
