"""What an adapter needs to speak another layout: one call a tensor.

Views wherever strides can say it, so that a kernel sees the strides of the case; what copies says
so. Inverses come in pairs. Raises ValueError for a tensor of the wrong rank or an axis that does
not divide.

| a kernel wants | adapter |
|---|---|
| (batch, seqlen, heads, head_dim) | `heads_first(kernel(*map(seq_first, (q, k, v))))` |
| q, k and v in one tensor | `kernel(packed_qkv(q, k, v))` |
| cos and sin as wide as the rotation | `kernel(q, k, full_width(cos), full_width(sin))` |
| a row of the table for each token | `kernel(q, k, rows(cos, positions), rows(sin, positions))` |
| (batch, seqlen) tokens, and positions | `tokens(kernel(batched(q), batched(positions)))` |
| to turn a copy of what has gaps | `into(q, kernel(q.contiguous()))`, in place |
| (tokens, heads * head_dim) | `split_heads(kernel(fused_heads(q)), head_dim)` |
"""

from __future__ import annotations

import os

import torch

Tensor = torch.Tensor


def on_gpu() -> bool:
    """Whether kernels of this process run on a GPU: asked by adapters of what runs nowhere else."""
    return os.environ.get("TIGHTROPE_DEVICE") != "cpu" and torch.cuda.is_available()


def _rank(name: str, x: Tensor, *ranks: int) -> None:
    if x.ndim not in ranks:
        wanted = " or ".join(map(str, ranks))
        raise ValueError(f"{name}: expected {wanted} axes, got {x.ndim}: {list(x.shape)}")


def seq_first(x: Tensor) -> Tensor:
    """(batch, heads, seqlen, head_dim) as (batch, seqlen, heads, head_dim); a view."""
    _rank("seq_first(x)", x, 4)
    return x.transpose(1, 2)


def heads_first(x: Tensor) -> Tensor:
    """(batch, seqlen, heads, head_dim) as (batch, heads, seqlen, head_dim); a view."""
    _rank("heads_first(x)", x, 4)
    return x.transpose(1, 2)


def packed_qkv(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Three of (..., heads, head_dim) as one (..., 3, heads, head_dim); a copy.

    Raises ValueError for shapes that differ: limits then say `equal_heads` and `same_head_dim`.
    """
    if not q.shape == k.shape == v.shape:
        shapes = ", ".join(str(list(x.shape)) for x in (q, k, v))
        raise ValueError(f"packed_qkv(q, k, v): expected three equal shapes, got {shapes}")
    return torch.stack((q, k, v), dim=-3)


def unpacked_qkv(qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(..., 3, heads, head_dim) as q, k and v; views."""
    if qkv.ndim < 3 or qkv.shape[-3] != 3:
        raise ValueError(f"unpacked_qkv(qkv): expected 3 at axis -3, got {list(qkv.shape)}")
    q, k, v = qkv.unbind(-3)
    return q, k, v


def full_width(table: Tensor, interleaved: bool = False) -> Tensor:
    """(rows, rotary_dim/2) as (rows, rotary_dim), each entry twice; a copy.

    The halves one after the other, as Llama's code wants them; interleaved: side by side (GPT-J).
    """
    _rank("full_width(table)", table, 2, 3)
    if interleaved:
        return table.repeat_interleave(2, dim=-1)
    return torch.cat((table, table), dim=-1)


def half_width(table: Tensor, interleaved: bool = False) -> Tensor:
    """The inverse of `full_width`, for a kernel that makes such a table; a view."""
    if table.shape[-1] % 2:
        raise ValueError(f"half_width(table): expected an even width, got {list(table.shape)}")
    return table[..., ::2] if interleaved else table[..., : table.shape[-1] // 2]


def rows(table: Tensor, positions: Tensor) -> Tensor:
    """The table's row of each token: (rows, width) at positions (...) is (..., width); a copy."""
    _rank("rows(table)", table, 2)
    return table[positions.long()]


def batched(x: Tensor, batch: int = 1) -> Tensor:
    """(tokens, ...) as (batch, tokens / batch, ...), positions too; a view."""
    if x.shape[0] % batch:
        raise ValueError(f"batched(x): expected a multiple of {batch} tokens, got {x.shape[0]}")
    return x.unflatten(0, (batch, x.shape[0] // batch))


def tokens(x: Tensor) -> Tensor:
    """(batch, seqlen, ...) as (batch * seqlen, ...); a view of what is contiguous there."""
    _rank("tokens(x)", x, 2, 3, 4)
    return x.flatten(0, 1)


def fused_heads(x: Tensor) -> Tensor:
    """(..., heads, head_dim) as (..., heads * head_dim); a view where heads follow one another."""
    _rank("fused_heads(x)", x, 3, 4)
    return x.flatten(-2)


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """(..., heads * head_dim) as (..., heads, head_dim); a view."""
    if x.shape[-1] % head_dim:
        raise ValueError(
            f"split_heads(x): expected a multiple of {head_dim} features, got {x.shape[-1]}"
        )
    return x.unflatten(-1, (x.shape[-1] // head_dim, head_dim))


def into(x: Tensor, out: Tensor) -> Tensor:
    """x itself, holding what a kernel made of it; copied where that lies elsewhere."""
    return x if out.data_ptr() == x.data_ptr() else x.copy_(out)
