"""Refusing bad input to attention's gradients: metadata alone, as in `tightrope.validate`."""

from __future__ import annotations

from typing import Any

from tightrope.validate import check_device, check_tensor, dtype_name, refuse
from tightrope.validate_attention import check_attention, check_blocks

TILE = ("OWN", "WALKED")


def check_tiles(blocks: Any) -> None:
    """Refuse what is no pair of tiles (keys, queries) of OWN, WALKED, num_warps and num_stages.

    Raises: TypeError (types), ValueError (numbers that no kernel can be built for). None passes.
    """
    if blocks is None:
        return
    expected = f"None or (keys, queries), each ({', '.join(TILE)}, num_warps, num_stages)"
    if not isinstance(blocks, tuple) or not all(isinstance(tile, tuple) for tile in blocks):
        refuse("blocks", expected, repr(blocks), TypeError)
    if len(blocks) != 2:
        refuse("blocks", expected, blocks)
    for tile in blocks:
        check_blocks(tile, TILE)


def check_attention_backward(
    dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, **options: Any
) -> None:
    """Refuse what the contract `attention_backward` excludes, from metadata alone.

    options: softmax_scale, causal, q_offset, window_size, softcap and out_dtype, as `attention`'s;
    bias and sink None.
    Raises: TypeError (types, dtypes), ValueError (shapes, devices, values of options).
    """
    check_attention(q, k, v, **options)
    rows, dtype = tuple(q.shape[:3]), (dtype_name(q),)
    axes = ("batch", "num_heads", "seqlen_q")
    for name, x in (("dout", dout), ("out", out)):
        check_tensor(name, x, (*axes, "head_dim_v"), dtype)
        if tuple(x.shape) != (*rows, v.shape[3]):
            expected = f"{(*rows, v.shape[3])}, rows of q and features of v"
            refuse(f"{name}.shape", expected, tuple(x.shape))
        check_device(name, x, q.device)
    check_tensor("lse", lse, axes, ("float32",))
    if tuple(lse.shape) != rows:
        refuse("lse.shape", f"{rows}, one a row of q", tuple(lse.shape))
    check_device("lse", lse, q.device)
