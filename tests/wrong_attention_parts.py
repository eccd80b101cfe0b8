"""Merges of attention states and rotated attention with one mistake each, and their right twins.

`tightrope run --impl=tests/wrong_attention_parts.py` must reject all but the right ones;
tests/test_wrong_kernels.py demands it.
"""

from __future__ import annotations

import torch
from tiled_attention import DTYPES, LN2, LOWEST, attention

from tightrope import implements


def wrong(contract, name, **limits):
    if contract == "rope_attention":
        limits = {"dtype": DTYPES, **limits}
    return implements(contract, name=name, **limits)


def merge(outs, lses, *, guarded=True, masked=True, log2=1.0):
    """guarded: no state at all is empty; masked: outs of empty states are not looked at; log2: of
    the base."""
    top = lses.amax(0)
    shift = torch.where(top == LOWEST, 0, top) if guarded else top
    weights = torch.exp((lses - shift) * log2)
    total = weights.sum(0)
    parts = weights[..., None] * outs
    if masked:
        parts = torch.where((lses > LOWEST)[..., None], parts, 0)
    out = parts.sum(0) / (torch.where(total == 0, 1, total) if guarded else total)[..., None]
    return out, shift + torch.log(total) / log2


@implements("merge_attention", name="right")
def _(outs, lses):
    return merge(outs, lses)


@wrong("merge_attention", "not_rescaled")
def _(outs, lses):
    live = (lses > LOWEST)[..., None]
    count = live.sum(0).clamp(min=1)
    return torch.where(live, outs, 0).sum(0) / count, merge(outs, lses)[1]


@wrong("merge_attention", "no_maximum_subtracted")
def _(outs, lses):
    weights = torch.exp(lses)
    total = weights.sum(0)
    parts = torch.where((lses > LOWEST)[..., None], weights[..., None] * outs, 0)
    return parts.sum(0) / torch.where(total == 0, 1, total)[..., None], torch.log(total)


@wrong("merge_attention", "two_empty_states_are_nan", empty=("all",))
def _(outs, lses):
    return merge(outs, lses, guarded=False)


@wrong("merge_attention", "empty_states_multiplied_by_0")
def _(outs, lses):
    return merge(outs, lses, masked=False)


@wrong("merge_attention", "lses_taken_for_base_2")
def _(outs, lses):
    return merge(outs, lses, log2=LN2)


@wrong("merge_attention", "lse_is_the_largest")
def _(outs, lses):
    return merge(outs, lses)[0], lses.amax(0)


@wrong("merge_attention", "last_state_dropped")
def _(outs, lses):
    return merge(outs[:-1], lses[:-1]) if len(outs) > 1 else merge(outs, lses)


def turn(x, cos, sin, positions, interleaved):
    """x (batch, heads, length, features) rotated by rows of a table, rounded to its dtype."""
    half = min(cos.shape[1], x.shape[-1] // 2)
    at = positions.long() if positions.ndim == 2 else positions.long()[None]
    c, s = (t[at][:, None, :, :half].float() for t in (cos, sin))
    step, second = (2, 1) if interleaved else (1, half)
    first = slice(0, 2 * half, 2) if interleaved else slice(0, half)
    second = slice(second, 2 * half, step)
    a, b, y = x[..., first].float(), x[..., second].float(), x.clone()
    y[..., first] = (a * c - b * s).to(x.dtype)
    y[..., second] = (b * c + a * s).to(x.dtype)
    return y


@implements("rope_attention", name="right", dtype=(*DTYPES, "float32"))
def _(q, k, v, cos, sin, q_positions, k_positions, *, interleaved, **options):
    q = turn(q, cos, sin, q_positions, interleaved)
    return attention(q, turn(k, cos, sin, k_positions, interleaved), v, **options)


@wrong("rope_attention", "v_rotated")
def _(q, k, v, cos, sin, q_positions, k_positions, *, interleaved, **options):
    q = turn(q, cos, sin, q_positions, interleaved)
    k, v = (turn(x, cos, sin, k_positions, interleaved) for x in (k, v))
    return attention(q, k, v, **options)


@wrong("rope_attention", "k_not_rotated")
def _(q, k, v, cos, sin, q_positions, k_positions, *, interleaved, **options):
    return attention(turn(q, cos, sin, q_positions, interleaved), k, v, **options)


@wrong("rope_attention", "opposite_angle_on_k")
def _(q, k, v, cos, sin, q_positions, k_positions, *, interleaved, **options):
    q = turn(q, cos, sin, q_positions, interleaved)
    return attention(q, turn(k, cos, -sin, k_positions, interleaved), v, **options)


@wrong("rope_attention", "q_one_position_late")
def _(q, k, v, cos, sin, q_positions, k_positions, *, interleaved, **options):
    q = turn(q, cos, sin, (q_positions.long() + 1) % max(len(cos), 1), interleaved)
    return attention(q, turn(k, cos, sin, k_positions, interleaved), v, **options)


@wrong("rope_attention", "layout_swapped")
def _(q, k, v, cos, sin, q_positions, k_positions, *, interleaved, **options):
    q = turn(q, cos, sin, q_positions, not interleaved)
    return attention(q, turn(k, cos, sin, k_positions, not interleaved), v, **options)


@wrong("rope_attention", "first_positions_for_all", positions=("per_batch",), batch=(2, 3))
def _(q, k, v, cos, sin, q_positions, k_positions, *, interleaved, **options):
    at = [p if p.ndim == 1 or not len(p) else p[0] for p in (q_positions, k_positions)]
    q, k = (turn(x, cos, sin, p, interleaved) for x, p in zip((q, k), at, strict=True))
    return attention(q, k, v, **options)


@wrong("rope_attention", "positions_mask", causal=(True,))
def _(q, k, v, cos, sin, q_positions, k_positions, *, interleaved, q_offset=0, **options):
    q, k = (turn(x, cos, sin, p, interleaved) for x, p in ((q, q_positions), (k, k_positions)))
    first = q_positions.reshape(-1)[:1] - k_positions.reshape(-1)[:1]
    offset = int(first) if first.numel() else q_offset  # as if positions were consecutive
    return attention(q, k, v, q_offset=offset, **options)
