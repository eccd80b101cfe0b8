"""Packed attention that autograd can differentiate, with the bundled Triton kernels both ways."""

from __future__ import annotations

from typing import Any

import torch

from tightrope.implementation import bundled
from tightrope.validate import refuse

Pair = tuple[torch.Tensor, torch.Tensor]
OPTIONS = ("softmax_scale", "causal", "q_offset", "window_size", "softcap", "validate")


class _Packed(torch.autograd.Function):
    """`attention_varlen`, whose lse has no gradient of its own. options: (name, value) pairs."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, starts: Pair, options: Any
    ) -> Pair:
        attend = bundled("attention_varlen", "triton").fn
        out, lse = attend(q, k, v, *starts, **dict(options))
        ctx.options = options
        ctx.save_for_backward(q, k, v, out, lse, *starts)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor, _: Any) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            refuse("create_graph", "False: attention_varlen has first gradients only", True)
        differentiate = bundled("attention_varlen_backward", "triton").fn
        return (*differentiate(dout, *ctx.saved_tensors, **dict(ctx.options)), None, None)


def attention_varlen(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor, **options: Any,
) -> Pair:  # fmt: skip
    """out and lse as the contract `attention_varlen` says, out differentiable, once, in q, k and v.

    q (tokens_q, num_heads, head_dim), k (tokens_k, num_kv_heads, head_dim), v (.., head_dim_v):
    float16, bfloat16 or float32; cu_seqlens (sequences + 1,) int32. options: softmax_scale, causal,
    q_offset, window_size, softcap and validate, as `tightrope.impls.attention_varlen` has them; a
    sink has no gradient, and is left out. The same gradients, bit for bit, every time. lse
    (num_heads, tokens_q) passes no gradient on. Raises as that kernel, TypeError for other options,
    and ValueError where a gradient is asked for with create_graph=True.
    """
    unknown = sorted(options.keys() - set(OPTIONS))
    if unknown:
        refuse("options", f"of {', '.join(OPTIONS)}", unknown, TypeError)
    given = tuple(options.items())
    found: Pair = _Packed.apply(q, k, v, (cu_seqlens_q, cu_seqlens_k), given)
    return found
