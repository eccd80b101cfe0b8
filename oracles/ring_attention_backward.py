"""`ring_attention_backward`: `attention_backward` of a sequence that is sharded over a ring.

Ring attention (Liu, Zaharia and Abbeel 2023, arXiv:2310.01889, section 3), as `ring_attention`:
q, out, lse and dout stay with their rank, k and v go around, and dk and dv with them. out and lse
are those of the whole sequence, so that what a rank finds for each run of keys adds up to the
gradients of the whole, whatever ranks and scheme. All tensors are whole ones here; what implements
the contract shards them, runs its ranks and gathers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tightrope.oracles import attention_backward
from tightrope.oracles.ring_attention_backward_alternatives import alternatives
from tightrope.oracles.ring_attention_backward_budget import STAGES, budget
from tightrope.oracles.ring_attention_backward_cases import (
    AXES,
    DOMAIN,
    RELATIONS,
    RingAttentionBackwardCase,
    cases,
)

__all__ = ["CONTRACT", "RingAttentionBackwardCase", "oracle"]

oracle = attention_backward.oracle


def options(case: RingAttentionBackwardCase) -> dict[str, Any]:
    """Keyword arguments that are no tensors."""
    return {**attention_backward.options(case), "ranks": case.ranks, "scheme": case.scheme}


SIGNATURE = """\
ring_attention_backward(dout, q, k, v, out, lse, *, ranks, scheme, softmax_scale=None, causal=False,
                        q_offset=0, window_size=(None, None), softcap=None,
                        out_dtype=None) -> dq, dk, dv"""

CONTRACT = replace(
    attention_backward.CONTRACT,  # inputs and all three oracles are those of the whole sequence
    name="ring_attention_backward", signature=SIGNATURE, case=RingAttentionBackwardCase,
    domain=DOMAIN, keywords=(), stages=STAGES, cases=cases, budget=budget, options=options,
    alternatives=alternatives, relations=RELATIONS, axes=AXES,
)  # fmt: skip
