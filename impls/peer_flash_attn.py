"""Tri Dao's flash-attn, version 2, as a peer of `attention`, where it is installed.

Its tensors are (batch, seqlen, heads, head_dim); causal and windows are aligned at the bottom right
(since 2.1), an open side of a window is -1, softcap off is 0. Without the package nothing is
registered; MISSING says why.
"""

from __future__ import annotations

import torch

from tightrope import implements
from tightrope.adapt import heads_first, seq_first

MISSING: str | None = None
try:
    from flash_attn import flash_attn_func
except Exception as error:  # whatever a build for another torch raises
    MISSING = f"flash-attn: {type(error).__name__}: {error}"


def flash_attn(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, softmax_scale: float | None = None,
    causal: bool = False, q_offset: int = 0,
    window_size: tuple[int | None, int | None] = (None, None), softcap: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """out (batch, num_heads, seqlen_q, head_dim), lse (batch, num_heads, seqlen_q).

    q_offset is seqlen_k - seqlen_q, as the limits say: what the library does without being told.
    """
    left, right = (-1 if side is None else side for side in window_size)
    out, lse, _ = flash_attn_func(
        *map(seq_first, (q, k, v)), softmax_scale=softmax_scale, causal=causal,
        window_size=(left, right), softcap=softcap or 0.0, return_attn_probs=True,
    )  # fmt: skip
    return heads_first(out), lse


if MISSING is None:
    implements(
        "attention", name="flash-attn", dtype=("float16", "bfloat16"), sink=(False,),
        bias=("none",), offsets=("int",), hidden=("finite",), empty_rows=(False,),
        head_dim=range(8, 257, 8),
        where=("out_dtype=input", "bottom_right", "same_head_dim", "aligned16"),
    )(flash_attn)  # fmt: skip
