"""One row of attention in ball arithmetic (python-flint's arb): logits, weights, lse, output.

Stored values are dyadic, so logits before softcap are computed as integers, without rounding; only
exp, tanh, log and what follows are balls. The precision rises until a ball decides 100 bits, which
ends because a result below 2**-8192 counts as 0. Results that are 0 do not need to go that far:
keys with one logit are weighed together, and by the Lindemann-Weierstrass theorem a sum
a_1 e^(t_1) + ... over distinct algebraic t_i is 0 only if every algebraic a_i is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from flint import arb, ctx, fmpz_mat

from tightrope.formats import Array

BITS, ENOUGH = 160, 1 << 15
ACCURATE = 101  # bits of a result that is done: its radius is below 2**-100 of it
NOTHING = arb((1, -8192))  # below it no format tells a number from 0


class Dyadic(NamedTuple):
    """mantissas (rows, features), Python integers, times 2**exponent; exponent <= 0."""

    mantissas: Array
    exponent: int


def dyadic(x: Array) -> Dyadic:
    """Stored numbers of any format as they are; raises ArithmeticError if one is not finite."""
    x = np.asarray(x).astype(np.float64)
    if not np.isfinite(x).all():
        raise ArithmeticError("the exact value does not exist: an input is infinite or NaN")
    fraction, exponent = np.frexp(x)
    whole = np.ldexp(fraction, 53).astype(np.int64)
    lowest = np.where(whole == 0, 1, whole & -whole)
    scale = exponent.astype(np.int64) - 54 + np.frexp(lowest.astype(np.float64))[1]
    least = int(scale.min(initial=0, where=whole != 0))
    shift, odd = np.where(whole == 0, 0, scale - least), whole // lowest
    if exponent.max(initial=0) - least > 62:  # beyond int64
        shift, odd = shift.astype(object), odd.astype(object)
    return Dyadic((odd << shift).astype(object), least)


def integers(x: Dyadic) -> fmpz_mat:
    """The mantissas as a matrix that multiplies without rounding."""
    rows, columns = x.mantissas.shape
    return fmpz_mat(rows, columns, x.mantissas.ravel().tolist())


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What a call demands of every row; fields as in a case. softmax_scale None: the float64
    number nearest to head_dim**-0.5, taken as exact."""

    softmax_scale: float
    softcap: float | None = None
    causal: bool = False
    window_left: int | None = None
    window_right: int | None = None

    @classmethod
    def of(cls, case: Any, head_dim: int) -> Rule:
        scale = case.softmax_scale
        if scale is None:
            with ctx.workprec(BITS):
                scale = float(arb(head_dim).rsqrt().mid())
        ends = {"window_left": case.window_left, "window_right": case.window_right}
        return cls(softmax_scale=scale, softcap=case.softcap, causal=case.causal, **ends)

    def span(self, position: int, seqlen_k: int) -> Array:
        """Indices of the keys that a query with this row + q_offset sees."""
        low, high = 0, seqlen_k
        if self.window_left is not None:
            low = max(low, position - self.window_left)
        if self.window_right is not None:
            high = min(high, position + self.window_right + 1)
        if self.causal:
            high = min(high, position + 1)
        return np.arange(low, max(low, high))


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one query sees. t: scaled scores, and with them the bias where there is no softcap,
    exact; bias: else; at: where the keys stand in the table of values."""

    t: list[Any]
    at: Array
    bias: list[Any] | None = None
    softcap: float | None = None
    sink: float | None = None

    @property
    def empty(self) -> bool:
        return not self.t and self.sink is None

    def _logits(self) -> list[Any]:
        z = self.t
        if self.softcap is not None:
            cap = arb(self.softcap)
            z = [cap * (x / cap).tanh() for x in z]
        if self.bias is not None:
            z = [x + b for x, b in zip(z, self.bias, strict=True)]
        return z if self.sink is None else [*z, arb(self.sink)]

    def weights(self) -> tuple[list[Any], Any]:
        """exp(logit - shift) of keys and sink, the largest exactly 1; the shift."""
        z = self._logits()
        middles = [x.mid() for x in z]
        top = max(range(len(z)), key=middles.__getitem__)
        shift = z[top]
        return [arb(1) if j == top else (x - shift).exp() for j, x in enumerate(z)], shift

    def lse(self) -> Fraction | None:
        """ln of the sum of exp(logit), None for -inf."""
        if self.empty:
            return None

        def compute() -> Any:
            weights, shift = self.weights()
            weights.remove(arb(1))
            return shift + sum(weights, arb(0)).log1p()

        return settled(compute)

    def out(self, column: Sequence[int], exponent: int) -> Fraction:
        """One feature; column: mantissas of the values of the keys, in the order of t."""
        groups: dict[Hashable, list[Any]] = {}
        for j, (x, value) in enumerate(zip(self.t, column, strict=True)):
            bias = None if self.bias is None else self.bias[j].man_exp()
            groups.setdefault((x.man_exp(), bias), [j, 0])[1] += int(value)
        live = [(j, value) for j, value in groups.values() if value]
        if not live:
            return Fraction(0)

        def compute() -> Any:
            weights, _ = self.weights()
            above = sum((weights[j] * value for j, value in live), arb(0))
            return above * arb((1, exponent)) / sum(weights, arb(0))

        return settled(compute)


def settled(compute: Callable[[], Any]) -> Fraction:
    """The value of a ball, computed with ever more bits; raises ArithmeticError if never."""
    bits = BITS
    while bits <= ENOUGH:
        with ctx.workprec(bits):
            value = decided(compute())
        if value is not None:
            return value
        bits *= 2
    raise ArithmeticError(f"{ENOUGH} bits do not decide an exact value")


def decided(x: Any) -> Fraction | None:
    """The midpoint, where the ball is narrow enough."""
    if abs(x) < NOTHING:
        return Fraction(0)
    if not x.is_finite() or (not x.is_exact() and x.rel_accuracy_bits() < ACCURATE):
        return None
    mantissa, exponent = map(int, x.mid().man_exp())
    return Fraction(mantissa << max(exponent, 0), 1 << max(-exponent, 0))
