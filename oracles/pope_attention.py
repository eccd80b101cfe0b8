"""`pope_attention`: polar coordinate position embedding (PoPE) inside attention.

PoPE (arXiv:2509.10534, eq. 3 to 8). Of the first rotary_dim = len(inv_freq) features, feature c of
a query at position m and of a key at n has a magnitude softplus(x) = ln(1 + e^x) and an angle:

    score = sum_c softplus(q_c) softplus(k_c) cos(n f_c + delta_c - m f_c) + sum of plain q k

over frequencies f = inv_freq, radians a position, and plain features from rotary_dim on. Scores are
attended to as `attention` does; softmax_scale None is head_dim**-0.5, polar features counting once.
**Indices mask, positions only rotate**: causal and windows go by the place of a key in k.

inv_freq (rotary_dim,), float32 or float64, counts as exact in its own dtype. delta: None, or
float32, (num_kv_heads, rotary_dim) or (num_heads, rotary_dim), which goes by query head.
q_positions and k_positions, (seqlen,) or (batch, seqlen), are any integers. There is no bias.
out (batch, num_heads, seqlen_q, head_dim_v), lse (batch, num_heads, seqlen_q) float32.
"""

from __future__ import annotations

from collections.abc import Mapping

from tightrope.contract import Contract
from tightrope.formats import Array
from tightrope.oracles import attention
from tightrope.oracles.pope_attention_alternatives import alternatives, fits, nulls
from tightrope.oracles.pope_attention_budget import STAGES, budget
from tightrope.oracles.pope_attention_cases import (
    AXES,
    DOMAIN,
    RELATIONS,
    PopeAttentionCase,
    cases,
)
from tightrope.oracles.pope_attention_exact import exact
from tightrope.oracles.pope_attention_inputs import inputs, layouts
from tightrope.oracles.pope_attention_problem import as_attention, polar

__all__ = ["CONTRACT", "PopeAttentionCase", "oracle"]


def oracle(case: PopeAttentionCase, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """out and lse in float64."""
    q, k = (polar(case, inputs, name) for name in ("q", "k"))
    return attention.oracle(*as_attention(case, inputs, q, k))


SIGNATURE = """\
pope_attention(q, k, v, inv_freq, delta, q_positions, k_positions, *, softmax_scale=None,
               causal=False, q_offset=0, window_size=(None, None), softcap=None, sink=None,
               out_dtype=None) -> out, lse"""

CONTRACT = Contract(
    name="pope_attention",
    signature=SIGNATURE,
    case=PopeAttentionCase,
    domain=DOMAIN,
    outputs=("out", "lse"),
    positional=("q", "k", "v", "inv_freq", "delta", "q_positions", "k_positions"),
    keywords=("sink", "q_offset"),
    stages=STAGES,
    cases=cases,
    inputs=inputs,
    oracle=oracle,
    exact=exact,
    budget=budget,
    relations=RELATIONS,
    options=attention.options,
    layouts=layouts,
    nulls=nulls,
    alternatives=alternatives,
    fits=fits,
    axes=AXES,
)
