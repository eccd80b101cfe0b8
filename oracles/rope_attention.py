"""`rope_attention`: rotary position embedding inside attention.

RoFormer (Su et al. 2021, arXiv:2104.09864, section 3.2.2): q and k are rotated as `rope` does, by
rows of a given table, and attended to as `attention` does; v is not rotated. **Indices mask,
positions only rotate**: causal and windows go by the place of a key in k, whatever its position.

    out, lse = attention(rope(q, q_positions), rope(k, k_positions), v, ..)

q_positions and k_positions (seqlen,) or (batch, seqlen) are rows of cos and sin (rows,
rotary_dim/2); the given table counts as exact in its own dtype. There is no bias.
out (batch, num_heads, seqlen_q, head_dim_v), lse (batch, num_heads, seqlen_q) float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tightrope.contract import Contract
from tightrope.formats import Array
from tightrope.oracles.attention_problem import attend
from tightrope.oracles.rope_attention_alternatives import alternatives, fits, nulls, right
from tightrope.oracles.rope_attention_budget import STAGES, budget
from tightrope.oracles.rope_attention_cases import (
    AXES,
    DOMAIN,
    RELATIONS,
    RopeAttentionCase,
    cases,
)
from tightrope.oracles.rope_attention_exact import exact
from tightrope.oracles.rope_attention_inputs import inputs, layouts

__all__ = ["CONTRACT", "RopeAttentionCase", "oracle"]


def oracle(case: RopeAttentionCase, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """out and lse in float64."""
    out, lse = attend(right(case, inputs))
    shape = (case.batch, case.num_heads, case.seqlen_q)
    return {"out": out.reshape(*shape, case.head_dim_v), "lse": lse.reshape(shape)}


def options(case: RopeAttentionCase) -> dict[str, Any]:
    """Keyword arguments that are no tensors."""
    given: dict[str, Any] = {
        "interleaved": case.interleaved,
        "softmax_scale": case.softmax_scale,
        "causal": case.causal,
        "window_size": (case.window_left, case.window_right),
        "softcap": case.softcap,
        "out_dtype": None if case.out_dtype == "input" else case.out_dtype,
    }
    return given if case.offsets == "tensor" else {**given, "q_offset": case.q_offset}


SIGNATURE = """\
rope_attention(q, k, v, cos, sin, q_positions, k_positions, *, interleaved, softmax_scale=None,
               causal=False, q_offset=0, window_size=(None, None), softcap=None, sink=None,
               out_dtype=None) -> out, lse"""

CONTRACT = Contract(
    name="rope_attention",
    signature=SIGNATURE,
    case=RopeAttentionCase,
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
