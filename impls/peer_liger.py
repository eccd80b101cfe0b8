"""Liger-Kernel's Triton rotation as a peer: half-split, in place, rotation in the table's dtype.

The kernel (liger_kernel/ops/rope.py) converts q and k to the dtype of sin and leaves it to the
compiler whether a product is fused into the sum. It takes rows of cos and sin, one a token, not
positions, and reads their first half. Without the package nothing is registered; MISSING says why.
"""

from __future__ import annotations

import torch

from tightrope import Arithmetic, implements
from tightrope.adapt import full_width, into, rows

MISSING: str | None = None
try:
    from liger_kernel.ops.rope import LigerRopeFunction
except ImportError as error:
    MISSING = f"liger-kernel: {error}"


def liger(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    *,
    interleaved: bool = False,
    inplace: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate q (tokens, num_heads, head_dim) and k (tokens, num_kv_heads, head_dim).

    Liger copies what is not contiguous and rotates the copy; in place, that copy is written back.
    """
    wide = [full_width(rows(t, positions)).unsqueeze(0) for t in (cos, sin)]
    given = (q, k) if inplace else (q.clone(), k.clone())
    rotated = LigerRopeFunction.apply(*(x.unsqueeze(0).transpose(1, 2) for x in given), *wide)
    q_out, k_out = (r.transpose(1, 2).squeeze(0) for r in rotated)
    return (into(q, q_out), into(k, k_out)) if inplace else (q_out, k_out)


if MISSING is None:
    implements(
        "rope",
        name="liger",
        arithmetic=Arithmetic(table="given", product="float32", sum="float32", contraction="any"),
        dtype=("float16", "bfloat16", "float32"),
        table_dtype=("float32",),
        interleaved=(False,),
        # Its kernel is compiled anew for each count of heads and head_dim; a few must do.
        num_heads=(4,),
        head_dim=(64, 128),
        where=("out_dtype=input",),
    )(liger)
