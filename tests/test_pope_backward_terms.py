"""Terms that the way back adds to the budget are needed: without one a right kernel is wrong.

Families that isolate a term: docs/error-budgets.md, pope_attention_backward.
"""

from __future__ import annotations

import numpy as np
import pytest
from pope_backward_calls import budgets, call
from simulated_attention import stressed
from test_pope_backward_budget import kernel_of

PATTERNS = ("outward", "up", "down", "call", "call", "call")
ONE = {
    "seqlen_q": 1, "seqlen_k": 1, "head_dim": 1, "rotary_dim": 1, "head_dim_v": 1,
    "dtype": "float32", "out_dtype": "float32", "delta": "heads", "positions": "offset", "start": 3,
}  # fmt: skip
EXACT = {
    "dot": "any", "feature_order": "joined", "softplus_ulp": 0.5, "sigmoid_ulp": 0.5,
    "trig_ulp": 0.5, "angle_error": 0.0, "phase_sums": "rows",
}  # fmt: skip
ROUGH = {"trig_ulp": 1000.0}
ALONE = {"features": "float32", "ds": "float32", "p": "float32"}  # no other cast to 16 bits
KEPT = {"point_gradients": "input", **ALONE}
APART = {"heads": "apart", **ALONE}
WIDE = "dS not rounded"
HALF, GROUP = {"dtype": "bfloat16"}, {"num_heads": 4, "delta": "none"}
# (output, term): fields of the case, stages, what the kernel does
NEEDED = {
    **{(output, "points"): ({}, {"softplus_ulp": 1000.0}, {}) for output in ("dq", "dk")},
    **{(output, "cos, sin"): ({}, ROUGH, {}) for output in ("dq", "dk", "ddelta")},
    **{(output, "sigmoid"): ({}, {"sigmoid_ulp": 1000.0}, {}) for output in ("dq", "dk")},
    **{(output, "way back"): ({}, {}, {}) for output in ("dq", "dk", "ddelta")},
    ("ddelta", "points"): ({}, {"softplus_ulp": 1000.0}, {}),
    ("ddelta", "softplus"): ({}, {"softplus_ulp": 1000.0, "phase_sums": "keys"}, {}),
    ("ddelta", "phases added"): ({"batch": 64}, {}, {}),
    ("dk", "heads added"): ({"num_heads": 3}, {}, {}),
    ("dk", "heads stored"): ({**HALF, **GROUP}, APART, {"apart": True, "fault": WIDE}),
    **{
        (output, "gradients of points rounded"): (HALF, KEPT, {"kept": True, "fault": WIDE})
        for output in ("dq", "dk", "ddelta")
    },
}


def shares(budget, value, term):
    """Of the whole bound, and of what is left of it without one term."""
    error = np.abs(value.reshape(budget.expected.shape) - budget.expected) - budget.oracle
    bounds = budget.bound, np.maximum(budget.without(term).bound, 1e-300)
    return (float(np.max(error / bound)) for bound in bounds)


@pytest.mark.parametrize(("output", "term"), NEEDED)
def test_deleting_a_term_is_noticed(output, term):
    fields, changed, does = NEEDED[output, term]
    worst, noticed, stages = 0.0, 0.0, {**EXACT, **changed}
    for seed in range(100):
        case, inputs = call(**{**ONE, **fields}, seed=seed)
        inputs["out"] = -inputs["out"]  # so that dP and D do not cancel
        budget = budgets(case, inputs, **stages)[output]
        assert term in budget.terms
        for corner, pattern in enumerate(PATTERNS):
            to = stressed(pattern, 8 * seed + corner)
            value = kernel_of(case, stages, to, **does).of(case, inputs)[output]
            whole, rest = shares(budget, value, term)
            worst, noticed = max(worst, whole), max(noticed, rest)
        if noticed > 1:
            break
    assert worst <= 1
    assert noticed > 1, noticed
