"""Tensors for small calls of PoPE kernels, and the formula in float64 that they are held to."""

from __future__ import annotations

from typing import Any

import torch
from attention_calls import HOME, drawn, same

Tensors = dict[str, Any]


def frequencies(rotary_dim: int, sign: int = -1, dtype: str = "float32") -> torch.Tensor:
    found = 10000.0 ** (sign * torch.arange(rotary_dim, dtype=torch.float64) / rotary_dim)
    return found.to(getattr(torch, dtype)).to(HOME)


def phases(heads: int, rotary_dim: int) -> torch.Tensor:
    """delta (heads, rotary_dim), clamped as in training."""
    gen = torch.Generator().manual_seed(heads + rotary_dim)
    return (-6.28 * torch.rand(heads, rotary_dim, generator=gen)).to(HOME)


def polar(
    rotary_dim: int = 16, delta: int | None = None, start: int = 0, per_batch: bool = False,
    inv_freq: str = "float32", **shape: Any,
) -> Tensors:  # fmt: skip
    """Arguments of pope_attention; delta: heads that have one; start: the first position."""
    q, k, v = drawn(**{"batch": 2, "num_kv_heads": 2, "num_heads": 4, **shape})
    found = {
        f"{name}_positions": torch.arange(x.shape[2], device=HOME) + start
        for name, x in (("q", q), ("k", k))
    }
    if per_batch:
        found = {n: x + 100 * torch.arange(len(q), device=HOME)[:, None] for n, x in found.items()}
    return {
        "q": q, "k": k, "v": v, "inv_freq": frequencies(rotary_dim, dtype=inv_freq),
        "delta": None if delta is None else phases(delta, rotary_dim), **found,
    }  # fmt: skip


def points(x: torch.Tensor, tensors: Tensors, name: str) -> torch.Tensor:
    """(batch, heads, seqlen, rotary_dim) of complex128: softplus(x) at the exact angles' cos, sin.

    Positions and frequencies are small enough here for float64 products.
    """
    polar_dim = tensors["inv_freq"].shape[0]
    at = tensors[f"{name}_positions"].double()
    angle = (at if at.ndim == 2 else at[None])[:, None, :, None] * tensors["inv_freq"].double()
    x = x[..., :polar_dim].double()
    size = x.clamp(min=0) + (-x.abs()).exp().log1p()
    return torch.polar(size, angle.expand(size.shape))


def scores(tensors: Tensors) -> torch.Tensor:
    """(batch, num_heads, seqlen_q, seqlen_k) in float64, not scaled: eq. 5 as printed."""
    q, k, polar_dim = tensors["q"], tensors["k"], tensors["inv_freq"].shape[0]
    group = q.shape[1] // k.shape[1]
    k_points = points(k, tensors, "k").repeat_interleave(group, 1)
    delta = tensors["delta"]
    if delta is not None:
        each = delta.double().repeat_interleave(q.shape[1] // delta.shape[0], 0)
        k_points = k_points * torch.polar(torch.ones_like(each), each)[:, None, :]
    plain = k[..., polar_dim:].double().repeat_interleave(group, 1)
    turned = (points(q, tensors, "q").conj() @ k_points.mT).real
    return turned + q[..., polar_dim:].double() @ plain.mT


def alike(found: Any, expected: Any, keys: int) -> bool:
    """The same bits on the interpreter; on a GPU but for the order in which `tl.sum` adds P.

    There the layout of the scores decides it, which differs between kernels. Two orders of `keys`
    terms >= 0 differ by at most e = 2 (keys - 1) 2^-24 of the sum: so does out, whose quotient is
    within 2 ulp, that is 2^-22, and may then round to the number beside it; lse by e and 4 ulp.
    """
    if HOME == "cpu":
        return same(found, expected)
    (out, lse), (other, level) = found, expected
    finite, e = level.isfinite(), 2 * max(keys - 1, 0) * 2.0**-24
    x, y = out.double(), other.double()
    next_to = torch.finfo(out.dtype).eps * y.abs() + torch.finfo(out.dtype).tiny
    near = (x - y).abs() <= (e + 2.0**-21) * y.abs() + next_to
    off = (lse - level)[finite].abs()
    return bool(
        near.all()
        and same([lse[~finite]], [level[~finite]])
        and (off <= e + 2.0**-21 * level[finite].abs()).all()
    )
