"""`attention_varlen` in mpmath: every sequence sliced out and attended to. For tests only."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import mpmath

from tightrope.formats import Array
from tightrope.oracles.attention_mpmath import DIGITS, head, numbers


def attention_varlen(case: Any, inputs: Mapping[str, Array]) -> dict[str, list[Any]]:
    """ "out" (tokens_q, num_heads, head_dim_v) and "lse" (num_heads, tokens_q), flat in C order;
    0 and -inf for tokens of no sequence."""
    ends = inputs["cu_seqlens_k"].tolist()
    spans = list(pairwise(ends))
    keys = [inputs["k"][first:last] for first, last in spans]
    values = [inputs["v"][first:last] for first, last in spans]
    return sequences(case, inputs, keys, values, inputs["v"].shape[-1])


def sequences(
    case: Any, inputs: Mapping[str, Array], keys: list[Array], values: list[Array], width: int
) -> dict[str, list[Any]]:
    """Packed queries against one array of keys and one of values (seqlen_k, num_kv_heads, ...) a
    sequence; without q_offset the last query stands at the last key."""
    q, firsts = inputs["q"], inputs["cu_seqlens_q"].tolist()
    tokens, num_heads = q.shape[:2]
    offsets, sink = inputs.get("q_offset"), inputs.get("sink")
    with mpmath.workdps(DIGITS):
        out = [[[mpmath.mpf(0)] * width] * num_heads for _ in range(tokens)]
        lse = [[-mpmath.inf] * tokens for _ in range(num_heads)]
        for s, (k, v) in enumerate(zip(keys, values, strict=True)):
            rows = range(firsts[s], firsts[s + 1])
            offset = len(k) - len(rows) if offsets is None else int(offsets[s])
            for h in range(num_heads):
                kv = h * k.shape[1] // num_heads
                found = head(
                    case, numbers(q[rows.start : rows.stop, h]), numbers(k[:, kv]),
                    numbers(v[:, kv]), offset, width,
                    sink=None if sink is None else mpmath.mpf(float(sink[h])),
                )  # fmt: skip
                for row, features, total in zip(rows, *found, strict=True):
                    out[row][h], lse[h][row] = features, total
        flat = [x for token in out for features in token for x in features]
        return {"out": flat, "lse": [x for row in lse for x in row]}
