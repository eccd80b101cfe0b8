"""Exact results of attention in ball arithmetic, one element at a time.

Groups the wanted elements by head and row, so that a row's weights are computed once. The other
attention contracts describe their sequences as `Head`s and use `values`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from flint import arb, arb_mat, ctx

from tightrope.formats import Array
from tightrope.oracles.attention_row_exact import (
    BITS,
    Dyadic,
    Row,
    Rule,
    decided,
    dyadic,
    integers,
)

if TYPE_CHECKING:
    from tightrope.oracles.attention_cases import AttentionCase

Value = Fraction | None
Place = tuple[Any, int, int]  # key of a head, row, feature
Load = Callable[[str, int, int, Array], Dyadic]  # "q" or "k", batch, head, rows

ROOM = 1 << 13  # bits; no sum or product of stored values has more, so nothing is rounded
CHUNK, MOST = 1 << 12, 1 << 21  # keys, and rows x keys, held as Python numbers at a time


@dataclass(frozen=True, kw_only=True)
class Head:
    """One query head of one sequence. q, k: rows at given indices, rotated where the operation
    rotates; v likewise, (keys, head_dim_v), as stored. bias (seqlen_q, seqlen_k). Only indices
    that some row sees are ever asked for."""

    q: Callable[[Array], Dyadic]
    k: Callable[[Array], Dyadic]
    v: Callable[[Array], Array]
    seqlen_k: int
    q_offset: int
    bias: Array | None = None
    sink: float | None = None


def _scores(rule: Rule, head: Head, rows: Sequence[int], keys: Array) -> list[list[Any]]:
    """scale * q.k without rounding, (rows, keys)."""
    numerator, denominator = rule.softmax_scale.as_integer_ratio()
    q = head.q(np.array(rows))
    q = Dyadic(q.mantissas * numerator, q.exponent - denominator.bit_length() + 1)
    scores: list[list[Any]] = [[] for _ in rows]
    for start in range(0, keys.size, CHUNK):
        k = head.k(keys[start : start + CHUNK])
        product = arb_mat(integers(q) * integers(k).transpose())
        product *= arb((1, q.exponent + k.exponent))
        for row, more in zip(scores, product.tolist(), strict=True):
            row += more
    return scores


def _rows(rule: Rule, head: Head, wanted: Sequence[int]) -> tuple[dict[int, Row], Array]:
    """The wanted rows, and the keys that any of them sees."""
    seen = {row: rule.span(row + head.q_offset, head.seqlen_k) for row in wanted}
    biases: dict[int, Array] = {}
    if head.bias is not None:
        biases = {row: head.bias[row].astype(np.float64) for row in wanted}
        seen = {row: j[biases[row][j] != -np.inf] for row, j in seen.items()}
    keys = np.unique(np.concatenate([*seen.values(), np.arange(0)]))
    rows: dict[int, Row] = {}
    with ctx.workprec(ROOM):
        for row, scores in zip(wanted, _scores(rule, head, wanted, keys), strict=True):
            at, bias = np.searchsorted(keys, seen[row]), None
            t = [scores[j] for j in at.tolist()]
            if head.bias is not None:
                bias = [arb(b) for b in biases[row][seen[row]].tolist()]
                if rule.softcap is None:
                    t, bias = [x + b for x, b in zip(t, bias, strict=True)], None
            rows[row] = Row(t=t, at=at, bias=bias, softcap=rule.softcap, sink=head.sink)
    return rows, keys


def _outs(rows: Mapping[int, Row], table: Dyadic) -> dict[tuple[int, int], Fraction]:
    """Every column of `table` (keys, columns), weighed by every row."""
    keys = len(table.mantissas)
    flat, totals = [], []
    with ctx.workprec(BITS):
        for row in rows.values():
            weights = row.weights()[0] if row.t else [arb(1)]
            totals.append(sum(weights, arb(0)))
            line = [arb(0)] * keys
            for j, weight in zip(row.at.tolist(), weights, strict=False):  # the sink's comes last
                line[j] = weight
            flat += line
        sums = arb_mat(len(rows), keys, flat) * arb_mat(integers(table))
        sums *= arb((1, table.exponent))
        quick = [
            [decided(x / total) for x in line]
            for line, total in zip(sums.tolist(), totals, strict=True)
        ]
    found: dict[tuple[int, int], Fraction] = {}
    for values, (index, row) in zip(quick, rows.items(), strict=True):
        for c, value in enumerate(values):
            if value is None:
                value = row.out(table.mantissas[row.at, c].tolist(), table.exponent)
            found[index, c] = value
    return found


def _head(
    rule: Rule, head: Head, output: str, wanted: Mapping[int, set[int]]
) -> dict[tuple[int, int], Value]:
    """(row, feature) -> value, of the features wanted of each row; feature 0 stands for lse."""
    batch, found = max(1, MOST // max(1, head.seqlen_k)), {}
    indices = sorted(wanted)
    for start in range(0, len(indices), batch):
        chosen = indices[start : start + batch]
        rows, keys = _rows(rule, head, chosen)
        if output == "lse":
            found.update({(index, 0): row.lse() for index, row in rows.items()})
            continue
        columns = sorted(set().union(*(wanted[index] for index in chosen)))
        outs = _outs(rows, dyadic(head.v(keys)[:, columns]))
        found.update({(index, columns[c]): value for (index, c), value in outs.items()})
    return found


def values(
    rule: Rule, heads: Callable[[Any], Head], output: str, places: Sequence[Place | None]
) -> list[Value]:
    """Values of "out" or "lse" at (argument of heads, row, feature); None: in no sequence."""
    wanted: dict[Hashable, dict[int, set[int]]] = {}
    for place in places:
        if place is not None:
            wanted.setdefault(place[0], {}).setdefault(place[1], set()).add(place[2])
    found = {key: _head(rule, heads(key), output, rows) for key, rows in wanted.items()}
    nothing = None if output == "lse" else Fraction(0)
    return [nothing if p is None else found[p[0]][p[1:]] for p in places]


def dense(
    case: AttentionCase, inputs: Mapping[str, Array], at: tuple[int, int], load: Load
) -> Head:
    """The head at (batch, num_heads) of tensors with a batch axis; load: rows of q or k."""
    batch, head = at
    k, v, bias, sink = (inputs.get(name) for name in ("k", "v", "bias", "sink"))
    assert k is not None
    assert v is not None
    num_heads, seqlen_q = inputs["q"].shape[1:3]
    scores = (len(k), num_heads, seqlen_q, k.shape[2])
    kv_head, offsets = head // (num_heads // k.shape[1]), inputs.get("q_offset")
    return Head(
        q=lambda rows: load("q", batch, head, rows),
        k=lambda rows: load("k", batch, kv_head, rows),
        v=lambda rows: v[batch, kv_head, rows],
        seqlen_k=k.shape[2],
        q_offset=case.q_offset if offsets is None else int(offsets[batch]),
        bias=None if bias is None else np.broadcast_to(bias, scores)[batch, head],
        sink=None if sink is None else float(sink[head]),
    )


def dense_values(
    case: AttentionCase, inputs: Mapping[str, Array], output: str, flat: Sequence[int], load: Load
) -> list[Value]:
    """`exact`, of tensors with a batch axis; load: rows of q or k, as scores see them."""
    q, v = inputs["q"], inputs["v"]
    shape = (*q.shape[:3], v.shape[-1] if output == "out" else 1)
    spots = (map(int, np.unravel_index(int(index), shape)) for index in flat)
    places = [((b, h), row, feature) for b, h, row, feature in spots]
    rule = Rule.of(case, q.shape[-1])
    return values(rule, lambda at: dense(case, inputs, at, load), output, places)


def exact(
    case: AttentionCase, inputs: Mapping[str, Array], output: str, flat: Sequence[int]
) -> list[Value]:
    """Exact values of "out" or "lse" at flat (C order) indices, within 2**-100 of themselves.

    None stands for -inf, the lse of a row without a key. Raises ArithmeticError if an input that
    the row sees is not finite.
    """

    def load(name: str, batch: int, head: int, rows: Array) -> Dyadic:
        return dyadic(inputs[name][batch, head, rows])

    return dense_values(case, inputs, output, flat, load)
