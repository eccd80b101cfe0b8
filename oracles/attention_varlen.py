"""`attention_varlen`: attention of sequences packed one after the other, without padding.

As in FlashAttention-2's variable-length interface (Dao 2023, arXiv:2307.08691, and its library):
tokens cu_seqlens[s] .. cu_seqlens[s + 1] - 1 of q, and of k and v, belong to sequence s; a sequence
sees its own keys alone. What is computed for one sequence is `attention`; q_offset is one number a
sequence, seqlen_k - seqlen_q (bottom-right) if not given. Buffers may be longer than the last
entry: their further rows belong to no sequence and have out = 0, lse = -inf.

out (tokens_q, num_heads, head_dim_v), lse (num_heads, tokens_q) float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tightrope.arithmetic import Arithmetic
from tightrope.budget import Budget
from tightrope.contract import Contract
from tightrope.formats import Array
from tightrope.oracles.attention_budget import STAGES, forward
from tightrope.oracles.attention_sequence_alternatives import extent
from tightrope.oracles.attention_varlen_alternatives import (
    alternatives,
    fits,
    nulls,
    stated,
)
from tightrope.oracles.attention_varlen_cases import (
    AXES,
    DOMAIN,
    RELATIONS,
    AttentionVarlenCase,
    cases,
)
from tightrope.oracles.attention_varlen_exact import exact
from tightrope.oracles.attention_varlen_inputs import inputs, layouts
from tightrope.oracles.attention_varlen_problems import Span, budgets, parts
from tightrope.oracles.attention_varlen_problems import oracle as of_parts

__all__ = ["CONTRACT", "AttentionVarlenCase", "options", "oracle", "spent"]


def oracle(case: AttentionVarlenCase, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """out and lse in float64."""
    found = parts(case, inputs["q"], stated(case, inputs), inputs.get("sink"))
    return of_parts(extent(case, inputs), found)


def budget(
    case: AttentionVarlenCase, inputs: Mapping[str, Array], arithmetic: Arithmetic
) -> dict[str, Budget]:
    """Budgets of out and lse. Raises ValueError for a stage value that has no budget."""
    return spent(case, inputs, stated(case, inputs), arithmetic)


def spent(
    case: Any, inputs: Mapping[str, Array], spans: list[Span], arithmetic: Arithmetic
) -> dict[str, Budget]:
    """Budgets of a call with these sequences."""
    found = parts(case, inputs["q"], spans, inputs.get("sink"))
    out_dtype = case.dtype if case.out_dtype == "input" else case.out_dtype
    each = [forward(part.problem, arithmetic) for part in found]
    return budgets(extent(case, inputs), found, each, out_dtype)


def options(case: Any) -> dict[str, Any]:
    """Keyword arguments that are no tensors; q_offset is given as a tensor or not at all."""
    return {
        "softmax_scale": case.softmax_scale,
        "causal": case.causal,
        "window_size": (case.window_left, case.window_right),
        "softcap": case.softcap,
        "out_dtype": None if case.out_dtype == "input" else case.out_dtype,
    }


SIGNATURE = """\
attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, *, softmax_scale=None, causal=False,
                 q_offset=None, window_size=(None, None), softcap=None, sink=None,
                 out_dtype=None) -> out, lse"""

CONTRACT = Contract(
    name="attention_varlen",
    signature=SIGNATURE,
    case=AttentionVarlenCase,
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
