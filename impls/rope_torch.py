"""The plain-torch twin of `rope`: the same roundings, in tensor operations, on any device."""

from __future__ import annotations

from typing import Any

import torch

from tightrope import Arithmetic, implements
from tightrope.validate import check_disjoint, check_rope, check_rows


def _promise(case: Any, device: Any) -> Arithmetic:
    wide = "float64" if case.dtype == "float64" else "float32"
    return Arithmetic(table="given", product=wide, sum=wide, contraction="none")


def _rotate(
    x: torch.Tensor, c: torch.Tensor, s: torch.Tensor, interleaved: bool, out: torch.Tensor
) -> None:
    """Write x (tokens, heads, head_dim), turned by c and s (tokens, 1, rotary_dim/2), into out."""
    half = c.shape[-1]
    first = slice(0, 2 * half, 2) if interleaved else slice(0, half)
    second = slice(1, 2 * half, 2) if interleaved else slice(half, 2 * half)
    a, b = x[..., first].to(c.dtype), x[..., second].to(c.dtype)
    # Both results exist before either is stored, since out may be x.
    a_out, b_out = a * c - b * s, b * c + a * s
    out[..., first] = a_out
    out[..., second] = b_out
    if out is not x:
        out[..., 2 * half :] = x[..., 2 * half :]


@implements("rope", name="torch", arithmetic=_promise)
def rope(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    *,
    interleaved: bool,
    inplace: bool = False,
    out_dtype: torch.dtype | None = None,
    validate: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate q (tokens, num_heads, head_dim) and k (tokens, num_kv_heads, head_dim); any strides.

    Shapes, dtypes and errors as `tightrope.validate.check_rope` says; products and sum in float32
    (float64 for float64 q), each rounded once. Positions outside the table raise IndexError on the
    CPU or with validate=True. inplace returns q and k themselves.
    """
    check_rope(
        q, k, cos, sin, positions, interleaved=interleaved, inplace=inplace, out_dtype=out_dtype
    )
    if validate or positions.device.type == "cpu":
        check_rows(positions, cos.shape[0])
    if inplace:
        check_disjoint("q and k", q, k)
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    c, s = (t[positions.long()].to(wide).unsqueeze(1) for t in (cos, sin))
    outs = []
    for x in (q, k):
        out = x if inplace else torch.empty(x.shape, dtype=out_dtype or x.dtype, device=x.device)
        _rotate(x, c, s, interleaved, out)
        outs.append(out)
    return outs[0], outs[1]
