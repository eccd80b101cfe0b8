"""`merge_attention`: one result from the results over disjoint parts of the keys.

A state is the output of attention over some keys and its lse. Rabe and Staats 2021
(arXiv:2112.05682, section 2) and FlashAttention (Dao et al. 2022, arXiv:2205.14135, section 3.1):

    lse = ln(sum_i exp lse_i),  out = sum_i exp(lse_i - lse) out_i

outs (splits, rows, num_heads, head_dim), lses (splits, rows, num_heads), all float32. A state with
lse = -inf saw no key: it is the identity, whatever its out holds, and a single live state comes out
bit for bit. No live state: out = 0, lse = -inf.
"""

from __future__ import annotations

from collections.abc import Mapping

from tightrope.contract import Contract
from tightrope.formats import Array
from tightrope.oracles.merge_attention_alternatives import alternatives, nulls
from tightrope.oracles.merge_attention_budget import STAGES, budget
from tightrope.oracles.merge_attention_cases import (
    AXES,
    DOMAIN,
    RELATIONS,
    MergeAttentionCase,
    cases,
)
from tightrope.oracles.merge_attention_exact import exact
from tightrope.oracles.merge_attention_inputs import inputs, layouts
from tightrope.oracles.merge_attention_states import States

__all__ = ["CONTRACT", "MergeAttentionCase", "oracle"]


def oracle(case: MergeAttentionCase, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """out and lse in float64."""
    at, shape = States.of(inputs), inputs["lses"].shape[1:]
    return {"out": at.out.reshape(*shape, inputs["outs"].shape[-1]), "lse": at.lse.reshape(shape)}


CONTRACT = Contract(
    name="merge_attention",
    signature="merge_attention(outs, lses) -> out, lse",
    case=MergeAttentionCase,
    domain=DOMAIN,
    outputs=("out", "lse"),
    stages=STAGES,
    cases=cases,
    inputs=inputs,
    oracle=oracle,
    exact=exact,
    budget=budget,
    relations=RELATIONS,
    layouts=layouts,
    nulls=nulls,
    alternatives=alternatives,
    axes=AXES,
)
