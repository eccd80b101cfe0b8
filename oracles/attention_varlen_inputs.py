"""Tensors of an `attention_varlen` case, as NumPy arrays in their own dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from tightrope.formats import FORMATS, Array, stored
from tightrope.oracles.attention_cases import AttentionCase
from tightrope.oracles.attention_data import keys_and_queries, values_of
from tightrope.oracles.attention_inputs import OFFSET_SPREAD, offset_range
from tightrope.oracles.attention_problem import visible

if TYPE_CHECKING:
    from tightrope.oracles.attention_varlen_cases import AttentionVarlenCase


def inputs(case: AttentionVarlenCase) -> dict[str, Array]:
    """q (tokens_q, num_heads, head_dim), k (tokens_k, num_kv_heads, head_dim), v (..., head_dim_v)
    in `dtype`; cu_seqlens_q and cu_seqlens_k (sequences + 1,) int32; where they are on, sink
    (num_heads,) in `bias_dtype` and q_offset (sequences,) int32.
    """
    rng = np.random.default_rng(case.seed)
    parts = [
        member(case, n, m, rng) for n, m in zip(case.seqlens_q, case.seqlens_k, strict=True)
    ]  # fmt: skip
    parts.append(member(case, case.spare, case.spare, rng))
    q, k, v = (np.concatenate(found) for found in zip(*parts, strict=True))
    chosen = offsets(case, rng)
    for x, layout in ((q, case.layout_q), (k, case.layout_k), (v, case.layout_v)):
        if layout == "expanded":
            x[:] = x[:, :1]  # stored once for all heads
    spare = np.ones(case.spare, bool)
    poison(q, np.concatenate([np.zeros(len(q) - case.spare, bool), spare]), case.hidden, rng)
    nobody = np.concatenate([*unseen(case, chosen), spare])
    poison(k, nobody, case.hidden, rng)
    poison(v, nobody, case.hidden, rng)
    if case.layout_v == "view of k":
        v = np.ascontiguousarray(k[..., : case.head_dim_v])
    ends = {f"cu_seqlens_{x}": cumulated(getattr(case, f"seqlens_{x}")) for x in "qk"}
    return {"q": q, "k": k, "v": v, **ends, **keywords(case, chosen, rng)}


def keywords(case: Any, chosen: Array, rng: np.random.Generator) -> dict[str, Array]:
    """sink and q_offset, where they are on."""
    found = {}
    if case.sink:
        dtype = case.dtype if case.bias_dtype == "input" else case.bias_dtype
        found["sink"] = stored(rng.standard_normal(case.num_heads) * 3, dtype)
    if case.offsets == "tensor":
        found["q_offset"] = chosen.astype(np.int32)
    return found


def layouts(case: AttentionVarlenCase) -> dict[str, str]:
    return {
        "q": case.layout_q, "k": case.layout_k, "v": case.layout_v,
        "cu_seqlens_q": case.layout_starts_q, "cu_seqlens_k": case.layout_starts_k,
    }  # fmt: skip


def cumulated(lengths: Sequence[int]) -> Array:
    return np.array([0, *accumulate(lengths)], np.int32)


def member(
    case: Any, seqlen_q: int, seqlen_k: int, rng: np.random.Generator
) -> tuple[Array, Array, Array]:
    """q (seqlen_q, num_heads, head_dim), k and v (seqlen_k, num_kv_heads, ..) of one sequence."""
    names = ("num_heads", "num_kv_heads", "head_dim", "head_dim_v", "dtype", "data", "data_v")
    alone = AttentionCase(
        **{name: getattr(case, name) for name in names}, seqlen_q=seqlen_q, seqlen_k=seqlen_k
    )
    q, k = keys_and_queries(alone, rng)
    return q[0].swapaxes(0, 1), k[0].swapaxes(0, 1), values_of(alone, rng)[0].swapaxes(0, 1)


def offsets(case: Any, rng: np.random.Generator) -> Array:
    """q_offset of each sequence: bottom-right, or with a tensor near it, near 0, or anything."""
    n, m = np.array([case.seqlens_q, case.seqlens_k], np.int64)
    if case.offsets == "default":
        return m - n
    found = []
    for rows, keys in zip(n.tolist(), m.tolist(), strict=True):
        low, high = -rows - 2, keys + 2
        if not case.empty_rows:
            window = case.causal, case.window_left, case.window_right
            least, most = offset_range(rows, keys, *window)
            low, high = max(low, least), max(low, least, min(high, most))
        near = (keys - rows, keys - rows, 0, int(rng.integers(low, high + 1)))[rng.integers(4)]
        near += int(rng.integers(-OFFSET_SPREAD, OFFSET_SPREAD + 1))
        found.append(min(max(near, low), high))
    return np.array(found, np.int64)


def unseen(case: Any, chosen: Array) -> list[Array]:
    """(seqlen_k,) bool of each sequence: keys that none of its rows sees by its index."""
    window = case.causal, case.window_left, case.window_right
    lengths = zip(case.seqlens_q, case.seqlens_k, chosen.tolist(), strict=True)
    return [~np.any(visible(n, m, offset, *window), axis=0) for n, m, offset in lengths]


def poison(x: Array, at: Array, hidden: str, rng: np.random.Generator) -> None:
    """Put what must not matter into rows `at` of x (rows, heads, features), alike for all heads."""
    if hidden == "finite":
        return
    fmt = FORMATS[x.dtype.name].dtype
    if hidden == "nan":
        x[at] = fmt.type(np.nan)
        return
    rows = x[at]
    signs = np.where(rng.random((len(rows), 1, x.shape[-1])) < 0.5, -1.0, 1.0)
    x[at] = np.broadcast_to(np.inf * signs, rows.shape).astype(fmt)
