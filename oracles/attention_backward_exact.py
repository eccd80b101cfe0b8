"""Exact gradients of attention in ball arithmetic, one element at a time.

t - lse, dout . v - D and every factor that meets P are dyadic, since lse and out are given: only
exp, and the softcap with its slope, are balls. Pairs of one logit and one lse are weighed together,
so that what cancels exactly is known to be 0, as in `tightrope.oracles.attention_row_exact`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from flint import arb, arb_mat, ctx

from tightrope.formats import Array
from tightrope.oracles.attention_exact import ROOM
from tightrope.oracles.attention_row_exact import Dyadic, Rule, dyadic, integers, settled

if TYPE_CHECKING:
    from tightrope.oracles.attention_backward_cases import AttentionBackwardCase

Matrix = list[list[Any]]
Spot = tuple[int, int, Array, Array]  # batch, query head, rows, keys: all of them see one another
Load = Callable[[str, int, int, Array], Dyadic]  # "q" or "k", batch, query head, rows
Column = Callable[[Sequence[Spot], str, int], list[Any]]  # spots, output, feature


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Query and key pairs that see each other, in one list. t: scale q.k, a: dout.v - D, both
    exact; lse: of the query; column(output, feature): what P is multiplied with for dv, scale dS
    for others."""

    t: list[Any]
    a: list[Any]
    lse: list[float]
    column: Callable[[str, int], list[Any]]
    softcap: float | None
    found: dict[tuple[int, bool], list[Any]] = field(default_factory=dict)

    def factors(self, slope: bool) -> list[Any]:
        """P of every pair at the present precision; slope: times the softcap's derivative."""
        key = ctx.prec, slope
        if key not in self.found:
            pairs = zip(self.t, self.lse, strict=True)
            self.found[key] = [_factor(t, lse, self.softcap, slope) for t, lse in pairs]
        return self.found[key]

    def value(self, output: str, feature: int, scale: Any) -> Fraction:
        """One element: of dv the sum of P times a factor, of others of dS times one."""
        groups: dict[Hashable, list[Any]] = {}
        with ctx.workprec(ROOM):
            for j, number in enumerate(self.column(output, feature)):
                amount = number if output == "dv" else scale * self.a[j] * number
                at = groups.setdefault((self.t[j].man_exp(), self.lse[j]), [j, arb(0)])
                at[1] += amount
        live = [(j, amount) for j, amount in groups.values() if amount != 0]
        if not live:
            return Fraction(0)

        def compute() -> Any:
            p = self.factors(output != "dv")
            return sum((p[j] * amount for j, amount in live), arb(0))

        return settled(compute)


def _factor(t: Any, lse: float, softcap: float | None, slope: bool) -> Any:
    """exp(t - lse), t capped; times sech^2(t / softcap) for dS."""
    if softcap is None:
        return (t - arb(lse)).exp()
    cap = arb(softcap)
    y = t / cap
    p = (cap * y.tanh() - arb(lse)).exp()
    if not slope:
        return p
    small = (-2 * abs(y)).exp()
    return p * 4 * small / (1 + small) ** 2


def _product(a: Dyadic, b: Dyadic) -> Matrix:
    """a b^T without rounding."""
    found = arb_mat(integers(a) * integers(b).transpose()) * arb((1, a.exponent + b.exponent))
    rows: Matrix = found.tolist()
    return rows


def numbers(x: Array) -> list[Any]:
    """Stored numbers (n,) as exact balls."""
    whole = dyadic(x)
    one = arb((1, whole.exponent))
    return [arb(int(m)) * one for m in whole.mantissas.tolist()]


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call with a batch axis. load: rows of q or k as scores see them; column: see `Pairs`."""

    rule: Rule
    inputs: Mapping[str, Array]
    offsets: Array
    load: Load
    column: Column

    @property
    def group(self) -> int:
        return int(self.inputs["q"].shape[1] // max(self.inputs["k"].shape[1], 1))

    def seen_by(self, batch: int, head: int, row: int) -> Spot:
        """A query and the keys that it sees."""
        keys = self.rule.span(row + int(self.offsets[batch]), self.inputs["k"].shape[2])
        return batch, head, np.array([row]), keys

    def that_see(self, batch: int, kv_head: int, key: int) -> list[Spot]:
        """A key and the queries of every head of the group that see it."""
        every = range(self.inputs["q"].shape[2])
        rows = [i for i in every if key in self.seen_by(batch, 0, i)[3]]
        heads = range(kv_head * self.group, (kv_head + 1) * self.group)
        return [(batch, h, np.array(rows, int), np.array([key])) for h in heads if rows]

    def pairs(self, spots: Sequence[Spot]) -> Pairs:
        """Raises ArithmeticError if an input that counts is not finite."""
        t: list[Any] = []
        a: list[Any] = []
        lse: list[float] = []
        with ctx.workprec(ROOM):
            for spot in spots:
                batch, head, rows, keys = spot
                for found, more in zip((t, a), self._block(*spot), strict=True):
                    found += [x for line in more for x in line]
                lse += _finite(np.repeat(self.inputs["lse"][batch, head, rows], keys.size))
        return Pairs(
            t=t, a=a, lse=lse, softcap=self.rule.softcap,
            column=lambda output, feature: self.column(spots, output, feature),
        )  # fmt: skip

    def _block(self, batch: int, head: int, rows: Array, keys: Array) -> tuple[Matrix, Matrix]:
        """t and a of some rows of a head with some keys."""
        numerator, denominator = self.rule.softmax_scale.as_integer_ratio()
        dout, out = (dyadic(self.inputs[n][batch, head, rows]) for n in ("dout", "out"))
        v = dyadic(self.inputs["v"][batch, head // self.group, keys])
        q, k = self.load("q", batch, head, rows), self.load("k", batch, head, keys)
        q = Dyadic(q.mantissas * numerator, q.exponent - denominator.bit_length() + 1)
        a = _product(dout, v)
        for i in range(len(rows)):
            d = sum((dout.mantissas[i] * out.mantissas[i]).tolist())
            shift = arb(d) * arb((1, dout.exponent + out.exponent))
            a[i] = [x - shift for x in a[i]]
        return _product(q, k), a

    def values(self, output: str, flat: Sequence[int]) -> list[Fraction]:
        """Of "dq", "dk" or "dv" at flat indices."""
        shape = self.inputs[output.removeprefix("d")].shape
        with ctx.workprec(ROOM):
            scale = arb(self.rule.softmax_scale)
        known: dict[tuple[int, int, int], Pairs] = {}
        found = []
        for index in flat:
            batch, head, place, feature = (int(i) for i in np.unravel_index(int(index), shape))
            at = batch, head, place
            if at not in known:
                spots = [self.seen_by(*at)] if output == "dq" else self.that_see(*at)
                known[at] = self.pairs(spots)
            found.append(known[at].value(output, feature, scale))
        return found


def _finite(lse: Array) -> list[float]:
    """Raises ArithmeticError for a row that sees a key and has no finite lse."""
    if not np.isfinite(lse).all():
        raise ArithmeticError("the exact value does not exist: lse is infinite or NaN")
    return [float(x) for x in lse]


def call_of(case: Any, inputs: Mapping[str, Array], load: Load, column: Column) -> Call:
    """The call of a case; load and column: of its operation."""
    q = inputs["q"]
    offsets = np.broadcast_to(inputs.get("q_offset", case.q_offset), (len(q),))
    rule = Rule.of(case, q.shape[-1])
    return Call(rule=rule, inputs=inputs, offsets=offsets, load=load, column=column)


def exact(
    case: AttentionBackwardCase, inputs: Mapping[str, Array], output: str, flat: Sequence[int]
) -> list[Fraction]:
    """Exact values of "dq", "dk" or "dv" at flat (C order) indices, within 2**-100 of themselves.

    Raises ArithmeticError if an input that counts is not finite.
    """

    def load(name: str, batch: int, head: int, rows: Array) -> Dyadic:
        return dyadic(_rows(inputs, name, batch, head)[rows])

    def column(spots: Sequence[Spot], output: str, feature: int) -> list[Any]:
        name = {"dq": "k", "dk": "q", "dv": "dout"}[output]
        return of_pairs(inputs, spots, name, feature)

    return call_of(case, inputs, load, column).values(output, flat)


def of_pairs(
    inputs: Mapping[str, Array], spots: Sequence[Spot], name: str, feature: int
) -> list[Any]:
    """A feature of the query or key of every pair."""
    found: list[Any] = []
    for batch, head, rows, keys in spots:
        each = _rows(inputs, name, batch, head)[keys if name == "k" else rows, feature]
        x = numbers(each)
        found += x * len(rows) if name == "k" else [y for y in x for _ in keys]
    return found


def _rows(inputs: Mapping[str, Array], name: str, batch: int, head: int) -> Array:
    """Of a query head; keys are those of its kv head."""
    x = inputs[name]
    return x[batch, head * x.shape[1] // inputs["q"].shape[1]]
