"""Exact gradients of polar attention in ball arithmetic, one element at a time.

With the points (X, Y) = softplus(x) (cos a, sin a) of PoPE (arXiv:2509.10534, eq. 3 to 8) cut to
PLACES binary places as in `tightrope.oracles.pope_attention_exact`, scores are exact sums, and what
dS is multiplied with is the derivative of X_q X_k + Y_q Y_k: sigmoid(x) (cos a X + sin a Y), of the
other's point, by a feature; Y_q X_k - X_q Y_k by a phase. The cut is far below every format, but
for results below 2**-450.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from flint import arb, ctx

from tightrope.formats import Array
from tightrope.oracles.attention_backward_exact import Call, Spot, call_of, of_pairs
from tightrope.oracles.attention_row_exact import Dyadic
from tightrope.oracles.pope_attention_exact import PLACES, points_of, sin_cos

if TYPE_CHECKING:
    from tightrope.oracles.pope_attention_backward_cases import PopeAttentionBackwardCase

BITS = PLACES + 192
OTHER = {"dq": "k", "dk": "q"}


@dataclass(frozen=True)
class Points:
    """q and k of a call as points; those of a row are made once. Only keys that are seen are asked
    for."""

    inputs: Mapping[str, Array]
    found: dict[tuple[str, int, int, int], Array] = field(default_factory=dict)

    @property
    def width(self) -> int:
        return len(self.inputs["inv_freq"])

    @property
    def heads(self) -> int:
        return int(self.inputs["q"].shape[1])

    def angles(self, name: str, batch: int, head: int, row: int) -> list[tuple[int, float, float]]:
        """Position, frequency and phase of every polar feature."""
        places = np.atleast_2d(self.inputs[f"{name}_positions"])
        at = int(places[batch % len(places), row])
        phase = np.zeros(self.width)
        if name == "k" and "delta" in self.inputs:
            delta = self.inputs["delta"]
            phase = delta[head * len(delta) // self.heads].astype(np.float64)
        pairs = zip(self.inputs["inv_freq"], phase.tolist(), strict=True)
        return [(at, float(f), x) for f, x in pairs]

    def vector(self, name: str, batch: int, head: int, row: int) -> Array:
        x = self.inputs[name]
        return x[batch, head * x.shape[1] // self.heads, row].astype(np.float64)

    def row(self, name: str, batch: int, head: int, row: int) -> Array:
        """X, Y and plain features, in units of 2**-PLACES."""
        at = name, batch, head, row
        if at not in self.found:
            made = points_of(self.vector(*at)[None], [self.angles(*at)])
            self.found[at] = made.mantissas[0]
        return self.found[at]

    def load(self, name: str, batch: int, head: int, rows: Array) -> Dyadic:
        width = self.inputs[name].shape[-1] + self.width
        each = [self.row(name, batch, head, int(row)) for row in rows]
        return Dyadic(np.array(each, object).reshape(len(rows), width), -PLACES)

    def column(self, spots: Sequence[Spot], output: str, feature: int) -> list[Any]:
        if output == "dv":
            return of_pairs(self.inputs, spots, "dout", feature)
        if output != "ddelta" and feature >= self.width:
            return of_pairs(self.inputs, spots, OTHER[output], feature)
        return [
            self._derivative(batch, head, int(i), int(j), output, feature)
            for batch, head, rows, keys in spots
            for i in rows
            for j in keys
        ]

    def _derivative(
        self, batch: int, head: int, query: int, key: int, output: str, feature: int
    ) -> Any:
        """Of X_q X_k + Y_q Y_k of one feature."""
        at = {"q": (batch, head, query), "k": (batch, head, key)}
        q, k = ([int(x) for x in self.row(n, *at[n])[feature :: self.width][:2]] for n in "qk")
        unit = arb((1, -PLACES))
        if output == "ddelta":
            return arb(q[1] * k[0] - q[0] * k[1]) * unit * unit
        name = output.removeprefix("d")
        x, y = k if name == "q" else q
        angle, value = self.angles(name, *at[name])[feature], self.vector(name, *at[name])[feature]
        with ctx.workprec(BITS):
            sine, cosine = sin_cos(*angle, BITS)
            found = _sigmoid(float(value)) * (cosine * x + sine * y) * unit
            return found.mid()


def _sigmoid(x: float) -> Any:
    """1/(1 + e^-x), by an exponential that is at most 1."""
    small = arb(-abs(x)).exp()
    return (small if x < 0 else arb(1)) / (1 + small)


def exact(
    case: PopeAttentionBackwardCase, inputs: Mapping[str, Array], output: str, flat: Sequence[int]
) -> list[Fraction]:
    """Exact values of "dq", "dk", "dv" or "ddelta" at flat (C order) indices, within 2**-100 of
    themselves.

    Raises ArithmeticError if an input that counts is not finite.
    """
    points = Points(inputs)
    call = call_of(case, inputs, points.load, points.column)
    return call.values(output, flat) if output != "ddelta" else _of_phases(call, flat)


def _of_phases(call: Call, flat: Sequence[int]) -> list[Fraction]:
    """Sums over all pairs of the heads that share a phase."""
    batch, heads, rows = call.inputs["q"].shape[:3]
    shared, width = call.inputs["delta"].shape if flat else (0, 0)
    known: dict[int, Any] = {}
    found = []
    for index in flat:
        phase, feature = divmod(int(index), width)
        if phase not in known:
            group = heads // shared
            mine = range(phase * group, (phase + 1) * group)
            each = (call.seen_by(b, h, i) for b in range(batch) for h in mine for i in range(rows))
            known[phase] = call.pairs(list(each))
        found.append(known[phase].value("ddelta", feature, arb(call.rule.softmax_scale)))
    return found
