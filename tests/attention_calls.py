"""Tensors for small calls of attention kernels, and what such calls are compared by."""

from __future__ import annotations

from typing import Any

import torch

from tightrope.device import current

HOME = current().kind


def normal(*shape: int, dtype: str = "float16", seed: int = 0) -> torch.Tensor:
    gen = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=gen).to(getattr(torch, dtype)).to(HOME)


def drawn(
    batch: int = 1, num_heads: int = 2, num_kv_heads: int = 1, seqlen_q: int = 20,
    seqlen_k: int = 37, head_dim: int = 16, head_dim_v: int = 16, dtype: str = "float16",
) -> list[torch.Tensor]:  # fmt: skip
    q = normal(batch, num_heads, seqlen_q, head_dim, dtype=dtype)
    k = normal(batch, num_kv_heads, seqlen_k, head_dim, dtype=dtype, seed=1)
    return [q, k, normal(batch, num_kv_heads, seqlen_k, head_dim_v, dtype=dtype, seed=2)]


def same(a: Any, b: Any) -> bool:
    """All outputs, byte for byte."""
    return all(
        x.shape == y.shape and x.dtype == y.dtype
        and torch.equal(x.contiguous().view(torch.uint8), y.contiguous().view(torch.uint8))
        for x, y in zip(a, b, strict=True)
    )  # fmt: skip


def seen(m: int, n: int, offset: int, left: int | None, right: int | None) -> torch.Tensor:
    row, key = torch.arange(m)[:, None] + offset, torch.arange(n)[None, :]
    low = torch.ones(m, n, dtype=torch.bool) if left is None else key >= row - left
    return low & (key <= row + right if right is not None else low)
