"""Bundled kernels that autograd can differentiate: `rope` and `attention`, for training.

Their forward and backward passes are the bundled Triton kernels of `rope`, `rope_backward`,
`attention` and `attention_backward`, under the same names and options, one launch or three.
"""

from __future__ import annotations

from typing import Any

import torch

from tightrope.implementation import bundled
from tightrope.validate import refuse

Pair = tuple[torch.Tensor, torch.Tensor]


class _Rope(torch.autograd.Function):
    """A rotation or its transpose: the gradient of either is the other, to any order."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
        positions: torch.Tensor, interleaved: bool, transposed: bool,
    ) -> Pair:  # fmt: skip
        ctx.save_for_backward(cos, sin, positions)
        ctx.flags = interleaved, transposed
        turn = bundled("rope_backward" if transposed else "rope", "triton").fn
        turned: Pair = turn(q, k, cos, sin, positions, interleaved=interleaved)
        return turned

    @staticmethod
    def backward(ctx: Any, dq: torch.Tensor, dk: torch.Tensor) -> tuple[Any, ...]:
        interleaved, transposed = ctx.flags
        turned = _Rope.apply(dq, dk, *ctx.saved_tensors, interleaved, not transposed)
        return (*turned, None, None, None, None, None)


class _Attention(torch.autograd.Function):
    """attention, whose lse has no gradient of its own."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]
    ) -> Pair:
        found: Pair = bundled("attention", "triton").fn(q, k, v, **options)
        out, lse = found
        ctx.mark_non_differentiable(lse)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.options = options
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor, _: Any) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            refuse("create_graph", "False: attention has first gradients only", True)
        differentiate = bundled("attention_backward", "triton").fn
        return (*differentiate(dout, *ctx.saved_tensors, **ctx.options), None)


def _check_constant(**tensors: Any) -> None:
    """Refuse tensors that want a gradient that no kernel gives. Raises ValueError."""
    for name, tensor in tensors.items():
        if getattr(tensor, "requires_grad", False):
            refuse(f"{name}.requires_grad", "False: it gets no gradient", True)


def rope(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
    positions: torch.Tensor, *, interleaved: bool,
) -> Pair:  # fmt: skip
    """q and k rotated as the contract `rope` says, differentiable in q and k, to any order.

    q (tokens, num_heads, head_dim), k (tokens, num_kv_heads, head_dim): float16, bfloat16, float32
    or float64; cos, sin (rows, rotary_dim/2) and positions (tokens,), without gradients.
    Raises as `validate.check_rope`; ValueError for a table that requires one.
    """
    _check_constant(cos=cos, sin=sin)
    turned: Pair = _Rope.apply(q, k, cos, sin, positions, interleaved, False)
    return turned


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, softmax_scale: float | None = None,
    causal: bool = False, q_offset: int | torch.Tensor = 0,
    window_size: tuple[int | None, int | None] | None = (None, None), softcap: float | None = None,
) -> Pair:  # fmt: skip
    """out and lse as the contract `attention` says, out differentiable, once, in q, k and v.

    q (batch, num_heads, seqlen_q, head_dim), k (batch, num_kv_heads, seqlen_k, head_dim), v
    (..., head_dim_v): float16, bfloat16 or float32. The same gradients, bit for bit, every time.
    lse (batch, num_heads, seqlen_q) passes no gradient on; bias and sinks have none, and are left
    out. Raises as `validate_attention.check_attention`, and ValueError where a gradient is asked
    for with create_graph=True.
    """
    options = {
        "softmax_scale": softmax_scale, "causal": causal, "q_offset": q_offset,
        "window_size": window_size, "softcap": softcap,
    }  # fmt: skip
    found: Pair = _Attention.apply(q, k, v, options)
    return found
