"""`ring_attention`: `attention` of a sequence that is sharded over the ranks of a ring.

Ring attention (Liu, Zaharia and Abbeel 2023, arXiv:2310.01889, section 3): every rank holds some
rows of q and of k and v (tightrope.ring_shards.spans); keys and values go around, and what a rank
found of each shard is merged by its lse. The result is that of the whole sequence, whatever ranks
and scheme: masks go by indices of the whole. q, k and v are whole tensors here, as in `attention`,
without bias and sinks; what implements the contract shards them, runs its ranks and gathers.

out (batch, num_heads, seqlen_q, head_dim_v), lse (batch, num_heads, seqlen_q) float32.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tightrope.oracles import attention
from tightrope.oracles.ring_attention_alternatives import alternatives
from tightrope.oracles.ring_attention_budget import STAGES, budget
from tightrope.oracles.ring_attention_cases import (
    AXES,
    DOMAIN,
    RELATIONS,
    RingAttentionCase,
    cases,
)

__all__ = ["CONTRACT", "RingAttentionCase", "oracle"]

oracle = attention.oracle


def options(case: RingAttentionCase) -> dict[str, Any]:
    """Keyword arguments that are no tensors."""
    return {**attention.options(case), "ranks": case.ranks, "scheme": case.scheme}


SIGNATURE = """\
ring_attention(q, k, v, *, ranks, scheme, softmax_scale=None, causal=False, q_offset=0,
               window_size=(None, None), softcap=None, out_dtype=None) -> out, lse"""

CONTRACT = replace(
    attention.CONTRACT,  # inputs and all three oracles are those of the whole sequence
    name="ring_attention", signature=SIGNATURE, case=RingAttentionCase, domain=DOMAIN, keywords=(),
    stages=STAGES, cases=cases, budget=budget, options=options, alternatives=alternatives,
    relations=RELATIONS, axes=AXES,
)  # fmt: skip
