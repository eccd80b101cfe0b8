"""`attention_paged`: attention of new queries to a cache of keys and values kept in pages.

PagedAttention (Kwon et al. 2023, arXiv:2309.06180, section 4.1): key j of sequence s stands in slot
j % page_size of page block_table[s, j // page_size] of k_cache (pages, page_size, num_kv_heads,
head_dim), its value in the same place of v_cache. cache_seqlens counts the keys, the new tokens
among them; tokens cu_seqlens_q[s] .. cu_seqlens_q[s + 1] - 1 of q are the queries, one in decode,
more in chunked prefill. q_offset is one number a sequence, cache_seqlens - seqlen_q if not given.
Entries of the table past a sequence's pages mean nothing, and may be no page at all; slots past its
keys and unused pages may hold anything. Rows of q past the last sequence have out = 0, lse = -inf.

out (tokens_q, num_heads, head_dim_v), lse (num_heads, tokens_q) float32.
"""

from __future__ import annotations

from collections.abc import Mapping

from tightrope.arithmetic import Arithmetic
from tightrope.budget import Budget
from tightrope.contract import Contract
from tightrope.formats import Array
from tightrope.oracles.attention_budget import STAGES
from tightrope.oracles.attention_paged_alternatives import alternatives, fits, nulls
from tightrope.oracles.attention_paged_cases import (
    AXES,
    DOMAIN,
    RELATIONS,
    AttentionPagedCase,
    cases,
)
from tightrope.oracles.attention_paged_exact import exact
from tightrope.oracles.attention_paged_inputs import inputs, layouts, stated
from tightrope.oracles.attention_sequence_alternatives import extent
from tightrope.oracles.attention_varlen import options, spent
from tightrope.oracles.attention_varlen_problems import oracle as of_parts
from tightrope.oracles.attention_varlen_problems import parts

__all__ = ["CONTRACT", "AttentionPagedCase", "oracle"]


def oracle(case: AttentionPagedCase, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """out and lse in float64."""
    found = parts(case, inputs["q"], stated(case, inputs), inputs.get("sink"))
    return of_parts(extent(case, inputs), found)


def budget(
    case: AttentionPagedCase, inputs: Mapping[str, Array], arithmetic: Arithmetic
) -> dict[str, Budget]:
    """Budgets of out and lse. Raises ValueError for a stage value that has no budget."""
    return spent(case, inputs, stated(case, inputs), arithmetic)


SIGNATURE = """\
attention_paged(q, k_cache, v_cache, cu_seqlens_q, block_table, cache_seqlens, *,
                softmax_scale=None, causal=False, q_offset=None, window_size=(None, None),
                softcap=None, sink=None, out_dtype=None) -> out, lse"""

CONTRACT = Contract(
    name="attention_paged",
    signature=SIGNATURE,
    case=AttentionPagedCase,
    domain=DOMAIN,
    outputs=("out", "lse"),
    keywords=("sink", "q_offset"),
    stages=STAGES,
    cases=cases,
    inputs=inputs,
    oracle=oracle,
    exact=exact,
    budget=budget,
    relations=RELATIONS,
    options=options,
    layouts=layouts,
    nulls=nulls,
    alternatives=alternatives,
    fits=fits,
    axes=AXES,
)
