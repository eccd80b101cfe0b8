"""Tensors of a `rope` case, as NumPy arrays in their own dtypes."""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np

from tightrope.data import values
from tightrope.formats import Array, stored, widen
from tightrope.oracles.rope_cases import RopeCase

# A prime: no two rows of a table that repeats the pool are equal, for any width below it.
POOL = 65_537
VARIANTS = 8
ROPE_THETA = 10_000.0


def inputs(case: RopeCase) -> dict[str, Array]:
    """q (tokens, num_heads, head_dim), k (tokens, num_kv_heads, head_dim) in `dtype`, cos and sin
    (table_rows, rotary_dim/2) in `table_dtype`, positions (tokens,) in `position_dtype`.
    """
    rng = np.random.default_rng(case.seed)
    cos, sin = _tables(case, rng)
    rows = _positions(case, rng)
    c, s = widen(cos[rows])[:, None], widen(sin[rows])[:, None]
    q = _features(case, case.num_heads, case.layout_q, rng, c, s)
    k = _features(case, case.num_kv_heads, case.layout_k, rng, c, s)
    return {"q": q, "k": k, "cos": cos, "sin": sin, "positions": rows.astype(case.position_dtype)}


def _positions(case: RopeCase, rng: np.random.Generator) -> Array:
    """Row numbers; every kind stays inside the table."""
    tokens, rows = case.tokens, case.table_rows
    steps = np.arange(tokens)
    if case.positions == "random":
        # denser towards the last row, so that limits hidden in a kernel are passed
        return rows - 1 - np.floor(rows * rng.random(tokens) ** 3).astype(np.int64)
    if case.positions == "repeated":
        return np.full(tokens, case.start % rows)
    if case.positions == "descending":
        return (case.start + steps[::-1]) % rows
    if case.positions == "last":
        return (rows - tokens + steps) % rows
    if case.positions == "batch":
        return (case.start + _requests(tokens, rows, rng)) % rows
    return (case.start + steps) % rows


def _requests(tokens: int, rows: int, rng: np.random.Generator) -> Array:
    """Up to four requests of unequal length, the later ones at starts of their own."""
    cuts = np.sort(rng.integers(0, tokens + 1, 3))
    starts = np.concatenate([[0], rng.integers(1, rows + 1, 3)])
    request = np.searchsorted(cuts, np.arange(tokens), side="right")
    return starts[request] + np.arange(tokens) - np.concatenate([[0], cuts])[request]


def _tables(case: RopeCase, rng: np.random.Generator) -> tuple[Array, Array]:
    shape = (case.table_rows, case.rotary_dim // 2)
    if case.table == "trigonometric":
        return _trigonometric(*shape, case.table_dtype)
    if case.table == "identity":
        return stored(np.ones(shape), case.table_dtype), stored(np.zeros(shape), case.table_dtype)
    pool = _pool(case.table, case.table_dtype, case.seed % VARIANTS)
    start, distance = rng.integers(0, POOL), rng.integers(1, POOL)
    cos, sin = (np.resize(np.roll(pool, shift), shape) for shift in (start, start + distance))
    return cos, sin


@cache
def _pool(kind: str, dtype: str, variant: int) -> Array:
    """Independent numbers in [-1, 1]; of few bits, every product with them is exact in float32."""
    rng = np.random.default_rng([POOL, variant])
    few = kind == "few_bits"
    return stored(rng.integers(-8, 9, POOL) / 8.0 if few else rng.uniform(-1, 1, POOL), dtype)


@lru_cache(maxsize=32)
def _trigonometric(rows: int, width: int, dtype: str) -> tuple[Array, Array]:
    """cos and sin of row * 10000**(-i/width), as a model would pass them."""
    angles = np.arange(rows)[:, None] * ROPE_THETA ** (-np.arange(width) / width)
    tables = stored(np.cos(angles), dtype), stored(np.sin(angles), dtype)
    for table in tables:
        table.flags.writeable = False
    return tables


def _features(
    case: RopeCase, heads: int, layout: str, rng: np.random.Generator, c: Array, s: Array
) -> Array:
    shape = (case.tokens, heads, case.head_dim)
    x = values("normal" if case.data == "cancellation" else case.data, shape, case.dtype, rng)
    if case.data == "cancellation":
        x = _cancelling(x, c, s, case)
    if layout == "expanded":
        x[:] = x[:, :1]  # stored once for all heads
    return x


def _cancelling(x: Array, c: Array, s: Array, case: RopeCase) -> Array:
    """Each pair scaled so that x1 c and x2 s agree to one rounding: what is left is all error."""
    rotated = widen(x)
    half = case.rotary_dim // 2
    step = 2 if case.interleaved else 1
    x1 = rotated[..., : case.rotary_dim if case.interleaved else half : step]
    x2 = rotated[..., step - 1 if case.interleaved else half : case.rotary_dim : step]
    larger = np.abs(s) >= np.abs(c)
    second = x1 * np.divide(c, s, out=np.zeros_like(c), where=larger & (s != 0))
    first = x2 * np.divide(s, c, out=np.zeros_like(c), where=~larger)
    x1[...], x2[...] = np.where(larger, x1, first), np.where(larger & (s != 0), second, x2)
    return stored(rotated, case.dtype)
