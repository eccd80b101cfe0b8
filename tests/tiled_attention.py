"""Right attention in plain torch, whose steps can be exchanged for wrong ones.

Float32 products of upcast inputs and online softmax in tiles of 16 keys, step by step and rounding
by rounding as the bundled kernels do it. tests/wrong_attention*.py put the mistakes in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tightrope import Arithmetic

DTYPES = ("float16", "bfloat16")
BLOCK = 16
LOWEST = float("-inf")
LOG2E_64 = 1.4426950408889634


def single(x):
    """A number rounded once to float32."""
    return torch.tensor(x, dtype=torch.float32).item()


LOG2E, LN2 = single(LOG2E_64), single(0.6931471805599453)


def same(x):
    return x


def fma(a, b, c):
    """a b + c rounded once to float32: exact product, sum rounded to odd in float64 (Boldo and
    Melquiond 2008), which no second rounding can spoil.
    """
    x, y = a.double() * b, c.double().expand(a.shape)
    total = x + y
    part = total - x
    lost = (x - (total - part)) + (y - part)
    bits = total.view(torch.int64)
    odd = bits + torch.where((lost > 0) == (total > 0), 1, -1)
    return torch.where((lost != 0) & (bits % 2 == 0), odd, bits).view(torch.float64).float()


def capped(z, softcap):
    """cap tanh, from fl(z / cap): tanh = 1 - 2/(exp2(2 log2(e) z) + 1)."""
    return single(softcap) * (1 - 2 / (torch.exp2(z * single(2 * LOG2E_64)) + 1))


def general(s, scale, softcap, bias):
    """Natural logits of scores with a softcap or a bias."""
    z = s * single(scale) if softcap is None else capped(s * single(scale / softcap), softcap)
    return z if bias is None else z + bias


def blocked(x, group):
    """Head h reads kv head h // group."""
    return x.repeat_interleave(group, 1)


def finish(acc, l, m, late):
    """out before its last rounding, and lse; late: m before the last tile."""
    return acc / torch.where(l == 0, 1, l)[..., None], (m + torch.log2(l)) * LN2


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Where a mistake may go; every default is right."""

    heads: Callable[..., Any] = blocked
    scores: Callable[..., Any] = same
    logits: Callable[..., Any] = general
    hidden: float = LOWEST
    first: float = LOWEST
    shift: Callable[..., Any] = lambda m: torch.where(m == LOWEST, 0, m)
    weights: Callable[..., Any] = lambda p, dtype: p.to(dtype).float()
    summed: Callable[..., Any] = lambda p, dtype: p
    alpha_of_acc: Callable[..., Any] = same
    alpha_of_l: Callable[..., Any] = same
    keep: Callable[..., Any] = lambda acc, l: acc
    unseen_are_zero: bool = True
    finish: Callable[..., Any] = finish


def visible(q, k, causal, q_offset, window_size):
    """(batch, seqlen_q, seqlen_k): which keys a row sees by its index."""
    offset = torch.as_tensor(q_offset, device=q.device).reshape(-1, 1, 1)
    row = torch.arange(q.shape[2], device=q.device)[:, None] + offset
    key = torch.arange(k.shape[2], device=q.device)
    left, right = window_size
    seen = torch.ones(q.shape[0], q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
    seen = seen & (key <= row) if causal else seen
    seen = seen if left is None else seen & (key >= row - left)
    return seen if right is None else seen & (key <= row + right)


def attention(
    q, k, v, *, softmax_scale=None, causal=False, q_offset=0, window_size=(None, None),
    softcap=None, bias=None, sink=None, out_dtype=None, steps=None,
):  # fmt: skip
    """out and lse as the contract `attention` has them, with the mistakes of `steps`."""
    steps, scale = steps or Steps(), softmax_scale or q.shape[-1] ** -0.5
    seen = visible(q, k, causal, q_offset, window_size)
    if steps.unseen_are_zero:
        k, v = (torch.where(seen.any(1)[:, None, :, None], x, 0) for x in (k, v))
    seen = seen[:, None]
    if bias is not None:
        bias = bias.float().expand(*q.shape[:3], k.shape[2])
        seen = seen & (bias > LOWEST)
    dtype, group = q.dtype, q.shape[1] // k.shape[1]
    q, k, v = q.float(), *(steps.heads(x.float(), group) for x in (k, v))
    m = late = torch.full(q.shape[:3], steps.first, device=q.device)
    l = torch.zeros_like(m)
    if sink is not None:
        m, l = (sink.float() * LOG2E)[:, None].expand(m.shape), l + 1
    acc = torch.zeros(*q.shape[:3], v.shape[-1], device=q.device)
    for first in range(0, k.shape[2], BLOCK):
        tile = slice(first, first + BLOCK)
        s = steps.scores(q @ k[:, :, tile].transpose(-1, -2))
        mask = seen[..., tile]
        late, (p, alpha, m) = m, weigh(s, mask, m, scale, softcap, bias, tile, steps)
        l = l * steps.alpha_of_l(alpha) + steps.summed(p, dtype).sum(-1)
        acc = acc * steps.alpha_of_acc(alpha)[..., None]
        acc = steps.keep(acc + steps.weights(p, dtype) @ v[:, :, tile], l)
    out, lse = steps.finish(acc, l, m, late)
    return out.to(out_dtype or dtype), lse


def weigh(s, mask, m, scale, softcap, bias, tile, steps):
    """Weights of a tile, the rescale of what came before, and the new maximum."""
    if softcap is None and bias is None:
        c = single(scale * LOG2E_64)
        s = torch.where(mask, s, steps.hidden)
        m_new = torch.maximum(m, (s * c).amax(-1))
        shift = steps.shift(m_new)
        x = torch.where(s == LOWEST, LOWEST, fma(s, c, -shift[..., None]))
    else:
        z = steps.logits(s, scale, softcap, None if bias is None else bias[..., tile])
        t = torch.where(mask, z * LOG2E, steps.hidden)
        m_new = torch.maximum(m, t.amax(-1))
        shift = steps.shift(m_new)
        x = t - shift[..., None]
    return torch.exp2(x), torch.exp2(m - shift), m_new


def declared(case, device):
    """The schedule above, for tensors that any matrix product may add up."""
    return Arithmetic(logits="scaled", block_k=BLOCK, lse="base2", sink="start")


def with_strides(x, strides):
    """x as a kernel reads it that was given these strides, kept within its memory."""
    extent = 1 + sum((n - 1) * t for n, t in zip(x.shape, x.stride(), strict=True))
    if not x.numel():
        return x
    at = sum(
        (torch.arange(n, device=x.device) * t).reshape(-1, *[1] * (x.ndim - 1 - axis))
        for axis, (n, t) in enumerate(zip(x.shape, strides, strict=True))
    )
    return torch.as_strided(x, (extent,), (1,))[at % extent]
