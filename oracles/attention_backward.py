"""`attention_backward`: the gradients of attention, from what its forward pass returned.

FlashAttention-2 (Dao 2023, arXiv:2307.08691, section 2.3.2), extended as `attention` is. dout is
the gradient of the outputs; out and lse are taken as they are given, exact in their own dtypes.
For a query i and a key j that it sees, t the logit of `attention` (scaled, capped):

    P = exp(t - lse_i),  D_i = sum(dout_i out_i),  dS = P (dout_i . v_j - D_i)
    dv_j = sum_i P dout_i,  dq_i = sum_j g dS k_j,  dk_j = sum_i g dS q_i

with g = dt/d(q.k) = softmax_scale, or softmax_scale (1 - tanh^2) under a softcap. Sums for dk and
dv run over every query head of the kv head. It is the gradient of sum_ij exp(t_ij - lse_i)
(dout_i . v_j - D_i) with lse and D held. A row without a key has lse = -inf and counts nowhere.

Stages (`Arithmetic(...)`; meaning in docs/error-budgets.md, attention_backward):

    state        "given": P from the given lse, D from the given out; "any": or from its own
                 forward pass in float32 whose out is stored in the input's dtype
    logits       "scaled": the bundled sequence; "any"
    dot          "any"; "hopper_mma": all five products, ascending: dk, dv head by head of the
                 group and then by rows, dq by keys, 16 a step
    scores, exp_ulp, exp_flush, division_ulp: as in attention; scores: format of S and of dP
    p, ds        format of P before P^T dout and of dS before dS k, dS^T q
    heads        "apart": dk and dv of each query head are stored, then added; "summed": in float32

"scaled" in full: x = fma(S, fl(scale log2 e), -fl(lse fl(log2 e))), or t - .. under a softcap, t as
in attention; p = exp2(x); D = sum dout out in float32, any order; ds = fl(p fl(dP - D)), under a
softcap times fl(1 - fl(tanh^2)) or with it fused, p not rounded; dv = RN(p)^T dout;
dq = fl(scale^ (RN(ds) k)), dk = fl(scale^ (RN(ds)^T q)), scale^ = float32(softmax_scale). With
state="given" these casts are replayed (T1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tightrope.arithmetic import Arithmetic
from tightrope.budget import Budget
from tightrope.contract import Contract
from tightrope.formats import Array
from tightrope.oracles import attention
from tightrope.oracles.attention_backward_alternatives import alternatives, nulls
from tightrope.oracles.attention_backward_budget import backward
from tightrope.oracles.attention_backward_cases import (
    AXES,
    DOMAIN,
    RELATIONS,
    AttentionBackwardCase,
    cases,
)
from tightrope.oracles.attention_backward_exact import exact
from tightrope.oracles.attention_backward_inputs import inputs, layouts, shapes, stated
from tightrope.oracles.attention_backward_problem import gradients
from tightrope.oracles.attention_backward_stages import STAGES

__all__ = ["CONTRACT", "AttentionBackwardCase", "oracle"]

OUTPUTS = ("dq", "dk", "dv")


def oracle(case: AttentionBackwardCase, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """dq, dk and dv in float64."""
    found = zip(OUTPUTS, gradients(stated(case, inputs)), strict=True)
    return {name: x.reshape(shapes(case)[name]) for name, x in found}


def budget(
    case: AttentionBackwardCase, inputs: Mapping[str, Array], arithmetic: Arithmetic
) -> dict[str, Budget]:
    """Budgets of dq, dk and dv. Raises ValueError for a stage value that has no budget."""
    found = backward(stated(case, inputs), arithmetic)
    return {name: found[name].reshape(shapes(case)[name]) for name in OUTPUTS}


def options(case: AttentionBackwardCase) -> dict[str, Any]:
    """Keyword arguments that are no tensors."""
    return attention.options(case)  # type: ignore[arg-type]


SIGNATURE = """\
attention_backward(dout, q, k, v, out, lse, *, softmax_scale=None, causal=False, q_offset=0,
                   window_size=(None, None), softcap=None, out_dtype=None) -> dq, dk, dv"""

CONTRACT = Contract(
    name="attention_backward",
    signature=SIGNATURE,
    outputs=OUTPUTS,
    stages=STAGES,
    oracle=oracle,
    exact=exact,
    budget=budget,
    case=AttentionBackwardCase,
    cases=cases,
    domain=DOMAIN,
    relations=RELATIONS,
    axes=AXES,
    inputs=inputs,
    options=options,
    keywords=("q_offset",),
    layouts=layouts,
    alternatives=alternatives,
    nulls=nulls,
)
