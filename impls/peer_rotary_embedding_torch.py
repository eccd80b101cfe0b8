"""PyPI's rotary-embedding-torch as peers of `rope` and `rope_table`, read in release 0.9.1.

Its rotation turns adjacent pairs and takes angles, of which it asks cos() and sin(): here it gets
an object that answers with the given table. Every product and the sum have the dtype that PyTorch
promotes q and the table to. Its table is position * theta^(-2i/rotary_dim) in float32, each entry
twice; rotary_dim = 2 ends in a ZeroDivisionError, so limits begin at 4. Without the package nothing
is registered; MISSING says why.
"""

from __future__ import annotations

from typing import Any

import torch

from tightrope import Arithmetic, implements
from tightrope.adapt import batched, full_width, half_width, rows, tokens

MISSING: str | None = None
try:
    from rotary_embedding_torch import RotaryEmbedding, apply_rotary_emb
except ImportError as error:
    MISSING = f"rotary-embedding-torch: {error}"


class _Angles:
    """What the library asks of a tensor of angles (tokens, 1, rotary_dim)."""

    def __init__(self, cos: torch.Tensor, sin: torch.Tensor) -> None:
        self.shape, self.ndim = cos.shape, cos.ndim
        self.cos, self.sin = (lambda: cos), (lambda: sin)


def rotate(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
    positions: torch.Tensor, *, interleaved: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """q (tokens, num_heads, head_dim), k (tokens, num_kv_heads, head_dim); new tensors."""
    angles = _Angles(*(full_width(rows(t, positions), True)[:, None] for t in (cos, sin)))
    turned = [tokens(apply_rotary_emb(angles, batched(x), seq_dim=1)) for x in (q, k)]
    return turned[0], turned[1]


def table(
    positions: torch.Tensor, *, rotary_dim: int, rope_theta: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, float32 (tokens, rotary_dim/2), of positions (tokens,)."""
    made = RotaryEmbedding(rotary_dim, theta=rope_theta).to(positions.device)
    angles = half_width(made(positions).detach(), True)
    return angles.cos(), angles.sin()


def _promise(case: Any, device: Any) -> Arithmetic:
    dtypes = (getattr(torch, name) for name in (case.dtype, case.table_dtype))
    wide = str(torch.promote_types(*dtypes)).removeprefix("torch.")
    return Arithmetic(table="given", product=wide, sum=wide, contraction="none")


if MISSING is None:
    implements(
        "rope", name="rotary-embedding-torch", arithmetic=_promise, interleaved=(True,),
        inplace=(False,), where=("out_dtype=input",),
    )(rotate)  # fmt: skip
    implements(
        "rope_table", name="rotary-embedding-torch", rope_scaling=("default",),
        rotary_dim=range(4, 513, 2),
    )(table)  # fmt: skip
