"""Tensors of a `merge_attention` case, as NumPy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tightrope.formats import Array, stored

if TYPE_CHECKING:
    from tightrope.oracles.merge_attention_cases import MergeAttentionCase

HUGE = (1e4, 1e4, -1e4, 3e4, -3e5, 1e7, -1e30)
FAR = (0.0, -60.0, -86.0, -88.0, -100.0)  # exp(-87.3) is the least normal number of float32
GARBAGE = 1e30


def inputs(case: MergeAttentionCase) -> dict[str, Array]:
    """outs (splits, rows, num_heads, head_dim) and lses (splits, rows, num_heads), float32.

    Some outs are zeros of either sign.
    """
    rng = np.random.default_rng(case.seed)
    shape = (case.splits, case.rows, case.num_heads)
    outs = rng.standard_normal((*shape, case.head_dim))
    lses = _lses(case, shape, rng)
    if case.data == "far":  # what a weight near 0 is multiplied with must be able to show
        outs *= np.where(rng.random((*shape, 1)) < 0.3, 1e30, 1.0)
    if case.data == "cancellation":
        outs = 0.01 * outs + 1000.0 * (-1.0) ** np.arange(case.splits)[:, None, None, None]
    if case.data == "repeated":
        outs[:] = outs[:1]
    outs[..., ::5] *= np.where(rng.random(outs[..., ::5].shape) < 0.2, -0.0, 1.0)
    gone = _gone(case, shape, rng)
    hidden = {"nan": np.nan, "inf": np.inf, "finite": GARBAGE}[case.hidden]
    signs = np.where(rng.random(outs.shape) < 0.5, -1.0, 1.0)
    outs = np.where(gone[..., None], hidden * signs, outs)
    return {
        "outs": stored(outs, "float32"),
        "lses": stored(np.where(gone, -np.inf, lses), "float32"),
    }


def _lses(
    case: MergeAttentionCase, shape: tuple[int, ...], rng: np.random.Generator
) -> Array:  # fmt: skip
    x = rng.standard_normal(shape)
    if case.data == "equal":
        return np.broadcast_to(10.0 * x[:1], shape)
    if case.data == "spread":
        return rng.uniform(-300.0, 300.0, shape)
    if case.data == "far":
        return x + rng.choice(FAR, size=shape)
    if case.data == "huge":
        return 3.0 * x + rng.choice(HUGE, size=shape[1:])
    if case.data == "cancellation":
        return 0.01 * x
    if case.data == "dominant":
        first = rng.integers(0, case.splits, shape[1:])
        x += np.where(np.arange(case.splits)[:, None, None] == first, 20.0, 0.0)
    return 2.0 * x


def _gone(
    case: MergeAttentionCase, shape: tuple[int, ...], rng: np.random.Generator
) -> Array:  # fmt: skip
    """Which states are empty."""
    if case.empty == "none":
        return np.zeros(shape, bool)
    kept = np.arange(case.splits)[:, None, None] == rng.integers(0, case.splits, shape[1:])
    if case.empty == "all but one":
        return ~kept
    gone = (rng.random(shape) < 0.4) & ~kept
    if case.empty == "all":
        gone |= np.arange(case.rows * case.num_heads).reshape(shape[1:]) % 2 == 1
    return gone


def layouts(case: MergeAttentionCase) -> dict[str, str]:
    return {"outs": case.layout_outs, "lses": case.layout_lses}
