"""What kernels compute instead of paged attention: useless models, and known mistakes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tightrope.budget import Budget
from tightrope.formats import Array
from tightrope.oracles.attention_paged_inputs import stated
from tightrope.oracles.attention_sequence_alternatives import Outputs, Spans, fitted, told
from tightrope.oracles.attention_varlen_alternatives import null_outputs

if TYPE_CHECKING:
    from tightrope.oracles.attention_paged_cases import AttentionPagedCase


def nulls(case: AttentionPagedCase, inputs: Mapping[str, Array]) -> dict[str, Outputs]:
    """Models that no budget should accept, each with both outputs."""
    return null_outputs(case, inputs, stated(case, inputs))


def alternatives(
    case: AttentionPagedCase, inputs: Mapping[str, Array]
) -> Iterator[tuple[str, Outputs]]:
    """(what is computed instead, outputs), the likeliest first; those equal to a right result are
    left out.
    """
    yield from told(case, inputs, stated(case, inputs), _of_pages(case, inputs))


def fits(
    case: AttentionPagedCase, inputs: Mapping[str, Array], outputs: Outputs,
    budgets: Mapping[str, Budget],
) -> Iterator[tuple[str, Outputs]]:  # fmt: skip
    """What is found from the lse that was returned: another scale, or other keys."""
    yield from fitted(case, inputs, stated(case, inputs), outputs, budgets)


def _of_pages(case: AttentionPagedCase, inputs: Mapping[str, Array]) -> Iterator[tuple[str, Spans]]:
    table, lengths = inputs["block_table"], inputs["cache_seqlens"]
    k, v, size = inputs["k_cache"], inputs["v_cache"], case.page_size

    def other(block_table: Array) -> Spans:
        return stated(case, inputs, block_table=block_table.astype(np.int32))

    last = max(len(k) - 1, 0)
    yield "page numbers ignored: pages read in the order they lie in", other(_in_order(table))
    each = np.broadcast_to(np.arange(table.shape[1]), table.shape)
    yield "page numbers ignored: every sequence's pages counted from 0", other(np.array(each))
    slots = {n: np.roll(inputs[n], -1, 1) for n in ("k_cache", "v_cache")}
    yield "slots read one late, each in its own page", stated(case, inputs, **slots)
    if len(table):
        yield "the first sequence's block table for all", other(np.repeat(table[:1], len(table), 0))
        yield "the block table read one row late", other(np.roll(table, -1, 0))
    if table.shape[1] > 1:
        yield "the block table read one column late", other(np.roll(table, -1, 1))
    yield "every page one late", other(np.clip(table.astype(np.int64) + 1, 0, last))
    yield "the table read with another row stride", other(_stride(table))
    swapped = stated(case, inputs, k_cache=_slots_by_page(k), v_cache=_slots_by_page(v))
    yield "page and slot strides exchanged", swapped
    right = stated(case, inputs)
    if k.shape == v.shape:
        yield "v read from the k cache", [replace(s, v=s.k) for s in right]
    for more, word in ((1, "one slot past"), (-1, "all but the last slot of")):
        spans = stated(case, inputs, cache_seqlens=lengths + more)
        kept = [replace(a, q_offset=b.q_offset) for a, b in zip(spans, right, strict=True)]
        yield f"keys read to {word} cache_seqlens", kept
    whole = -(-lengths // size) * size
    spans = stated(case, inputs, cache_seqlens=whole)
    kept = [replace(a, q_offset=b.q_offset) for a, b in zip(spans, right, strict=True)]
    yield "every slot of the last page read", kept
    spans = stated(case, inputs, cache_seqlens=np.full_like(lengths, table.shape[1] * size))
    kept = [replace(a, q_offset=b.q_offset) for a, b in zip(spans, right, strict=True)]
    yield "the block table's tail followed", kept
    new = np.diff(inputs["cu_seqlens_q"])
    late = [replace(s, q_offset=s.q_offset + int(n)) for s, n in zip(right, new, strict=True)]
    yield "cache_seqlens taken without the new tokens", late


def _in_order(table: Array) -> Array:
    """Page 0 first, row after row."""
    return np.arange(table.size).reshape(table.shape)


def _stride(table: Array) -> Array:
    """Rows one column too long, as if a sliced table were dense."""
    flat = np.append(table.ravel(), table.ravel()[: len(table)])
    row = np.arange(len(table))[:, None] * (table.shape[1] + 1)
    return flat[np.minimum(row + np.arange(table.shape[1]), max(len(flat) - 1, 0))]


def _slots_by_page(cache: Array) -> Array:
    """Slots read in steps of pages."""
    pages, size = cache.shape[:2]
    turned = cache.reshape(pages * size, *cache.shape[2:])
    order = np.arange(pages * size).reshape(size, pages).T.ravel()
    return turned[order].reshape(cache.shape)
