"""Small calls of `attention_backward`, and how far two right evaluations of one may lie apart."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from tightrope.contract import contract
from tightrope.formats import Array
from tightrope.oracles.attention_backward_budget import backward
from tightrope.oracles.attention_backward_cases import AttentionBackwardCase
from tightrope.oracles.attention_backward_inputs import stated
from tightrope.oracles.attention_backward_mpmath import DIGITS, STEP
from tightrope.oracles.attention_backward_problem import weights

SPEC = contract("attention_backward")
OUTPUTS = SPEC.outputs
DECLARED = {"state": "given", "logits": "scaled", "heads": "summed"}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"dtype": "float32"},
    "wide": {"causal": True, "seqlen_q": 2, "seqlen_k": 6, "q_offset": 4, "dtype": "bfloat16"},
    "tall": {"causal": True, "seqlen_q": 6, "seqlen_k": 3, "q_offset": -3},
    "window": {"window_left": 2, "window_right": 1, "seqlen_q": 6, "hidden": "inf"},
    "self": {"window_left": 0, "window_right": 0, "q_offset": 1, "hidden": "nan"},
    "softcap": {"softcap": 1.5, "softmax_scale": 0.7, "dtype": "bfloat16"},
    "saturated": {"softcap": 0.5, "softmax_scale": 4.0, "data": "times_30"},
    "groups": {"batch": 2, "num_heads": 4, "num_kv_heads": 2, "seqlen_q": 3, "dtype": "float32"},
    "offsets": {"batch": 2, "offsets": "tensor", "causal": True, "q_offset": 1, "hidden": "nan"},
    "one row": {"data_dout": "one_row", "data": "repeated_keys", "data_v": "constant"},
    "no keys": {"seqlen_k": 0, "empty_rows": True},
    "no queries": {"seqlen_q": 0},
    "everything": {
        **{"batch": 2, "num_heads": 4, "num_kv_heads": 2, "causal": True, "q_offset": 1},
        **{"window_left": 3, "softcap": 3.0, "offsets": "tensor", "state": "low_precision"},
    },
}


def call(**settings: Any) -> tuple[AttentionBackwardCase, dict[str, Array]]:
    """A case and its inputs; four queries, five keys and few features if not said otherwise."""
    sizes = {"seqlen_q": 4, "seqlen_k": 5, "head_dim": 3, "head_dim_v": 2}
    case = AttentionBackwardCase(**{**sizes, **settings})
    return case, SPEC.inputs(case)


def exact(case: AttentionBackwardCase, inputs: Mapping[str, Array], output: str) -> list[Fraction]:
    """Every element of an output in ball arithmetic."""
    size = inputs[output.removeprefix("d")].size
    return [x or Fraction(0) for x in SPEC.exact(case, inputs, output, range(size))]


def float64_limits(case: AttentionBackwardCase, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """What the budget says of float64 itself."""
    found = backward(stated(case, inputs), DECLARED)
    return {name: np.broadcast_to(b.oracle, b.expected.shape) for name, b in found.items()}


def mpmath_limits(case: AttentionBackwardCase, inputs: Mapping[str, Array]) -> dict[str, Fraction]:
    """How far a central difference may be off.

    With x the logit, F is a sum of P a, and d3(P)/dx3 under a softcap c is at most P (1 + 3/c +
    2/c^2): h^2/6 of that, times the cubes of scale |k| or scale |q|, doubled for the neighbours
    that the mean value is taken at. F is linear in v. Rounding: every term of F is off by 40 units
    of DIGITS times 1 + |t| + |lse|, and is divided by h.
    """
    b = stated(case, inputs)
    if not b.forward.visible.any():
        return dict.fromkeys(OUTPUTS, Fraction(0))
    p, cap = weights(b), b.forward.softcap or np.inf
    sizes = np.abs(b.dout) @ np.abs(b.forward.v).swapaxes(-1, -2)
    sizes = p * (sizes + (np.abs(b.dout) * np.abs(b.out)).sum(-1, keepdims=True))
    reach = max(float(np.abs(x).max(initial=0.0)) for x in (b.forward.q, b.forward.k))
    bend = (b.forward.softmax_scale * reach) ** 3 * (1 + 3 / cap + 2 / cap**2)
    far = 1 + abs(b.forward.softmax_scale) * reach**2 * b.forward.q.shape[-1]
    far = far + float(np.abs(b.lse).max(initial=0.0))
    total = Fraction(float(sizes.sum()))
    cut = Fraction(bend) * total / 3 / 10 ** (2 * STEP)
    lost = 40 * Fraction(far) * total * 10**STEP / Fraction(10) ** (DIGITS - 1)
    return {"dq": cut + lost, "dk": cut + lost, "dv": lost}
