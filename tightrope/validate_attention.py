"""Refusing bad input to the attention contracts: metadata alone, as in `tightrope.validate`.

The packed, paged and rotating contracts share the checks of widths, heads and options; lengths are
each contract's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tightrope.validate import check_device, check_tensor, dtype_name, refuse

DTYPES = ("float16", "bfloat16", "float32")
WIDTHS = range(1, 257)
# Kernels count keys and rows in 32 bits and look up to a tile past the last one.
LONGEST = 2**31 - 2**10
# Quotients and products of two factors within it stay normal numbers of float32.
LARGEST = 2.0**60
# An ulp of 1 in 1 - 2/(exp(2y) + 1) is worth a cap's 2^-24: out is off by 4e-4 at a cap of 1e4.
LARGEST_CAP = 1024.0


def check_number(name: str, value: Any, least: float, most: float) -> None:
    """Refuse what is not an int or float (TypeError) from `least` to `most` (ValueError).

    None passes: the option is off.
    """
    if value is None:
        return
    expected = f"None or a number from {least:g} to {most:g}"
    if not isinstance(value, int | float) or isinstance(value, bool):
        refuse(name, expected, repr(value), TypeError)
    if not least <= value <= most:
        refuse(name, expected, value)


def check_softcap(softcap: Any) -> None:
    """Refuse a cap too large or too small for the kernels' tanh; None passes: no cap.

    Raises: TypeError (no number), ValueError (its size).
    """
    expected = (
        f"None or a softcap in (0, {LARGEST_CAP:g}], {1 / LARGEST:g} or more: "
        "above, 1 - 2/(exp(2y) + 1), its tanh, cancels"
    )
    if softcap is None:
        return
    if not isinstance(softcap, int | float) or isinstance(softcap, bool):
        refuse("softcap", expected, repr(softcap), TypeError)
    if not 1 / LARGEST <= softcap <= LARGEST_CAP:
        refuse("softcap", expected, softcap)


def check_blocks(blocks: Any, tiles: tuple[str, ...] = ("BLOCK_M", "BLOCK_N"), least: int = 16,
                 rest: tuple[str, ...] = ("num_stages",)) -> None:  # fmt: skip
    """Refuse a tile that is no tuple of ints (TypeError), or whose ints no kernel can be built for.

    `tiles`, powers of 2 from `least` on, come first, then num_warps, a power of 2, then `rest`,
    positive (ValueError). None passes: the kernel's own.
    """
    if blocks is None:
        return
    names = (*tiles, "num_warps", *rest)
    expected = (
        f"None or ({', '.join(names)}), positive ints, {' and '.join(tiles)} powers of 2 and "
        f">= {least}, num_warps a power of 2"
    )
    if not isinstance(blocks, tuple) or any(type(n) is not int for n in blocks):
        refuse("blocks", expected, repr(blocks), TypeError)
    if len(blocks) != len(names) or min(blocks) < 1 or min(blocks[: len(tiles)]) < least:
        refuse("blocks", expected, blocks)
    if any(n & (n - 1) for n in blocks[: len(tiles) + 1]):
        refuse("blocks", expected, blocks)


def check_flag(name: str, value: Any) -> None:
    """Refuse what is not a bool; 1 is none. Raises TypeError."""
    if not isinstance(value, bool):
        refuse(name, "True or False", repr(value), TypeError)


def check_window(window_size: Any) -> None:
    """Refuse what is not a pair (left, right) of numbers of keys; None, or both None: no window.

    Raises: TypeError (no tuple of ints), ValueError (not two, negative).
    """
    if window_size is None:
        return
    expected = "(left, right), each an int of 0 or more, or None"
    if not isinstance(window_size, tuple):
        refuse("window_size", expected, repr(window_size), TypeError)
    if len(window_size) != 2:
        refuse("window_size", expected, window_size)
    for side in window_size:
        if side is None:
            continue
        if not isinstance(side, int) or isinstance(side, bool):
            refuse("window_size", expected, window_size, TypeError)
        if side < 0:
            refuse("window_size", expected, window_size)


def check_offset(q_offset: Any, sequences: int, device: Any) -> None:
    """Refuse a q_offset that is neither an int32 number nor (sequences,) int32 on `device`.

    Raises: TypeError (types, dtype), ValueError (size of the number, shape, device).
    """
    if hasattr(q_offset, "stride"):
        check_tensor("q_offset", q_offset, ("batch",), ("int32",))
        if q_offset.shape[0] != sequences:
            refuse("q_offset.shape", f"({sequences},), one a sequence", tuple(q_offset.shape))
        check_device("q_offset", q_offset, device)
        return
    if not isinstance(q_offset, int) or isinstance(q_offset, bool):
        refuse("q_offset", "an int or an int32 tensor", repr(q_offset), TypeError)
    if not -(2**31) <= q_offset < 2**31:
        refuse("q_offset", "a number of 32 bits", q_offset)


def check_heads(num_heads: int, num_kv_heads: int) -> None:
    """Refuse query heads that the kv heads do not divide. Raises ValueError."""
    if num_kv_heads < 1 or num_heads < 1 or num_heads % num_kv_heads:
        refuse("num_heads", "a multiple of num_kv_heads", f"{num_heads} and {num_kv_heads}")


def check_width(name: str, width: int) -> None:
    """Refuse a head_dim or head_dim_v outside WIDTHS. Raises ValueError."""
    if width not in WIDTHS:
        refuse(name, f"{WIDTHS.start} to {WIDTHS.stop - 1}", width)


def check_length(name: str, length: int) -> None:
    """Refuse more keys or rows than 32 bits count. Raises ValueError."""
    if length > LONGEST:
        refuse(name, f"at most {LONGEST}", length)


def check_out_dtype(out_dtype: Any, q: Any) -> None:
    """Refuse an output that is neither in q's dtype nor in float32. Raises TypeError."""
    if out_dtype is not None and str(out_dtype) not in (str(q.dtype), "torch.float32"):
        refuse("out_dtype", f"None, {q.dtype} or torch.float32", out_dtype, TypeError)


def check_bias(bias: Any, scores: Sequence[int], q: Any) -> None:
    """Refuse a bias that does not broadcast to `scores`; float32 or q's dtype, -inf allowed.

    Raises: TypeError (types, dtype), ValueError (shape, device). None passes.
    """
    if bias is None:
        return
    axes = ("batch", "num_heads", "seqlen_q", "seqlen_k")
    check_tensor("bias", bias, axes, ("float32", dtype_name(q)))
    if any(n not in (1, full) for n, full in zip(bias.shape, scores, strict=True)):
        refuse("bias.shape", f"{tuple(scores)}, or 1 for an axis", tuple(bias.shape))
    check_device("bias", bias, q.device)


def check_sink(sink: Any, num_heads: int, q: Any) -> None:
    """Refuse a sink that is not (num_heads,) of float32 or q's dtype.

    Raises: TypeError (types, dtype), ValueError (shape, device). None passes.
    """
    if sink is None:
        return
    check_tensor("sink", sink, ("num_heads",), ("float32", dtype_name(q)))
    if sink.shape[0] != num_heads:
        refuse("sink.shape", f"({num_heads},), one a query head", tuple(sink.shape))
    check_device("sink", sink, q.device)


def check_options(
    q: Any,
    *,
    softmax_scale: Any,
    causal: Any,
    window_size: Any,
    softcap: Any,
    out_dtype: Any,
    validate: Any = False,
) -> None:
    """Refuse options that every attention contract excludes.

    Raises: TypeError (types, dtypes), ValueError (values).
    """
    check_number("softmax_scale", softmax_scale, 1 / LARGEST, LARGEST)
    check_flag("causal", causal)
    check_window(window_size)
    check_softcap(softcap)
    check_flag("validate", validate)
    check_out_dtype(out_dtype, q)


def check_attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    softmax_scale: Any = None,
    causal: Any = False,
    q_offset: Any = 0,
    window_size: Any = (None, None),
    softcap: Any = None,
    bias: Any = None,
    sink: Any = None,
    out_dtype: Any = None,
    validate: Any = False,
) -> None:
    """Refuse what the contract `attention` excludes, from metadata alone.

    Raises: TypeError (types, dtypes), ValueError (shapes, devices, values of options).
    """
    check_tensor("q", q, ("batch", "num_heads", "seqlen_q", "head_dim"), DTYPES)
    check_tensor("k", k, ("batch", "num_kv_heads", "seqlen_k", "head_dim"), (dtype_name(q),))
    check_tensor("v", v, ("batch", "num_kv_heads", "seqlen_k", "head_dim_v"), (dtype_name(q),))
    check_device("k", k, q.device)
    check_device("v", v, q.device)
    batch, num_heads, seqlen_q, head_dim = q.shape
    num_kv_heads, seqlen_k = k.shape[1:3]
    if k.shape[0] != batch or k.shape[3] != head_dim:
        refuse("k.shape", f"({batch}, num_kv_heads, seqlen_k, {head_dim}) as q", tuple(k.shape))
    if v.shape[:3] != k.shape[:3]:
        refuse("v.shape", f"({', '.join(map(str, k.shape[:3]))}, head_dim_v) as k", tuple(v.shape))
    check_heads(num_heads, num_kv_heads)
    check_width("head_dim", head_dim)
    check_width("head_dim_v", v.shape[3])
    check_length("seqlen_q", seqlen_q)
    check_length("seqlen_k", seqlen_k)
    check_options(
        q, softmax_scale=softmax_scale, causal=causal, window_size=window_size, softcap=softcap,
        out_dtype=out_dtype, validate=validate,
    )  # fmt: skip
    check_offset(q_offset, batch, q.device)
    check_bias(bias, (batch, num_heads, seqlen_q, seqlen_k), q)
    check_sink(sink, num_heads, q)
