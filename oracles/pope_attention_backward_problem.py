"""`pope_attention_backward` in float64: attention's gradients of points, and the way back to x.

A polar feature x at the angle a is the point mu (cos a, sin a), mu = softplus(x): dmu/dx is
sigmoid(x), and the point turns by (-sin a, cos a) mu an angle (PoPE, arXiv:2509.10534, eq. 3 to 8).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tightrope.formats import Array, widen
from tightrope.oracles import attention_inputs
from tightrope.oracles.attention_backward_inputs import given_to
from tightrope.oracles.attention_backward_problem import (
    Backward,
    from_ds,
    slope,
    upstream,
    weights,
)
from tightrope.oracles.pope_attention_backward_cases import forward
from tightrope.oracles.pope_attention_problem import Polar, as_attention, polar, repeated
from tightrope.oracles.rope_attention_inputs import finite_keys

if TYPE_CHECKING:
    from tightrope.oracles.pope_attention_backward_cases import PopeAttentionBackwardCase

Given = Mapping[str, Array]
# sigmoid: exp within an ulp, of which at most all is passed on; a sum and a quotient.
SIGMOID_ERROR = 5 * 2.0**-53
SIGMOID_LEAST = 2.0**-1073  # and where exp(-|x|) is subnormal


def sigmoid(x: Array) -> Array:
    """1/(1 + e^-x), within SIGMOID_ERROR of itself and SIGMOID_LEAST."""
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1.0) / (1 + small)


@dataclass(frozen=True)
class Turned:
    """A call whose parts can be exchanged. b: attention's gradient of the points, one group a query
    head and one kv head each; x_q, x_k (batch, num_heads, length, rotary_dim), kv heads repeated.
    """

    case: PopeAttentionBackwardCase
    q: Polar
    k: Polar
    x_q: Array
    x_k: Array
    b: Backward
    shared: int

    @classmethod
    def of(
        cls, case: PopeAttentionBackwardCase, given: Given, q: Polar | None = None,
        k: Polar | None = None,
    ) -> Turned:  # fmt: skip
        """q, k: in place of those given, in polar form."""
        width, call = case.rotary_dim, forward(case)
        q, k = (polar(call, given, n) if p is None else p for n, p in (("q", q), ("k", k)))
        p = attention_inputs.stated(*as_attention(call, given, q, k))
        x_k = repeated(call, widen(finite_keys(call, given)))
        return cls(
            case, q, k, widen(given["q"])[..., :width], x_k[..., :width], given_to(p, given, 1),
            len(given["delta"]) if "delta" in given else 0,
        )  # fmt: skip

    @property
    def group(self) -> int:
        return self.case.num_heads // self.case.num_kv_heads

    def ds(self) -> tuple[Array, Array]:
        """P and dS without the scale, (batch x num_heads, seqlen_q, seqlen_k)."""
        p = weights(self.b)
        return p, p * upstream(self.b) * slope(self.b.forward)

    def points(self, p: Array, ds: Array) -> tuple[Array, Array, Array]:
        """Gradients of the points of q and k, and dv, of every query head."""
        shape = (self.case.batch, self.case.num_heads)
        e_q, e_k, dv = (x.reshape(*shape, *x.shape[1:]) for x in from_ds(self.b, p, ds))
        return e_q, e_k, dv


def gradients(
    t: Turned, found: tuple[Array, Array] | None = None,
    derivative: Callable[[Array], Array] = sigmoid,
) -> dict[str, Array]:  # fmt: skip
    """dq, dk, dv and ddelta in float64; found: other P and dS."""
    e_q, e_k, dv = t.points(*(found or t.ds()))
    return {
        "dq": back(t.q, e_q, derivative(t.x_q)),
        "dk": over_heads(back(t.k, e_k, derivative(t.x_k)), t.group),
        "dv": over_heads(dv, t.group),
        "ddelta": phases(turning(t.k, e_k), t.shared),
    }


def back(x: Polar, e: Array, derivative: Array) -> Array:
    """Gradients of features from those of their points."""
    width = derivative.shape[-1]
    along = derivative * (x.cos * e[..., :width] + x.sin * e[..., width : 2 * width])
    return np.concatenate([along, e[..., 2 * width :]], axis=-1)


def turning(x: Polar, e: Array) -> Array:
    """What the points move a number of gradient e by, a radian of their angles."""
    width = x.mu.shape[-1]
    return x.mu * (x.cos * e[..., width : 2 * width] - x.sin * e[..., :width])


def over_heads(x: Array, group: int, axis: int = 1) -> Array:
    """Added up over the query heads of a group."""
    shape = (*x.shape[:axis], x.shape[axis] // group, group, *x.shape[axis + 1 :])
    return x.reshape(shape).sum(axis=axis + 1)


def phases(turned: Array, shared: int) -> Array:
    """ddelta from (batch, num_heads, length, rotary_dim): (shared, rotary_dim); (0,) without."""
    if not shared:
        return np.zeros(0)
    found = turned.sum(axis=(0, 2))
    return over_heads(found, len(found) // shared, axis=0)


def moved(t: Turned, **parts: Any) -> Turned:
    """The same call of another problem of attention."""
    return replace(t, b=replace(t.b, **parts))
