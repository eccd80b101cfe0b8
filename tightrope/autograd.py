"""Bundled kernels that autograd can differentiate: `rope`, `attention` and `pope_attention`.

Their forward and backward passes are the bundled Triton kernels of these contracts and of their
`_backward` ones, under the same names and options.
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
    """An attention, named by its contract, whose lse has no gradient of its own.

    tensors: q, k, v and, of pope_attention, inv_freq, delta and both positions.
    """

    @staticmethod
    def forward(ctx: Any, name: str, options: dict[str, Any], *tensors: Any) -> Pair:
        found: Pair = bundled(name, "triton").fn(*tensors, **options)
        out, lse = found
        ctx.mark_non_differentiable(lse)
        ctx.save_for_backward(*tensors, out, lse)
        ctx.name, ctx.options = name, options
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor, _: Any) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            refuse("create_graph", f"False: {ctx.name} has first gradients only", True)
        differentiate = bundled(f"{ctx.name}_backward", "triton").fn
        q, k, v, *angles, out, lse = ctx.saved_tensors
        dq, dk, dv, *phases = differentiate(dout, q, k, v, out, lse, *angles, **ctx.options)
        turns = (None, *phases, None, None) if angles else ()  # of inv_freq, delta, positions
        return (None, None, dq, dk, dv, *turns)


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
    found: Pair = _Attention.apply("attention", options, q, k, v)
    return found


def pope_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, inv_freq: torch.Tensor,
    delta: torch.Tensor | None, q_positions: torch.Tensor, k_positions: torch.Tensor,
    **options: Any,
) -> Pair:  # fmt: skip
    """out and lse as the contract `pope_attention` says, out differentiable, once.

    Gradients: of q (batch, num_heads, seqlen_q, head_dim), k (batch, num_kv_heads, seqlen_k,
    head_dim) and v (..., head_dim_v), float16, bfloat16 or float32, and of delta, None or float32
    (num_kv_heads or num_heads, rotary_dim); the same bits every time. Frequencies inv_freq
    (rotary_dim,) and positions get none, nor is one asked of lse (batch, num_heads, seqlen_q).
    options: `attention`'s. Raises as `tightrope.impls.pope_attention`, TypeError for other options,
    and ValueError for inv_freq or positions that want a gradient and for create_graph=True.
    """
    _check_constant(inv_freq=inv_freq, q_positions=q_positions, k_positions=k_positions)
    unknown = options.keys() - {"softmax_scale", "causal", "q_offset", "window_size", "softcap"}
    if unknown:
        refuse("options", "those of tightrope.autograd.attention", sorted(unknown), TypeError)
    given = (q, k, v, inv_freq, delta, q_positions, k_positions)
    found: Pair = _Attention.apply("pope_attention", options, *given)
    return found
