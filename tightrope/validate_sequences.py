"""Refusing bad input to the packed, paged, merging and rotating attention contracts.

Metadata alone, as in `tightrope.validate_attention`; the functions whose names end in `_values`
read elements, and are called for CPU tensors or on request.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from tightrope.validate import (
    INTEGERS,
    TABLES,
    check_device,
    check_rows,
    check_strided,
    check_tensor,
    dtype_name,
    refuse,
)
from tightrope.validate_attention import (
    DTYPES,
    check_flag,
    check_heads,
    check_length,
    check_offset,
    check_options,
    check_sink,
    check_width,
)

INT32 = ("int32",)


def _check_packed(q: Any, cu_seqlens_q: Any, num_kv_heads: int, head_dim_v: int) -> None:
    """What the contracts with packed queries share."""
    check_tensor("cu_seqlens_q", cu_seqlens_q, ("sequences + 1",), INT32)
    check_device("cu_seqlens_q", cu_seqlens_q, q.device)
    if not cu_seqlens_q.shape[0]:
        refuse("cu_seqlens_q.shape", "(sequences + 1,), at least (1,)", (0,))
    tokens_q, num_heads, head_dim = q.shape
    check_heads(num_heads, num_kv_heads)
    check_width("head_dim", head_dim)
    check_width("head_dim_v", head_dim_v)
    check_length("tokens_q", tokens_q)


def _check_rest(q: Any, sequences: int, q_offset: Any, sink: Any, options: dict[str, Any]) -> None:
    check_options(q, **options)
    if q_offset is not None:
        if not hasattr(q_offset, "stride"):
            refuse("q_offset", "None or an int32 tensor", repr(q_offset), TypeError)
        check_offset(q_offset, sequences, q.device)
    check_sink(sink, q.shape[1], q)


def check_varlen(
    q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any,
    *, q_offset: Any, sink: Any, **options: Any,
) -> None:  # fmt: skip
    """Refuse what the contract `attention_varlen` excludes, from metadata alone.

    Raises: TypeError (types, dtypes), ValueError (shapes, devices, values of options).
    """
    check_tensor("q", q, ("tokens_q", "num_heads", "head_dim"), DTYPES)
    check_tensor("k", k, ("tokens_k", "num_kv_heads", "head_dim"), (dtype_name(q),))
    check_tensor("v", v, ("tokens_k", "num_kv_heads", "head_dim_v"), (dtype_name(q),))
    check_tensor("cu_seqlens_k", cu_seqlens_k, ("sequences + 1",), INT32)
    for name, tensor in (("k", k), ("v", v), ("cu_seqlens_k", cu_seqlens_k)):
        check_device(name, tensor, q.device)
    if k.shape[2] != q.shape[2]:
        refuse("k.shape", f"(tokens_k, num_kv_heads, {q.shape[2]}) as q", tuple(k.shape))
    if v.shape[:2] != k.shape[:2]:
        refuse("v.shape", f"({k.shape[0]}, {k.shape[1]}, head_dim_v) as k", tuple(v.shape))
    _check_packed(q, cu_seqlens_q, k.shape[1], v.shape[2])
    check_length("tokens_k", k.shape[0])
    if cu_seqlens_k.shape != cu_seqlens_q.shape:
        expected = f"{tuple(cu_seqlens_q.shape)} as cu_seqlens_q"
        refuse("cu_seqlens_k.shape", expected, tuple(cu_seqlens_k.shape))
    _check_rest(q, cu_seqlens_q.shape[0] - 1, q_offset, sink, options)


def check_starts_values(name: str, starts: Any, tokens: int) -> None:
    """Refuse cu_seqlens that do not rise from 0 to at most `tokens`. Raises ValueError."""
    numbers = starts.tolist()
    falls = any(b < a for a, b in pairwise(numbers))
    if falls or numbers[0] != 0 or numbers[-1] > tokens:
        refuse(name, f"numbers that rise from 0 to at most {tokens}", numbers)


def check_paged(
    q: Any, k_cache: Any, v_cache: Any, cu_seqlens_q: Any, block_table: Any, cache_seqlens: Any,
    *, q_offset: Any, sink: Any, **options: Any,
) -> None:  # fmt: skip
    """Refuse what the contract `attention_paged` excludes, from metadata alone.

    Raises: TypeError (types, dtypes), ValueError (shapes, devices, values of options).
    """
    cache = ("pages", "page_size", "num_kv_heads")
    check_tensor("q", q, ("tokens_q", "num_heads", "head_dim"), DTYPES)
    check_tensor("k_cache", k_cache, (*cache, "head_dim"), (dtype_name(q),))
    check_tensor("v_cache", v_cache, (*cache, "head_dim_v"), (dtype_name(q),))
    check_tensor("block_table", block_table, ("sequences", "max_pages"), INT32)
    check_tensor("cache_seqlens", cache_seqlens, ("sequences",), INT32)
    for name, tensor in (("k_cache", k_cache), ("v_cache", v_cache)):
        check_device(name, tensor, q.device)
    for name, tensor in (("block_table", block_table), ("cache_seqlens", cache_seqlens)):
        check_device(name, tensor, q.device)
    (pages, page_size, num_kv_heads, head_dim), shape = k_cache.shape, tuple(k_cache.shape)
    if head_dim != q.shape[2]:
        refuse("k_cache.shape", f"(.., {q.shape[2]}) as q", shape)
    if v_cache.shape[:3] != k_cache.shape[:3]:
        expected = f"{shape[:3]} + (head_dim_v,) as k_cache"
        refuse("v_cache.shape", expected, tuple(v_cache.shape))
    if page_size < 1:
        refuse("page_size", "1 or more", page_size)
    _check_packed(q, cu_seqlens_q, num_kv_heads, v_cache.shape[3])
    check_length("tokens_q * num_heads / num_kv_heads", q.shape[0] * q.shape[1] // num_kv_heads)
    check_length("max_pages * page_size", block_table.shape[1] * page_size)
    check_length("pages", pages)
    sequences = cu_seqlens_q.shape[0] - 1
    for name, tensor in (("block_table", block_table), ("cache_seqlens", cache_seqlens)):
        if tensor.shape[0] != sequences:
            expected = f"{sequences} rows, one a sequence of cu_seqlens_q"
            refuse(f"{name}.shape", expected, tuple(tensor.shape))
    _check_rest(q, sequences, q_offset, sink, options)


def check_cache_values(block_table: Any, cache_seqlens: Any, pages: int, page_size: int) -> None:
    """Refuse lengths that the table does not hold (ValueError), used entries that name no page.

    Entries past a sequence's used pages are free. Raises IndexError for a page out of range.
    """
    longest = block_table.shape[1] * page_size
    for row, length in zip(block_table.tolist(), cache_seqlens.tolist(), strict=True):
        if not 0 <= length <= longest:
            refuse("cache_seqlens", f"0 to max_pages * page_size = {longest}", length)
        used = row[: -(-length // page_size)]
        wrong = next((page for page in used if not 0 <= page < pages), None)
        if wrong is not None:
            held = f"pages 0 to {pages - 1} of the cache" if pages else "none of an empty cache"
            refuse("block_table", held, wrong, IndexError)


def check_merge(outs: Any, lses: Any) -> None:
    """Refuse what the contract `merge_attention` excludes: 1 to 3 axes between the outer two.

    Raises: TypeError (types, dtypes), ValueError (shapes, devices).
    """
    check_strided("outs", outs)
    rows = ("rows", "rows_2", "rows_3")[: min(max(len(outs.shape) - 2, 1), 3)]
    check_tensor("outs", outs, ("splits", *rows, "head_dim"), ("float32",))
    check_tensor("lses", lses, ("splits", *rows), ("float32",))
    check_device("lses", lses, outs.device)
    if lses.shape != outs.shape[:-1]:
        refuse("lses.shape", f"{tuple(outs.shape[:-1])} as outs", tuple(lses.shape))
    check_width("head_dim", outs.shape[-1])
    for size in lses.shape:
        check_length("lses.shape", size)


def _check_table(q: Any, cos: Any, sin: Any) -> None:
    check_tensor("cos", cos, ("rows", "rotary_dim/2"), TABLES)
    check_tensor("sin", sin, ("rows", "rotary_dim/2"), (dtype_name(cos),))
    check_device("cos", cos, q.device)
    check_device("sin", sin, q.device)
    if not 2 <= 2 * cos.shape[1] <= q.shape[-1]:
        refuse("rotary_dim = 2*cos.shape[1]", f"2 to head_dim = {q.shape[-1]}", 2 * cos.shape[1])
    if sin.shape != cos.shape:
        refuse("sin.shape", f"{tuple(cos.shape)} as cos", tuple(sin.shape))


def _check_positions(name: str, positions: Any, batch: int, length: int, device: Any) -> None:
    check_strided(name, positions)
    axes = ("batch", "seqlen") if len(positions.shape) == 2 else ("seqlen",)
    check_tensor(name, positions, axes, INTEGERS)
    check_device(name, positions, device)
    if tuple(positions.shape) not in ((length,), (batch, length)):
        refuse(f"{name}.shape", f"({length},) or ({batch}, {length})", tuple(positions.shape))


def check_rope_attention(
    q: Any, k: Any, cos: Any, sin: Any, q_positions: Any, k_positions: Any, interleaved: Any
) -> None:
    """Refuse what `rope_attention` excludes beyond `attention`, after `check_attention`.

    Raises: TypeError (types, dtypes), ValueError (shapes, devices).
    """
    check_flag("interleaved", interleaved)
    _check_table(q, cos, sin)
    _check_positions("q_positions", q_positions, q.shape[0], q.shape[2], q.device)
    _check_positions("k_positions", k_positions, k.shape[0], k.shape[2], q.device)


def check_position_values(q_positions: Any, k_positions: Any, rows: int) -> None:
    """Refuse positions that are no row of the table; raises IndexError."""
    check_rows(q_positions, rows, "q_positions")
    check_rows(k_positions, rows, "k_positions")
