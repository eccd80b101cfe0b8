"""`attention`: softmax attention with every mask, in one call.

FlashAttention-2 (Dao 2023, arXiv:2307.08691, section 2.1), extended as in its library by a query
offset, two-sided windows, softcap (Gemma 2, arXiv:2408.00118, section 2), an additive bias and
sinks (Xiao et al. 2023, arXiv:2309.17453; a learned logit a head, without a value). For a query
i and a key j that it sees:

    t = softmax_scale q_i . k_j;  t = softcap tanh(t / softcap);  t = t + bias
    out_i = sum_j exp(t - lse_i) v_j,  lse_i = ln(sum_j exp t [+ exp sink])

out (batch, num_heads, seqlen_q, head_dim_v), lse (batch, num_heads, seqlen_q) float32. A row
without a key has out = 0 and lse = -inf, or lse = sink. Query head h reads kv head
h // (num_heads // num_kv_heads). Which keys are seen: `tightrope.oracles.attention_problem`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tightrope.arithmetic import Arithmetic
from tightrope.budget import Budget
from tightrope.contract import Contract
from tightrope.formats import Array
from tightrope.oracles.attention_alternatives import alternatives, fits, nulls
from tightrope.oracles.attention_budget import STAGES, forward
from tightrope.oracles.attention_cases import AXES, DOMAIN, RELATIONS, AttentionCase, cases
from tightrope.oracles.attention_exact import exact
from tightrope.oracles.attention_inputs import inputs, layouts, stated
from tightrope.oracles.attention_problem import attend

__all__ = ["CONTRACT", "AttentionCase", "oracle"]


def oracle(case: AttentionCase, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """out and lse in float64."""
    out, lse = attend(stated(case, inputs))
    shape = (case.batch, case.num_heads, case.seqlen_q)
    return {"out": out.reshape(*shape, case.head_dim_v), "lse": lse.reshape(shape)}


def budget(
    case: AttentionCase, inputs: Mapping[str, Array], arithmetic: Arithmetic
) -> dict[str, Budget]:
    """Budgets of out and lse. Raises ValueError for a stage value that has no budget."""
    spent = forward(stated(case, inputs), arithmetic)
    shape = (case.batch, case.num_heads, case.seqlen_q)
    return {
        "out": spent.out.reshape((*shape, case.head_dim_v)),
        "lse": spent.lse.reshape(shape),
    }


def options(case: AttentionCase) -> dict[str, Any]:
    """Keyword arguments that are no tensors."""
    given: dict[str, Any] = {
        "softmax_scale": case.softmax_scale,
        "causal": case.causal,
        "window_size": (case.window_left, case.window_right),
        "softcap": case.softcap,
        "out_dtype": None if case.out_dtype == "input" else case.out_dtype,
    }
    return given if case.offsets == "tensor" else {**given, "q_offset": case.q_offset}


SIGNATURE = """\
attention(q, k, v, *, softmax_scale=None, causal=False, q_offset=0, window_size=(None, None),
          softcap=None, bias=None, sink=None, out_dtype=None) -> out, lse"""

CONTRACT = Contract(
    name="attention",
    signature=SIGNATURE,
    case=AttentionCase,
    domain=DOMAIN,
    outputs=("out", "lse"),
    keywords=("bias", "sink", "q_offset"),
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
