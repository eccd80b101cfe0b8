"""Tensors of an `attention` case, as NumPy arrays in their own dtypes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tightrope.formats import Array, stored
from tightrope.oracles.attention_data import keys_and_queries, values_of
from tightrope.oracles.attention_problem import Problem, problem, visible

if TYPE_CHECKING:
    from tightrope.oracles.attention_cases import AttentionCase

OFFSET_SPREAD = 3  # by how much the offsets of two sequences may differ


def inputs(case: AttentionCase) -> dict[str, Array]:
    """q (batch, num_heads, seqlen_q, head_dim), k (batch, num_kv_heads, seqlen_k, head_dim),
    v (..., head_dim_v) in `dtype`; where they are on, bias (broadcastable to the scores), sink
    (num_heads,) in `bias_dtype` and q_offset (batch,) int32.
    """
    rng = np.random.default_rng(case.seed)
    q, k = keys_and_queries(case, rng)
    v = values_of(case, rng)
    found = {"q": q, "k": k, "v": v}
    offsets = _offsets(case, rng)
    for name, layout in (("q", case.layout_q), ("k", case.layout_k), ("v", case.layout_v)):
        if layout == "expanded":
            found[name][:] = found[name][:, :1]  # stored once for all heads
    _hide(case, found, offsets, rng)
    if case.layout_v == "view of k":
        found["v"] = np.ascontiguousarray(found["k"][..., : case.head_dim_v])
    dtype = case.dtype if case.bias_dtype == "input" else case.bias_dtype
    if case.bias != "none":
        found["bias"] = stored(_bias(case, offsets, rng), dtype)
        if case.layout_bias == "expanded":
            found["bias"][:] = found["bias"][:, :1]
    if case.sink:
        found["sink"] = stored(rng.standard_normal(case.num_heads) * 3, dtype)
    if case.offsets == "tensor":
        found["q_offset"] = offsets.astype(np.int32)
    return found


def layouts(case: AttentionCase) -> dict[str, str]:
    named = {"q": case.layout_q, "k": case.layout_k, "v": case.layout_v}
    return {**named, "bias": case.layout_bias} if case.bias != "none" else named


def stated(case: AttentionCase, inputs: Mapping[str, Array]) -> Problem:
    """The call as one problem; groups are batch x num_heads."""
    return problem(
        inputs["q"], inputs["k"], inputs["v"],
        seen(case, np.broadcast_to(inputs.get("q_offset", case.q_offset), (case.batch,))),
        softmax_scale=case.softmax_scale, dtype=case.dtype, out_dtype=case.out_dtype,
        softcap=case.softcap, bias=inputs.get("bias"), sink=inputs.get("sink"),
    )  # fmt: skip


def seen(case: Any, offsets: Array) -> Array:
    """(batch, 1, seqlen_q, seqlen_k) bool: which keys a row sees by index."""
    masks = [
        visible(
            case.seqlen_q, case.seqlen_k, int(offset), case.causal,
            case.window_left, case.window_right,
        )
        for offset in offsets
    ]  # fmt: skip
    return (
        np.stack(masks)[:, None] if masks else np.ones((0, 1, case.seqlen_q, case.seqlen_k), bool)
    )


def offset_range(
    seqlen_q: int, seqlen_k: int, causal: bool, left: int | None, right: int | None
) -> tuple[int, int]:
    """Smallest and largest q_offset under which every row sees a key; beyond use: +-2**20."""
    low = 0 if causal else -(1 << 20)
    if right is not None:
        low = max(low, -right)
    high = 1 << 20 if left is None else seqlen_k - seqlen_q + left
    return low, high


def _offsets(case: AttentionCase, rng: np.random.Generator) -> Array:
    if case.offsets == "int" or case.batch == 0:
        return np.full(case.batch, case.q_offset)
    low, high = case.q_offset - OFFSET_SPREAD, case.q_offset + OFFSET_SPREAD
    if not case.empty_rows:
        window = case.causal, case.window_left, case.window_right
        least, most = offset_range(case.seqlen_q, case.seqlen_k, *window)
        low, high = max(low, least), min(high, most)
    others = rng.integers(low, high + 1, case.batch - 1)
    return np.concatenate([[case.q_offset], others])


def _hide(
    case: AttentionCase, found: dict[str, Array], offsets: Array, rng: np.random.Generator
) -> None:
    """Keys that no row sees by its index hold what must not matter."""
    if case.hidden == "finite":
        return
    nowhere = ~np.asarray(seen(case, offsets)[:, 0].any(axis=1))  # (batch, seqlen_k)
    for name in ("k", "v"):
        at = np.broadcast_to(nowhere[:, None, :, None], found[name].shape)
        signs = np.where(rng.random(found[name].shape) < 0.5, -1.0, 1.0)
        poison = np.nan if case.hidden == "nan" else np.inf * signs
        found[name][:] = np.where(at, poison, found[name].astype(np.float64)).astype(
            found[name].dtype
        )


def _bias(case: AttentionCase, offsets: Array, rng: np.random.Generator) -> Array:
    b, h, n, m = case.batch, case.num_heads, case.seqlen_q, case.seqlen_k
    if case.bias == "alibi":  # Press et al. 2022, arXiv:2108.12409, section 3: slopes 2^(-8 i/h)
        slopes = 2.0 ** (-8.0 * np.arange(1, h + 1) / h)
        return slopes[None, :, None, None] * (np.arange(m) - (m - 1.0))[None, None, None, :]
    if case.bias == "mask":
        return _mask(case, offsets, rng)
    shape = {"full": (b, h, n, m), "query": (1, h, n, 1), "key": (b, 1, 1, m)}[case.bias]
    return 2.0 * rng.standard_normal(shape)


def _mask(case: AttentionCase, offsets: Array, rng: np.random.Generator) -> Array:
    """0 and -inf, the same for all heads; where no row may be empty, each keeps a key it sees."""
    by_index = seen(case, offsets)
    allowed = rng.random(by_index.shape) < 0.6
    if case.empty_rows:
        allowed &= rng.random((*by_index.shape[:3], 1)) < 0.9
    elif case.seqlen_k:
        kept = np.argmax(by_index * (1 + rng.random(by_index.shape)), axis=-1, keepdims=True)
        np.put_along_axis(allowed, kept, True, axis=-1)
    return np.where(allowed, 0.0, -np.inf)
