"""Small calls of `pope_attention_backward`, and how far two right evaluations may lie apart."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from tightrope import Arithmetic
from tightrope.contract import contract
from tightrope.formats import Array
from tightrope.oracles.attention_backward_mpmath import DIGITS, STEP
from tightrope.oracles.attention_backward_problem import weights
from tightrope.oracles.pope_attention_backward_cases import PopeAttentionBackwardCase
from tightrope.oracles.pope_attention_backward_problem import Turned

SPEC = contract("pope_attention_backward")
PROMISED = {
    **{"state": "given", "logits": "scaled", "heads": "summed"},
    **{"angle": "exact", "angle_error": 2.0**-48, "trig_ulp": 0.5 + 2.0**-20},
    **{"softplus_ulp": 10.0, "softplus_error": 0.0, "feature_order": "blocks"},
    **{"sigmoid_ulp": 13.0, "sigmoid_error": 0.0, "point_gradients": "float32"},
}
LIGHT = {"phase": "query", "table": "float16", "phase_sums": "rows"}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"dtype": "float32"},
    "far": {"positions": "long", "start": (1 << 20) - 2, "delta": "heads", "delta_data": "wide"},
    "tall": {"causal": True, "seqlen_q": 5, "seqlen_k": 3, "q_offset": -2, "hidden": "inf"},
    "window": {"window_left": 1, "window_right": 1, "seqlen_q": 5, "delta": "kv_heads"},
    "softcap": {"softcap": 1.5, "softmax_scale": 0.7, "dtype": "bfloat16", "delta": "heads"},
    "growing": {"exponent_sign": 1, "rope_theta": 100.0, "rotary_dim": 3},
    "groups": {"batch": 2, "num_heads": 4, "num_kv_heads": 2, "seqlen_q": 2, "delta": "heads"},
    "shared": {"batch": 2, "num_heads": 4, "num_kv_heads": 2, "seqlen_q": 2, "delta": "kv_heads"},
    "offsets": {"batch": 2, "offsets": "tensor", "causal": True, "q_offset": 1, "hidden": "nan"},
    "low": {"data": "delicate", "dtype": "float32", "state": "low_precision"},
    "no keys": {"seqlen_k": 0, "empty_rows": True, "delta": "heads"},
    "no queries": {"seqlen_q": 0, "delta": "kv_heads"},
}


def call(**settings: Any) -> tuple[PopeAttentionBackwardCase, dict[str, Array]]:
    """A case and its inputs; four queries, four keys and few features if not said otherwise."""
    sizes = {"seqlen_q": 4, "seqlen_k": 4, "head_dim": 3, "head_dim_v": 2, "rotary_dim": 2}
    case = PopeAttentionBackwardCase(**{**sizes, **settings})
    return case, SPEC.inputs(case)


def budgets(
    case: PopeAttentionBackwardCase, inputs: Mapping[str, Array], **stages: Any
) -> dict[str, Any]:
    """Of a kernel that promises every rounding, its stages changed by name."""
    return SPEC.budget(case, inputs, Arithmetic(**{**PROMISED, **stages}).over(SPEC.stages))


def size_of(inputs: Mapping[str, Array], output: str) -> int:
    name = output.removeprefix("d")
    return inputs[name].size if name in inputs else 0


def exact(
    case: PopeAttentionBackwardCase, inputs: Mapping[str, Array], output: str
) -> list[Fraction]:
    """Every element of an output in ball arithmetic."""
    return [
        x or Fraction(0) for x in SPEC.exact(case, inputs, output, range(size_of(inputs, output)))
    ]


def mpmath_limit(case: PopeAttentionBackwardCase, inputs: Mapping[str, Array]) -> Fraction:
    """How far a central difference of F = sum P a may be off.

    Along a feature or a phase the logit has derivatives of at most r = scale * (largest
    magnitude)^2 (softplus' are at most 1), under a softcap c multiplied by at most 1 + 3/c +
    2/c^2, and F's third one is at most 6 (1 + r)^3 of the sizes of P a; h^2 of it is more than the
    cut. Rounding: every term of F is off by 40 units of DIGITS times 1 + |t| + |lse| and the
    largest angle, and is divided by h.
    """
    t = Turned.of(case, inputs)
    if not t.b.forward.visible.any():
        return Fraction(0)
    p, cap = weights(t.b), case.softcap or np.inf
    sizes = np.abs(t.b.dout) @ np.abs(t.b.forward.v).swapaxes(-1, -2)
    sizes = p * (sizes + (np.abs(t.b.dout) * np.abs(t.b.out)).sum(-1, keepdims=True))
    reach = max(1.0, *(float(np.abs(x).max(initial=0.0)) for x in (t.b.forward.q, t.b.forward.k)))
    r = t.b.forward.softmax_scale * reach**2 * (1 + 3 / cap + 2 / cap**2)
    places = max(float(np.abs(inputs[f"{n}_positions"]).max(initial=0)) for n in "qk")
    angle = 1 + places * float(inputs["inv_freq"].max()) + 1e3
    far = (1 + r * case.head_dim + float(np.abs(t.b.lse).max(initial=0.0))) * angle
    total = Fraction(float(sizes.sum()))
    cut = 6 * Fraction(1 + r) ** 3 * total / 10 ** (2 * STEP)
    return cut + 40 * Fraction(far) * total * 10**STEP / Fraction(10) ** (DIGITS - 1)
