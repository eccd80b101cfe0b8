"""FlashInfer as peers of `rope` and `attention`, where it is installed; read in release 0.7.4.

The rotation takes tokens with fused heads, one at least, and a float32 table, cos before sin. The
attention takes one sequence, (seqlen, heads, head_dim), causal at the bottom right; its lse is to
base 2 and is left out: what converts it would round it. MISSING says why nothing is registered.
"""

from __future__ import annotations

import torch

from tightrope import implements
from tightrope.adapt import fused_heads, split_heads

MISSING: str | None = None
try:
    from flashinfer import single_prefill_with_kv_cache
    from flashinfer.rope import apply_rope_with_cos_sin_cache
except Exception as error:  # whatever a build for another torch raises
    MISSING = f"flashinfer: {type(error).__name__}: {error}"


def rope(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
    positions: torch.Tensor, *, interleaved: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """q (tokens, num_heads, head_dim), k (tokens, num_kv_heads, head_dim); new tensors."""
    head_dim = q.shape[-1]
    turned = apply_rope_with_cos_sin_cache(
        positions, *(fused_heads(x.contiguous()) for x in (q, k)), head_dim,
        torch.cat((cos, sin), dim=-1), is_neox=not interleaved,
    )  # fmt: skip
    return split_heads(turned[0], head_dim), split_heads(turned[1], head_dim)


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, softmax_scale: float | None = None,
    causal: bool = False, q_offset: int = 0, softcap: float | None = None,
) -> torch.Tensor:  # fmt: skip
    """out (batch, num_heads, seqlen_q, head_dim); q_offset is seqlen_k - seqlen_q by limits."""
    outs = [
        single_prefill_with_kv_cache(
            *(x.transpose(0, 1).contiguous() for x in (one, keys, values)),
            causal=causal, sm_scale=softmax_scale, logits_soft_cap=softcap,
        ).transpose(0, 1)
        for one, keys, values in zip(q, k, v, strict=True)
    ]  # fmt: skip
    return torch.stack(outs)


if MISSING is None:
    implements(
        "rope", name="flashinfer", dtype=("float16", "bfloat16"), table_dtype=("float32",),
        inplace=(False,), head_dim=(64, 128), tokens=range(1, 1 << 17),
        where=("out_dtype=input",),
    )(rope)  # fmt: skip
    implements(
        "attention", name="flashinfer", returns=("out",), dtype=("float16", "bfloat16"),
        sink=(False,), bias=("none",), offsets=("int",), hidden=("finite",), empty_rows=(False,),
        window_left=(None,), window_right=(None,), head_dim=(64, 128), batch=range(1, 1 << 16),
        seqlen_q=range(1, 1 << 21), seqlen_k=range(1, 1 << 21),
        where=("out_dtype=input", "bottom_right", "same_head_dim"),
    )(attention)  # fmt: skip
