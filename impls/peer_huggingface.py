"""Hugging Face's rotations as peers: Llama's (half-split) and GPT-J's (adjacent pairs), in torch.

Both models cast cos and sin to the activations' dtype before they rotate, so that every product
and the sum are rounded to it (transformers: models/llama/modeling_llama.py, gptj/modeling_gptj.py).
Without the package nothing is registered, and MISSING says why.
"""

from __future__ import annotations

import torch

from tightrope import Arithmetic, implements
from tightrope.adapt import full_width, rows

MISSING: str | None = None
try:
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as rotate_pairs
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as rotate_halves
except ImportError as error:
    MISSING = f"transformers: {error}"

_ROUNDS = Arithmetic(table="input", product="input", sum="input", contraction="none")


def _with_tail(rotated: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Rotated first features and the rest of x, put together as both model files do."""
    return torch.cat((rotated, x[..., rotated.shape[-1] :]), dim=-1)


def huggingface(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    *,
    interleaved: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Llama's rotation, q (tokens, num_heads, head_dim), k (tokens, num_kv_heads, head_dim)."""
    c, s = (full_width(rows(t, positions).to(q.dtype)) for t in (cos, sin))
    first = (x[..., : c.shape[-1]] for x in (q, k))
    q_first, k_first = rotate_halves(*first, c, s, unsqueeze_dim=1)
    return _with_tail(q_first, q), _with_tail(k_first, k)


def gptj(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    *,
    interleaved: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """GPT-J's rotation, q (tokens, num_heads, head_dim), k (tokens, num_kv_heads, head_dim)."""
    c, s = (rows(t, positions).to(q.dtype).unsqueeze(0) for t in (cos, sin))
    first = (x[None, ..., : 2 * c.shape[-1]] for x in (q, k))
    q_first, k_first = (rotate_pairs(x, s, c).squeeze(0) for x in first)
    return _with_tail(q_first, q), _with_tail(k_first, k)


if MISSING is None:
    for function, layout in ((huggingface, False), (gptj, True)):
        implements(
            "rope",
            name=function.__name__,
            arithmetic=_ROUNDS,
            interleaved=(layout,),
            inplace=(False,),
            where=("out_dtype=input",),
        )(function)
