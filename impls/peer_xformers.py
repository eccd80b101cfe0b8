"""xformers' attention as peers of `attention`, on a GPU; read in release 0.0.35.

Two of its operators: `cutlass`, which calls PyTorch's efficient kernel, and `split-k`, a Triton
kernel of its own, which takes no causal mask without a paged cache. Tensors are (batch, seqlen,
heads, head_dim); groups of heads are repeated here. Its causal mask is aligned at the top left.
lse is padded along the queries. MISSING says why nothing is registered.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from tightrope import implements
from tightrope.adapt import heads_first, on_gpu, seq_first

MISSING: str | None = None if on_gpu() else "xformers: its kernels need a GPU"
try:
    if MISSING is None:
        from xformers._cpp_lib import _built_with_cuda
        from xformers.ops import fmha

        if not _built_with_cuda:  # every operator refuses then
            MISSING = "xformers: its extension was built for another torch or Python"
except Exception as error:  # whatever a build for another torch raises
    MISSING = f"xformers: {type(error).__name__}: {error}"


def attention(
    operator: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *,
    softmax_scale: float | None = None, causal: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """out (batch, num_heads, seqlen_q, head_dim_v), lse (batch, num_heads, seqlen_q)."""
    group = q.shape[1] // k.shape[1]
    k, v = (x if group == 1 else x.repeat_interleave(group, dim=1) for x in (k, v))
    out, lse = fmha.memory_efficient_attention_forward_requires_grad(
        *map(seq_first, (q, k, v)),
        attn_bias=fmha.attn_bias.LowerTriangularMask() if causal else None,
        scale=softmax_scale,
        op=operator,
    )
    return heads_first(out), lse[..., : q.shape[2]]


def _register(name: str, operator: Any, **limits: Any) -> None:
    function: Any = partial(attention, operator)
    function.__name__, function.__module__ = name.replace("-", "_"), __name__
    implements(
        "attention", name=name, softcap=(None,), sink=(False,), bias=("none",),
        window_left=(None,), window_right=(None,), hidden=("finite",), empty_rows=(False,),
        offsets=("int",), batch=range(1, 1 << 16), seqlen_q=range(1, 1 << 21),
        seqlen_k=range(1, 1 << 21), head_dim_v=range(8, 257, 8),
        where=("out_dtype=input", "no_offset", "aligned16", *limits.pop("where", ())), **limits,
    )(function)  # fmt: skip


if MISSING is None:
    _register("xformers-cutlass", fmha.cutlass.FwOp, head_dim=range(8, 257, 8))
    _register(
        "xformers-split-k", fmha.triton_splitk.FwOp, head_dim=(16, 32, 64, 128),
        dtype=("float16", "bfloat16"), causal=(False,), where=("same_head_dim",),
    )  # fmt: skip
