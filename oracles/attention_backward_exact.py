"""Exact gradients of attention in ball arithmetic, one element at a time.

t - lse, dout . v - D and every factor that meets P are dyadic, since lse and out are given: only
exp, and the softcap with its slope, are balls. Pairs of one logit and one lse are weighed together,
so that what cancels exactly is known to be 0, as in `tightrope.oracles.attention_row_exact`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
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


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Query and key pairs that see each other, in one list. t: scale q.k, a: dout.v - D, both
    exact; lse: of the query; rows: what P is multiplied with for dv, dS for dq or dk; (pairs,
    features), exact."""

    t: list[Any]
    a: list[Any]
    lse: list[float]
    rows: Mapping[str, Matrix]
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
        """One element: of dv the sum of P times a factor, of dq and dk of dS times one."""
        groups: dict[Hashable, list[Any]] = {}
        with ctx.workprec(ROOM):
            for j, row in enumerate(self.rows[output]):
                amount = row[feature] if output == "dv" else scale * self.a[j] * row[feature]
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


def _numbers(x: Array) -> Matrix:
    whole = dyadic(x)
    one = arb((1, whole.exponent))
    return [[arb(int(m)) * one for m in row] for row in whole.mantissas.tolist()]


def _block(
    rule: Rule, inputs: Mapping[str, Array], at: tuple[int, int, int], rows: Array, keys: Array
) -> tuple[Matrix, Matrix]:
    """t and a of some rows of a head with some keys; at: batch, query head, kv head."""
    batch, head, kv_head = at
    numerator, denominator = rule.softmax_scale.as_integer_ratio()
    q, dout, out = (dyadic(inputs[n][batch, head, rows]) for n in ("q", "dout", "out"))
    k, v = (dyadic(inputs[n][batch, kv_head, keys]) for n in ("k", "v"))
    q = Dyadic(q.mantissas * numerator, q.exponent - denominator.bit_length() + 1)
    a = _product(dout, v)
    for i in range(len(rows)):
        d = sum((dout.mantissas[i] * out.mantissas[i]).tolist())
        shift = arb(d) * arb((1, dout.exponent + out.exponent))
        a[i] = [x - shift for x in a[i]]
    return _product(q, k), a


def _finite(lse: Array) -> list[float]:
    """Raises ArithmeticError for a row that sees a key and has no finite lse."""
    if not np.isfinite(lse).all():
        raise ArithmeticError("the exact value does not exist: lse is infinite or NaN")
    return [float(x) for x in lse]


def _of_query(
    rule: Rule, inputs: Mapping[str, Array], at: tuple[int, int, int], row: int, offset: int
) -> Pairs:
    keys = rule.span(row + offset, inputs["k"].shape[2])
    batch, head, kv_head = at
    with ctx.workprec(ROOM):
        t, a = _block(rule, inputs, at, np.array([row]), keys)
        factors = _numbers(inputs["k"][batch, kv_head, keys])
    lse = _finite(np.repeat(inputs["lse"][batch, head, row], keys.size))
    return Pairs(t=t[0], a=a[0], lse=lse, rows={"dq": factors}, softcap=rule.softcap)


def _of_key(
    rule: Rule, inputs: Mapping[str, Array], batch: int, kv_head: int, key: int, offset: int
) -> Pairs:
    """Every query of every head of the group that sees the key."""
    seqlen_q, seqlen_k = inputs["q"].shape[2], inputs["k"].shape[2]
    group = inputs["q"].shape[1] // inputs["k"].shape[1]
    rows = np.array([i for i in range(seqlen_q) if key in rule.span(i + offset, seqlen_k)], int)
    t, a, lse, of_q, of_dout = [], [], [], [], []
    with ctx.workprec(ROOM):
        for head in range(kv_head * group, (kv_head + 1) * group) if rows.size else ():
            more = _block(rule, inputs, (batch, head, kv_head), rows, np.array([key]))
            t += [x[0] for x in more[0]]
            a += [x[0] for x in more[1]]
            lse += _finite(inputs["lse"][batch, head, rows])
            of_q += _numbers(inputs["q"][batch, head, rows])
            of_dout += _numbers(inputs["dout"][batch, head, rows])
    return Pairs(t=t, a=a, lse=lse, rows={"dk": of_q, "dv": of_dout}, softcap=rule.softcap)


def exact(
    case: AttentionBackwardCase, inputs: Mapping[str, Array], output: str, flat: Sequence[int]
) -> list[Fraction]:
    """Exact values of "dq", "dk" or "dv" at flat (C order) indices, within 2**-100 of themselves.

    Raises ArithmeticError if an input that counts is not finite.
    """
    q, k = inputs["q"], inputs["k"]
    rule, group = Rule.of(case, q.shape[-1]), q.shape[1] // max(k.shape[1], 1)
    shape = inputs[output.removeprefix("d")].shape
    offsets = np.broadcast_to(inputs.get("q_offset", case.q_offset), (len(q),))
    with ctx.workprec(ROOM):
        scale = arb(rule.softmax_scale)
    known: dict[tuple[int, int, int], Pairs] = {}
    values = []
    for index in flat:
        batch, head, place, feature = (int(i) for i in np.unravel_index(int(index), shape))
        at = batch, head, place
        if at not in known:
            offset = int(offsets[batch])
            if output == "dq":
                known[at] = _of_query(rule, inputs, (batch, head, head // group), place, offset)
            else:
                known[at] = _of_key(rule, inputs, *at, offset)
        values.append(known[at].value(output, feature, scale))
    return values
