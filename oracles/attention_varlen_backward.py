"""`attention_varlen_backward`: the gradients of packed attention, from what its forward returned.

Tokens cu_seqlens[s] .. cu_seqlens[s + 1] - 1 belong to sequence s, as in `attention_varlen`; what
is computed for one sequence is `attention_backward`, whose stages these are, with the same
q_offset: one number a sequence, seqlen_k - seqlen_q (bottom-right) if not given. dout, out and lse
of rows of no sequence count nowhere, whatever they hold, and gradients there are 0.

dout, out (tokens_q, num_heads, head_dim_v), lse (num_heads, tokens_q) float32;
dq (tokens_q, num_heads, head_dim), dk (tokens_k, num_kv_heads, head_dim), dv (.., head_dim_v).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tightrope.arithmetic import Arithmetic
from tightrope.budget import Budget, Replay
from tightrope.contract import Contract
from tightrope.formats import Array
from tightrope.oracles import attention_backward, attention_varlen
from tightrope.oracles.attention_backward_stages import STAGES
from tightrope.oracles.attention_varlen_backward_alternatives import alternatives, nulls
from tightrope.oracles.attention_varlen_backward_cases import (
    AXES,
    DOMAIN,
    RELATIONS,
    AttentionVarlenBackwardCase,
    cases,
)
from tightrope.oracles.attention_varlen_backward_exact import exact
from tightrope.oracles.attention_varlen_backward_inputs import (
    One,
    inputs,
    layouts,
    sequences,
    together,
)

__all__ = ["CONTRACT", "AttentionVarlenBackwardCase", "oracle"]

Given = Mapping[str, Array]
OUTPUTS = ("dq", "dk", "dv")


def oracle(case: AttentionVarlenBackwardCase, inputs: Given) -> dict[str, Array]:
    """dq, dk and dv in float64."""
    ones = list(sequences(case, inputs))
    found = [attention_backward.oracle(one.case, one.inputs) for one in ones]
    return {name: together(inputs, ones, found, name) for name in OUTPUTS}


def budget(
    case: AttentionVarlenBackwardCase, inputs: Given, arithmetic: Arithmetic
) -> dict[str, Budget]:
    """Budgets of dq, dk and dv. Raises ValueError for a stage value that has no budget."""
    ones, dtype = list(sequences(case, inputs)), case.dtype
    dtype = dtype if case.out_dtype == "input" else case.out_dtype
    each = [attention_backward.CONTRACT.budget(one.case, one.inputs, arithmetic) for one in ones]
    return {name: _whole(inputs, ones, [b[name] for b in each], name, dtype) for name in OUTPUTS}


def _whole(
    inputs: Given, ones: list[One], each: list[Budget], name: str, dtype: str
) -> Budget:  # fmt: skip
    """The budget of all sequences; what belongs to none is 0, and nothing else is right there."""

    def joined(of: list[Any]) -> Array:
        spread = [
            {name: np.broadcast_to(np.asarray(x, np.float64), b.expected.shape)}
            for x, b in zip(of, each, strict=True)
        ]
        return together(inputs, ones, spread, name)

    named = dict.fromkeys(term for b in each for term in b.terms)
    terms = {term: joined([b.terms.get(term, 0.0) for b in each]) for term in named}
    replay = None
    if any(b.replay is not None for b in each):
        replays = [b.replay or Replay(b.expected, np.inf) for b in each]
        replay = Replay(joined([r.centre for r in replays]), joined([r.radius for r in replays]))
    expected, own = joined([b.expected for b in each]), joined([b.oracle for b in each])
    return Budget(expected, terms, dtype, own, replay)


SIGNATURE = """\
attention_varlen_backward(dout, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, *,
                          softmax_scale=None, causal=False, q_offset=None,
                          window_size=(None, None), softcap=None, out_dtype=None) -> dq, dk, dv"""

CONTRACT = Contract(
    name="attention_varlen_backward",
    case=AttentionVarlenBackwardCase,
    domain=DOMAIN,
    cases=cases,
    axes=AXES,
    relations=RELATIONS,
    signature=SIGNATURE,
    keywords=("q_offset",),
    outputs=OUTPUTS,
    stages=STAGES,
    inputs=inputs,
    oracle=oracle,
    options=attention_varlen.options,
    layouts=layouts,
    budget=budget,
    exact=exact,
    alternatives=alternatives,
    nulls=nulls,
)
