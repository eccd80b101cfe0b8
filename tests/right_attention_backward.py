"""Right gradients of attention in plain torch, whose steps can be exchanged for wrong ones.

Float32 products of upcast inputs in tiles of 16 queries and 16 keys, rounding by rounding as
"scaled" of `tightrope.oracles.attention_backward` says. tests/wrong_attention_backward.py puts the
mistakes in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tiled_attention import BLOCK, LOG2E, LOG2E_64, blocked, capped, fma, same, single, visible

from tightrope import Arithmetic


def to_dtype(x, dtype):
    return x.to(dtype).float()


def summed(x, group):
    """(batch, heads, keys, ..) added up over the query heads of each kv head."""
    return x.unflatten(1, (-1, group)).sum(2)


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Where a mistake may go; every default is right."""

    mask: Callable[..., Any] = visible
    heads: Callable[..., Any] = blocked
    reduce: Callable[..., Any] = summed
    base: Callable[..., Any] = lambda lse: lse * LOG2E
    empty: Callable[..., Any] = lambda lse: torch.where(torch.isinf(lse), 0, lse)
    hide: Callable[..., Any] = lambda p, seen: torch.where(seen, p, 0)
    d: Callable[..., Any] = lambda dout, out: (dout * out).sum(-1)
    upstream: Callable[..., Any] = same
    weights: Callable[..., Any] = to_dtype
    ds: Callable[..., Any] = to_dtype
    p_of_ds: Callable[..., Any] = lambda p, dtype: p
    slope: Callable[..., Any] = lambda tanh: 1 - tanh * tanh
    scales: Callable[..., Any] = lambda scale: (scale, scale)
    keep: Callable[..., Any] = lambda dq, dk, dv: (dq, dk, dv)
    rows: Callable[..., Any] = lambda length: range(0, length, BLOCK)
    keys: Callable[..., Any] = lambda length: range(0, length, BLOCK)
    emptied: bool = True
    unseen_are_zero: bool = True


def pair(q, k, lam, mask, scale, softcap, steps):
    """P of a tile, and the softcap's derivative."""
    s = q @ k.transpose(-1, -2)
    if softcap is None:
        x, g = fma(s, single(scale * LOG2E_64), -lam), 1.0
    else:
        tanh = capped(s * single(scale / softcap), 1.0)
        x, g = single(softcap) * tanh * LOG2E - lam, steps.slope(tanh)
    return steps.hide(torch.exp2(x), mask), g


def attention_backward(
    dout, q, k, v, out, lse, *, softmax_scale=None, causal=False, q_offset=0,
    window_size=(None, None), softcap=None, out_dtype=None, steps=None,
):  # fmt: skip
    """dq, dk and dv as the contract has them, with the mistakes of `steps`."""
    steps, scale = steps or Steps(), softmax_scale or q.shape[-1] ** -0.5
    seen = visible(q, k, causal, q_offset, window_size)
    if steps.unseen_are_zero:
        k, v = (torch.where(seen.any(1)[:, None, :, None], x, 0) for x in (k, v))
    seen = steps.mask(q, k, causal, q_offset, window_size)[:, None]
    dtype, group = q.dtype, q.shape[1] // k.shape[1]
    dout, q, out = dout.float(), q.float(), out.float()
    k, v = (steps.heads(x.float(), group) for x in (k, v))
    lam, d = steps.base(steps.empty(lse))[..., None], steps.d(dout, out)[..., None]
    total = [torch.zeros_like(x) for x in (q, k, v)]
    left = torch.zeros_like(q[:, :, :BLOCK])
    for row in steps.rows(q.shape[2]):
        at = slice(row, row + BLOCK)
        left = (torch.zeros_like(left) if steps.emptied else left)[:, :, : q[:, :, at].shape[2]]
        total[0][:, :, at] = left
        for key in steps.keys(k.shape[2]):
            to = slice(key, key + BLOCK)
            tile = q[:, :, at], k[:, :, to], lam[:, :, at], seen[..., at, to]
            p, g = pair(*tile, scale, softcap, steps)
            dp = steps.upstream(dout[:, :, at] @ v[:, :, to].transpose(-1, -2))
            ds = torch.where(tile[3], steps.p_of_ds(p, dtype) * (dp - d[:, :, at]) * g, 0)
            ds, p = steps.ds(ds, dtype), steps.weights(p, dtype)
            total[0][:, :, at] += ds @ tile[1]
            total[1][:, :, to] += ds.transpose(-1, -2) @ tile[0]
            total[2][:, :, to] += p.transpose(-1, -2) @ dout[:, :, at]
            total = list(steps.keep(*total))
        left = total[0][:, :, at]
    scales = [single(x) for x in steps.scales(scale)]
    dq, dk = total[0] * scales[0], steps.reduce(total[1], group) * scales[1]
    return [x.to(out_dtype or dtype) for x in (dq, dk, steps.reduce(total[2], group))]


def declared(case, device):
    """The steps above, for tensors that any matrix product may add up."""
    return Arithmetic(state="given", logits="scaled", heads="summed")
