"""Ring attention that autograd can differentiate, rank by rank, for training."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from tightrope.validate import refuse

Pair = tuple[torch.Tensor, torch.Tensor]


def _of_a_rank(name: str) -> Any:
    """What a rank calls; the registered function of that contract runs all ranks."""
    return getattr(import_module(f"tightrope.impls.{name}"), name)


class _Ring(torch.autograd.Function):
    """Ring attention of this rank's shards, whose lse has no gradient of its own."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group: Any,
        options: dict[str, Any],
    ) -> Pair:  # fmt: skip
        out, lse = _of_a_rank("ring_attention")(q, k, v, group, **options)
        ctx.mark_non_differentiable(lse)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.group, ctx.options = group, options
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor, _: Any) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            refuse("create_graph", "False: ring_attention has first gradients only", True)
        differentiate = _of_a_rank("ring_attention_backward")
        return (*differentiate(dout, *ctx.saved_tensors, ctx.group, **ctx.options), None, None)


def ring_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group: Any = None, **options: Any
) -> Pair:
    """This rank's out and lse, out differentiable, once, in q, k and v; all ranks call it.

    Shards and options (seqlen_q, seqlen_k, scheme, partial_dtype, softmax_scale, causal, q_offset,
    window_size, softcap) as in `tightrope.impls.ring_attention.ring_attention`; out is of q's
    dtype. Ranks meet again in the backward pass: it runs on all of them or hangs, and k and v of a
    rank receive what the rows of every rank add to them. lse passes no gradient on. Raises as
    `ring_attention` and `ring_attention_backward`, and ValueError where a gradient is asked for
    with create_graph=True.
    """
    if options.get("out_dtype") is not None:
        refuse("out_dtype", "None: the backward pass takes out in q's dtype", options["out_dtype"])
    found: Pair = _Ring.apply(q, k, v, group, options)
    return found
