"""One block of attention rows, as numbers: what every attention contract comes down to.

A contract with sequences of its own (packed, paged) yields one problem a sequence. The float64
oracle and the budgets read problems; ball arithmetic and mpmath read the inputs themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from tightrope.formats import Array


@dataclass(frozen=True)
class Problem:
    """Rows of scores and what weighs them; all arrays float64, holding stored values.

    A group is one query head of one sequence. q (groups, seqlen_q, head_dim); k (groups, seqlen_k,
    head_dim) and v (groups, seqlen_k, head_dim_v), kv heads repeated for their query heads, 0 in
    keys that no row of the group sees. visible (groups, seqlen_q, seqlen_k): by indices and by
    bias > -inf. bias: the same shape, finite where visible, or None. sink (groups,) or None.
    dtype: of q, k and v; out_dtype: of the output.
    """

    q: Array
    k: Array
    v: Array
    visible: Array
    softmax_scale: float
    dtype: str
    out_dtype: str
    softcap: float | None = None
    bias: Array | None = None
    sink: Array | None = None


def visible(
    seqlen_q: int,
    seqlen_k: int,
    q_offset: int,
    causal: bool,
    window_left: int | None,
    window_right: int | None,
) -> Array:
    """(seqlen_q, seqlen_k) bool: which keys a query sees by its index (DESIGN 3).

    Causal: j <= i + q_offset. Window: i + q_offset - left <= j <= i + q_offset + right, inclusive;
    None is unbounded.
    """
    row = np.arange(seqlen_q)[:, None] + q_offset
    key = np.arange(seqlen_k)[None, :]
    seen = np.ones((seqlen_q, seqlen_k), bool)
    if causal:
        seen &= key <= row
    if window_left is not None:
        seen &= key >= row - window_left
    if window_right is not None:
        seen &= key <= row + window_right
    return seen


def problem(
    q: Array,
    k: Array,
    v: Array,
    seen: Array,
    *,
    softmax_scale: float | None,
    dtype: str,
    out_dtype: str,
    softcap: float | None = None,
    bias: Array | None = None,
    sink: Array | None = None,
) -> Problem:
    """A problem from q (..., num_heads, seqlen_q, head_dim), k and v (..., num_kv_heads, ...).

    seen, bias: broadcastable to (..., num_heads, seqlen_q, seqlen_k). sink (num_heads,).
    softmax_scale None: head_dim**-0.5, rounded once to float64.
    """
    *batch, num_heads, seqlen_q, head_dim = q.shape
    group = num_heads // k.shape[-3]
    scores = (*batch, num_heads, seqlen_q, k.shape[-2])
    groups = prod(scores[:-2])
    seen = np.broadcast_to(seen, scores)
    if bias is not None:
        bias = np.broadcast_to(bias.astype(np.float64), scores)
        seen = seen & (bias > -np.inf)
        bias = np.where(seen, bias, 0.0).reshape(groups, *scores[-2:])
    seen = seen.reshape(groups, *scores[-2:])
    looked_at = np.asarray(seen.any(axis=-2))[..., None]

    def flat(x: Array, repeat: int) -> Array:
        x = np.repeat(x.astype(np.float64), repeat, axis=-3)
        return x.reshape(groups, *x.shape[-2:])

    return Problem(
        q=flat(q, 1),
        k=np.where(looked_at, flat(k, group), 0.0),
        v=np.where(looked_at, flat(v, group), 0.0),
        visible=seen,
        softmax_scale=head_dim**-0.5 if softmax_scale is None else softmax_scale,
        dtype=dtype,
        out_dtype=dtype if out_dtype == "input" else out_dtype,
        softcap=softcap,
        bias=bias,
        sink=None
        if sink is None
        else np.broadcast_to(sink.astype(np.float64), (*batch, num_heads)).ravel(),
    )


def logits(p: Problem) -> Array:
    """Scaled, capped, biased logits (groups, seqlen_q, seqlen_k), -inf where masked."""
    t = p.q @ p.k.swapaxes(-1, -2) * p.softmax_scale
    if p.softcap is not None:
        t = p.softcap * np.tanh(t / p.softcap)
    if p.bias is not None:
        t = t + p.bias
    return np.where(p.visible, t, -np.inf)


def attend(p: Problem) -> tuple[Array, Array]:
    """The definition in float64: out (groups, seqlen_q, head_dim_v), lse (groups, seqlen_q).

    Its own error is derived in docs/error-budgets.md, section attention.
    """
    t = logits(p)
    top = t.max(axis=-1, initial=-np.inf, keepdims=True)
    if p.sink is not None:
        top = np.maximum(top, p.sink[:, None, None])
    shift = np.where(np.isfinite(top), top, 0.0)
    weights = np.exp(t - shift)
    total = weights.sum(axis=-1, keepdims=True)
    if p.sink is not None:
        total = total + np.exp(p.sink[:, None, None] - shift)
    with np.errstate(divide="ignore"):
        lse = (shift + np.log(total))[..., 0]
    return weights @ p.v / np.where(total == 0, 1.0, total), lse
