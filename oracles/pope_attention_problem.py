"""`pope_attention` as plain attention of twice as many polar features, in float64.

PoPE (arXiv:2509.10534), eq. 3 to 8: feature c of a query at position m becomes the complex number
softplus(q_c) e^(i m f_c), of a key at n softplus(k_c) e^(i (n f_c + delta_c)); eq. 10: a score is
the sum of x_q x_k + y_q y_k over their real and imaginary parts. Plain features count as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tightrope.formats import Array, widen
from tightrope.oracles import attention_inputs
from tightrope.oracles.attention_problem import Problem
from tightrope.oracles.pope_attention_angles import TRIG_ERROR, reduced
from tightrope.oracles.rope_attention_inputs import finite_keys

if TYPE_CHECKING:
    from tightrope.oracles.pope_attention_cases import PopeAttentionCase

Given = Mapping[str, Array]
# softplus: exp, log1p (of slope at most 1) and a sum, an ulp, an ulp and half an ulp.
MU_ERROR = 5 * 2.0**-53
MU_LEAST = 2.0**-1073  # and where exp(x) is subnormal


@dataclass(frozen=True)
class Polar:
    """q or k of one call as the operation sees them; float64.

    mu, cos, sin (batch, num_heads, length, rotary_dim), or 1 where they are the same for all;
    plain (batch, num_heads, length, head_dim - rotary_dim). kv heads are repeated.
    """

    mu: Array
    cos: Array
    sin: Array
    plain: Array

    @property
    def features(self) -> Array:
        """(batch, num_heads, length, head_dim + rotary_dim): mu cos, mu sin, plain."""
        return np.concatenate([self.mu * self.cos, self.mu * self.sin, self.plain], axis=-1)

    @property
    def own(self) -> Array:
        """How far `features` may be from exact: errors of mu and of cos or sin, one product."""
        error = self.mu * (MU_ERROR + TRIG_ERROR + 2.0**-52) + 2 * MU_LEAST
        return np.concatenate([error, error, np.zeros_like(self.plain)], axis=-1)


def softplus(x: Array) -> Array:
    """ln(1 + e^x), within MU_ERROR of itself and MU_LEAST."""
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def scale_of(case: PopeAttentionCase) -> float:
    """softmax_scale, or that of the head_dim of q: polar features do not count twice."""
    return case.head_dim**-0.5 if case.softmax_scale is None else case.softmax_scale


def repeated(case: PopeAttentionCase, x: Array, axis: int = 1) -> Array:
    """kv heads repeated for their query heads; a tensor that has num_heads is left as it is."""
    return np.repeat(x, case.num_heads // x.shape[axis], axis=axis)


def angles(case: PopeAttentionCase, given: Given, name: str) -> Array:
    """Of "q" or "k", within [-pi, pi], (batch or 1, num_heads or 1, length, rotary_dim); those of k
    with delta."""
    positions = given[f"{name}_positions"]
    steps = np.atleast_2d(positions)[:, None, :, None]
    phases = np.zeros((1, 1, 1))
    if name == "k" and "delta" in given:
        phases = repeated(case, given["delta"], axis=0)[:, None, :]
    return reduced(steps, widen(given["inv_freq"]), widen(phases))


def polar(
    case: PopeAttentionCase, given: Given, name: str, magnitude: Callable[[Array], Array] = softplus
) -> Polar:
    """ "q" or "k" in polar form; k with 0 for keys that no row sees."""
    x = repeated(case, widen(given["q"] if name == "q" else finite_keys(case, given)))
    width = given["inv_freq"].shape[0]
    angle = angles(case, given, name)
    return Polar(magnitude(x[..., :width]), np.cos(angle), np.sin(angle), x[..., width:])


def as_attention(
    case: PopeAttentionCase, given: Given, q: Polar, k: Polar
) -> tuple[Any, dict[str, Array]]:
    """Case and inputs of a call of `attention` that is the same: its heads are all query heads."""
    rest = {name: given[name] for name in ("sink", "q_offset") if name in given}
    v = repeated(case, given["v"])
    same = replace(case, softmax_scale=scale_of(case))
    return same, {"q": q.features, "k": k.features, "v": v, **rest}


def right(case: PopeAttentionCase, inputs: Given) -> Problem:
    """The call as one problem; groups are batch x num_heads, features as in `Polar.features`."""
    each = (polar(case, inputs, name) for name in ("q", "k"))
    return attention_inputs.stated(*as_attention(case, inputs, *each))
