"""Exact results of `attention_varlen` in ball arithmetic, a head of a packed sequence at a time.

Tokens cu_seqlens[s] .. cu_seqlens[s + 1] - 1 belong to sequence s; the others to none, and their
out is 0, their lse -inf.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tightrope.formats import Array
from tightrope.oracles.attention_exact import Head, Place, Value, values
from tightrope.oracles.attention_row_exact import Rule, dyadic


def packed_places(
    q: Array, ends: Array, head_dim_v: int, output: str, flat: Sequence[int]
) -> list[Place | None]:
    """Flat indices of out (tokens_q, num_heads, head_dim_v) or lse (num_heads, tokens_q) as
    ((sequence, head), row, feature); None for a token of no sequence. ends: cu_seqlens_q."""
    tokens, num_heads = q.shape[:2]
    places: list[Place | None] = []
    for index in flat:
        if output == "out":
            token, head, feature = np.unravel_index(int(index), (tokens, num_heads, head_dim_v))
        else:
            (head, token), feature = np.unravel_index(int(index), (num_heads, tokens)), np.intp(0)
        sequence = int(np.searchsorted(ends, token, side="right")) - 1
        inside = 0 <= sequence < len(ends) - 1
        row = int(token) - int(ends[sequence])
        places.append(((sequence, int(head)), row, int(feature)) if inside else None)
    return places


def exact(case: Any, inputs: Mapping[str, Array], output: str, flat: Sequence[int]) -> list[Value]:
    """Exact values of "out" or "lse" at flat (C order) indices, within 2**-100 of themselves.

    None stands for -inf, the lse of a row without a key. Raises ArithmeticError if an input that
    the row sees is not finite.
    """
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    ends_q, ends_k = inputs["cu_seqlens_q"], inputs["cu_seqlens_k"]
    offsets, sink = inputs.get("q_offset"), inputs.get("sink")
    group = q.shape[1] // k.shape[1]

    def head(at: tuple[int, int]) -> Head:
        s, h = at
        first_q, first_k = int(ends_q[s]), int(ends_k[s])
        seqlen_q, seqlen_k = int(ends_q[s + 1]) - first_q, int(ends_k[s + 1]) - first_k
        return Head(
            q=lambda rows: dyadic(q[first_q + rows, h]),
            k=lambda keys: dyadic(k[first_k + keys, h // group]),
            v=lambda keys: v[first_k + keys, h // group],
            seqlen_k=seqlen_k,
            q_offset=seqlen_k - seqlen_q if offsets is None else int(offsets[s]),
            sink=None if sink is None else float(sink[h]),
        )

    places = packed_places(q, ends_q, v.shape[-1], output, flat)
    return values(Rule.of(case, q.shape[-1]), head, output, places)
