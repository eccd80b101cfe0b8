"""`pope_attention_backward`: gradients of `pope_attention`, phases included.

dout is the gradient of out; out and lse are taken as they are given, exact in their own dtypes, and
the rest is as `pope_attention` has it, but for sinks. A polar feature x at the angle a is the point
softplus(x) (cos a, sin a) (PoPE, arXiv:2509.10534, eq. 3 to 8), a on keys with delta. Gradients
(e_x, e_y) of points are attention's, dS as `attention_backward` has it:

    e of a query = g sum_j dS point_j,  e of a key = g sum_i dS point_i,  dv_j = sum_i P dout_i
    dx = sigmoid(x) (cos a e_x + sin a e_y),  plain features as in `attention_backward`
    ddelta = sum softplus(x) (cos a e_y - sin a e_x) over keys, sequences and heads that share it

dq, dk and dv have the shapes of q, k and v and the dtype of q, or `out_dtype`; ddelta is float32
and has delta's shape, or is None without delta. dk and dv are summed over the group's heads. What
sees nothing has gradients of 0.

Stages (`Arithmetic(...)`; meaning in docs/error-budgets.md, pope_attention_backward): those of
`attention_backward`, those of `pope_attention`'s features, and

    sigmoid_ulp, sigmoid_error  sigmoid is within so many ulps of float32 and so much beside
    point_gradients             "float32"; "input": e is rounded to it before it meets cos and sin
    phase_sums                  "keys": ddelta as above; "rows": of queries, whose angles turn the
                                other way; "any"
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tightrope.contract import Contract
from tightrope.formats import Array
from tightrope.oracles import attention
from tightrope.oracles.pope_attention_backward_alternatives import alternatives, nulls
from tightrope.oracles.pope_attention_backward_budget import budget
from tightrope.oracles.pope_attention_backward_cases import (
    AXES,
    DOMAIN,
    RELATIONS,
    PopeAttentionBackwardCase,
    cases,
)
from tightrope.oracles.pope_attention_backward_exact import exact
from tightrope.oracles.pope_attention_backward_inputs import inputs, layouts
from tightrope.oracles.pope_attention_backward_problem import Turned, gradients
from tightrope.oracles.pope_attention_backward_stages import STAGES

__all__ = ["CONTRACT", "PopeAttentionBackwardCase", "oracle"]


def oracle(case: PopeAttentionBackwardCase, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """dq, dk, dv and ddelta in float64."""
    return gradients(Turned.of(case, inputs))


def options(case: PopeAttentionBackwardCase) -> dict[str, Any]:
    """Keyword arguments that are no tensors."""
    return attention.options(case)  # type: ignore[arg-type]


SIGNATURE = """\
pope_attention_backward(dout, q, k, v, out, lse, inv_freq, delta, q_positions, k_positions, *,
                        softmax_scale=None, causal=False, q_offset=0, window_size=(None, None),
                        softcap=None, out_dtype=None) -> dq, dk, dv, ddelta"""

CONTRACT = Contract(
    name="pope_attention_backward",
    signature=SIGNATURE,
    outputs=("dq", "dk", "dv", "ddelta"),
    positional=(
        *("dout", "q", "k", "v", "out", "lse"),
        *("inv_freq", "delta", "q_positions", "k_positions"),
    ),
    keywords=("q_offset",),
    of_argument={"ddelta": "delta"},
    case=PopeAttentionBackwardCase,
    domain=DOMAIN,
    relations=RELATIONS,
    axes=AXES,
    cases=cases,
    inputs=inputs,
    layouts=layouts,
    options=options,
    stages=STAGES,
    oracle=oracle,
    exact=exact,
    budget=budget,
    nulls=nulls,
    alternatives=alternatives,
)
