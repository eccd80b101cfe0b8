"""Tensors of a `rope_attention` case, as NumPy arrays in their own dtypes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tightrope.formats import FORMATS, Array, stored
from tightrope.oracles.attention_data import CURVES, drawn, values_of
from tightrope.oracles.attention_inputs import offset_range, seen
from tightrope.oracles.attention_problem import Problem, problem
from tightrope.oracles.attention_varlen_inputs import keywords
from tightrope.oracles.rope import rotate
from tightrope.oracles.rope_cases import RopeCase
from tightrope.oracles.rope_inputs import inputs as rope_inputs

if TYPE_CHECKING:
    from tightrope.oracles.rope_attention_cases import RopeAttentionCase

SPREAD = 3  # by how much the offsets of two sequences may differ


def inputs(case: RopeAttentionCase) -> dict[str, Array]:
    """q (batch, num_heads, seqlen_q, head_dim), k (batch, num_kv_heads, seqlen_k, head_dim),
    v (..., head_dim_v) in `dtype`; cos, sin (table_rows, rotary_dim/2) in `table_dtype`;
    q_positions, k_positions (seqlen,) or (batch, seqlen) in `position_dtype`; where they are on,
    sink (num_heads,) in `bias_dtype` and q_offset (batch,) int32.
    """
    rng = np.random.default_rng(case.seed)
    offsets = drawn_offsets(case, rng)
    table = _table(case)
    places = _positions(case, offsets, rng)
    q, k = _features(case, {**table, **places}, rng)
    found = completed(case, q, k, offsets, rng)
    return {**found, **table, **places, **keywords(case, offsets, rng)}


def completed(
    case: Any, q: Array, k: Array, offsets: Array, rng: np.random.Generator
) -> dict[str, Array]:
    """q, k and v as the case's layouts and `hidden` have them; v is drawn here."""
    found = {"q": q, "k": k, "v": values_of(case, rng)}
    for name, layout in (("q", case.layout_q), ("k", case.layout_k), ("v", case.layout_v)):
        if layout == "expanded":
            found[name][:] = found[name][:, :1]  # stored once for all heads
    _hide(case, found, offsets, rng)
    if case.layout_v == "view of k":
        found["v"] = np.ascontiguousarray(found["k"][..., : case.head_dim_v])
    return found


def layouts(case: RopeAttentionCase) -> dict[str, str]:
    table = {"cos": case.layout_table, "sin": case.layout_table}
    return {"q": case.layout_q, "k": case.layout_k, "v": case.layout_v, **table}


def rotated(x: Array, given: Mapping[str, Array], name: str, interleaved: bool) -> Array:
    """x (batch, heads, seqlen, head_dim) turned as name, "q" or "k", is; float64."""
    tokens, positions = flattened(x, given[f"{name}_positions"])
    y = rotate(tokens, given["cos"], given["sin"], positions, interleaved)
    return unflattened(y, x.shape)


def flattened(x: Array, positions: Array) -> tuple[Array, Array]:
    """(batch * seqlen, heads, head_dim) and one position each."""
    tokens = x.swapaxes(1, 2).reshape(-1, x.shape[1], x.shape[3])
    return tokens, np.broadcast_to(positions, (x.shape[0], x.shape[2])).ravel()


def unflattened(y: Array, shape: tuple[int, ...]) -> Array:
    batch, heads, seqlen, _ = shape
    return y.reshape(batch, seqlen, heads, y.shape[-1]).swapaxes(1, 2)


def offsets_of(case: Any, inputs: Mapping[str, Array]) -> Array:
    return np.broadcast_to(inputs.get("q_offset", case.q_offset), (case.batch,))


def finite_keys(case: Any, inputs: Mapping[str, Array]) -> Array:
    """k with 0 where no row of the sequence sees it: what hides there must not matter."""
    looked_at = np.asarray(seen(case, offsets_of(case, inputs)).any(axis=2))
    k = inputs["k"]
    return np.where(looked_at[..., None], k, k.dtype.type(0))


def stated(
    case: RopeAttentionCase, inputs: Mapping[str, Array], q: Array, k: Array, mask: Array | None
) -> Problem:
    """The call as one problem, of these rotated q and k; groups are batch x num_heads.

    mask (batch, 1, seqlen_q, seqlen_k): in place of that by indices, or None.
    """
    return problem(
        q, k, inputs["v"], seen(case, offsets_of(case, inputs)) if mask is None else mask,
        softmax_scale=case.softmax_scale, dtype=case.dtype, out_dtype=case.out_dtype,
        softcap=case.softcap, sink=inputs.get("sink"),
    )  # fmt: skip


def drawn_offsets(case: Any, rng: np.random.Generator) -> Array:
    """q_offset of each sequence; with a tensor those of the others lie near the first one's."""
    if case.offsets == "int" or case.batch == 0:
        return np.full(case.batch, case.q_offset)
    low, high = case.q_offset - SPREAD, case.q_offset + SPREAD
    if not case.empty_rows:
        window = case.causal, case.window_left, case.window_right
        least, most = offset_range(case.seqlen_q, case.seqlen_k, *window)
        low, high = max(low, least), min(high, most)
    others = rng.integers(low, high + 1, case.batch - 1)
    return np.concatenate([[case.q_offset], others])


def _table(case: RopeAttentionCase) -> dict[str, Array]:
    """cos and sin as `rope` has them."""
    alone = RopeCase(
        tokens=0, head_dim=case.head_dim, rotary_dim=case.rotary_dim, table=case.table,
        table_dtype=case.dtype if case.table_dtype == "input" else case.table_dtype,
        table_rows=case.table_rows, seed=case.seed,
    )  # fmt: skip
    found = rope_inputs(alone)
    return {"cos": found["cos"], "sin": found["sin"]}


def _positions(
    case: RopeAttentionCase, offsets: Array, rng: np.random.Generator
) -> dict[str, Array]:
    """Rows of the table; every kind stays inside it."""
    queries = np.arange(case.seqlen_q) + case.q_offset
    keys = np.arange(case.seqlen_k)
    if case.positions == "random":
        lengths = case.seqlen_q, case.seqlen_k
        queries, keys = (rng.integers(0, case.table_rows, n) for n in lengths)
    if case.positions == "per_batch":
        starts = rng.integers(0, case.table_rows, (case.batch, 1))
        queries = np.arange(case.seqlen_q) + offsets[:, None] + starts
        keys = keys + starts
    each = {"q_positions": queries + case.start, "k_positions": keys + case.start}
    return {n: (x % case.table_rows).astype(case.position_dtype) for n, x in each.items()}


def _features(
    case: RopeAttentionCase, given: Mapping[str, Array], rng: np.random.Generator
) -> tuple[Array, Array]:
    q_shape = (case.batch, case.num_heads, case.seqlen_q, case.head_dim)
    k_shape = (case.batch, case.num_kv_heads, case.seqlen_k, case.head_dim)
    q, k = drawn(case.data, q_shape, k_shape, FORMATS[case.dtype], rng)
    if case.data in CURVES and case.table == "trigonometric":
        back = {**given, "sin": -given["sin"]}
        q, k = (rotated(x, back, n, case.interleaved) for n, x in (("q", q), ("k", k)))
    return stored(q, case.dtype), stored(k, case.dtype)


def _hide(case: Any, found: dict[str, Array], offsets: Array, rng: np.random.Generator) -> None:
    """Keys that no row sees by its index hold what must not matter, alike for all heads."""
    if case.hidden == "finite":
        return
    nobody = ~np.asarray(seen(case, offsets).any(axis=2))[:, 0]
    fmt = FORMATS[case.dtype].dtype
    for x in (found["k"], found["v"]):
        signs = np.where(rng.random((len(x), 1, *x.shape[2:])) < 0.5, -1.0, 1.0)
        value = np.full(signs.shape, np.nan) if case.hidden == "nan" else np.inf * signs
        at = np.broadcast_to(nobody[:, None, :, None], x.shape)
        x[at] = np.broadcast_to(value, x.shape)[at].astype(fmt)
