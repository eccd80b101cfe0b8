"""fla-core's Triton rotation as a peer: both layouts, partial, in place; read in release 0.6.0.

It takes consecutive positions from an offset: here it gets the rows of the tokens, from offset 0,
in a table whose length is rounded up, since that length is compiled in. Tables have the dtype of q;
products and sums are float32, whether one is fused into the other is the compiler's choice. It is
tuned anew for each count of heads and head_dim, on a GPU only. MISSING says why nothing is
registered.
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from tightrope import Arithmetic, implements
from tightrope.adapt import batched, into, on_gpu, rows, tokens

MISSING: str | None = None if on_gpu() else "fla-core: its kernels are tuned on a GPU"
try:
    if MISSING is None:
        from fla.modules.rotary import rotary_embedding
except Exception as error:  # whatever a build for another torch raises
    MISSING = f"fla-core: {type(error).__name__}: {error}"

ROWS = 64  # of the shortest table


def fla(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
    positions: torch.Tensor, *, interleaved: bool, inplace: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """q (tokens, num_heads, head_dim), k (tokens, num_kv_heads, head_dim).

    It copies what is not contiguous and rotates the copy; in place, that copy is written back.
    """
    length = max(ROWS, 1 << (len(positions) - 1).bit_length()) if len(positions) else ROWS
    c, s = (pad(rows(t, positions), (0, 0, 0, length - len(positions))) for t in (cos, sin))
    q_out, k_out = (
        tokens(rotary_embedding(batched(x), c, s, interleaved=interleaved, inplace=inplace))
        for x in (q, k)
    )
    return (into(q, q_out), into(k, k_out)) if inplace else (q_out, k_out)


if MISSING is None:
    # Apart: the tuner runs the kernel again and again, and what it turns in place is turned often.
    for name, inplace in (("fla", False), ("fla-in-place", True)):
        implements(
            "rope", name=name, inplace=(inplace,), dtype=("float16", "bfloat16", "float32"),
            arithmetic=Arithmetic(
                table="given", product="float32", sum="float32", contraction="any"
            ),
            num_heads=(4,), num_kv_heads=(4,), head_dim=(64,), rotary_dim=(64, 32),
            where=("out_dtype=input", "same_dtype_table"),
        )(fla)  # fmt: skip
