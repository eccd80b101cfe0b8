"""Attention as the online recurrence over blocks of keys, in mpmath. For tests only.

FlashAttention-2 (Dao 2023, arXiv:2307.08691, section 2.3.1): running maximum m, sum l of e^(t - m)
and unnormalised output, all rescaled by e^(m - m') when the maximum rises to m'. Numbers have 60
digits; scores are exact sums, rounded once. The other attention contracts use `head` as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import mpmath

from tightrope.formats import Array

if TYPE_CHECKING:
    from tightrope.oracles.attention_cases import AttentionCase

DIGITS = 60
Vectors = Sequence[Sequence[Any]]
Rows = tuple[list[list[Any]], list[Any]]  # out of every row, lse of every row


def numbers(array: Array) -> Any:
    """The stored values as nested lists of mpf; NaN and infinities stay what they are."""
    if array.ndim:
        return [numbers(part) for part in array]
    return mpmath.mpf(float(array))


def online(
    logits: Sequence[Any], values: Vectors, width: int, sink: Any = None, block: int = 1
) -> tuple[list[Any], Any]:
    """out (width,) and lse of one row that sees these logits, `block` keys at a time.

    A sink is the state that the recurrence starts from: a weight without a value.
    """
    top, total, out = -mpmath.inf, mpmath.mpf(0), [mpmath.mpf(0)] * width
    if sink is not None:
        top, total = sink, mpmath.mpf(1)
    for start in range(0, len(logits), block):
        tile = logits[start : start + block]
        new = max([top, *tile])
        fade = mpmath.exp(top - new) if total else mpmath.mpf(0)
        weights = [mpmath.exp(t - new) for t in tile]
        total = fade * total + mpmath.fsum(weights)
        columns = zip(*values[start : start + block], strict=True)
        out = [
            fade * old + mpmath.fdot(weights, column)
            for old, column in zip(out, columns, strict=True)
        ]
        top = new
    if not total:
        return out, -mpmath.inf
    return [x / total for x in out], top + mpmath.log(total)


def sees(case: Any, position: int, key: int) -> bool:
    """Whether a query, at its row + q_offset, sees a key by index."""
    distance = key - position
    if case.causal and distance > 0:
        return False
    if case.window_left is not None and -distance > case.window_left:
        return False
    return case.window_right is None or distance <= case.window_right


def head(
    case: Any, q: Vectors, k: Vectors, v: Vectors, offset: int, width: int,
    bias: Callable[[int, int], Any] | None = None, sink: Any = None, block: int = 1,
) -> Rows:  # fmt: skip
    """One query head of one sequence: rows of q, k and v, v of `width` features."""
    outs, lses = [], []
    for i, query in enumerate(q):
        logits, values = [], []
        for j, key in enumerate(k):
            if not sees(case, i + offset, j):
                continue
            added = mpmath.mpf(0) if bias is None else bias(i, j)
            if added > -mpmath.inf:
                logits.append(logit(case, query, key) + added)
                values.append(v[j])
        out, lse = online(logits, values, width, sink, block)
        outs.append(out)
        lses.append(lse)
    return outs, lses


def logit(case: Any, query: Sequence[Any], key: Sequence[Any]) -> Any:
    """scale q.k, and softcap tanh of it by (1 - e^(-2y)) / (1 + e^(-2y)) for y >= 0."""
    scale = case.softmax_scale
    if scale is None:  # the definition: the float64 number nearest to head_dim**-0.5
        scale = float(1 / mpmath.sqrt(len(query)))
    t = mpmath.fdot(query, key) * mpmath.mpf(scale)
    if case.softcap is None:
        return t
    y = t / mpmath.mpf(case.softcap)
    small = mpmath.expm1(-2 * abs(y))
    return mpmath.sign(y) * mpmath.mpf(case.softcap) * -small / (2 + small)


def attention(
    case: AttentionCase, inputs: Mapping[str, Array], block: int = 1
) -> dict[str, list[Any]]:
    """ "out" and "lse", flat in C order, as mpf; lse -inf for rows without a key."""
    with mpmath.workdps(DIGITS):
        q, k = numbers(inputs["q"]), numbers(inputs["k"])
        return batched(case, inputs, q, k, block)


def batched(
    case: Any, inputs: Mapping[str, Array], q: Any, k: Any, block: int = 1
) -> dict[str, list[Any]]:
    """All heads of all sequences; q and k as nested lists, as scores see them."""
    v, width = numbers(inputs["v"]), inputs["v"].shape[-1]
    bias, sink, offsets = (inputs.get(name) for name in ("bias", "sink", "q_offset"))
    outs: list[Any] = []
    lses: list[Any] = []
    for b, heads in enumerate(q):
        offset = case.q_offset if offsets is None else int(offsets[b])
        group = len(heads) // len(k[b])
        for h, rows in enumerate(heads):
            out, lse = head(
                case, rows, k[b][h // group], v[b][h // group], offset, width,
                None if bias is None else _looked_up(bias, b, h),
                None if sink is None else mpmath.mpf(float(sink[h])), block,
            )  # fmt: skip
            outs += [x for row in out for x in row]
            lses += lse
    return {"out": outs, "lse": lses}


def _looked_up(bias: Array, batch: int, head: int) -> Callable[[int, int], Any]:
    """bias[batch, head, i, j], where an axis of size 1 holds one value for all."""

    def at(i: int, j: int) -> Any:
        spot = zip((batch, head, i, j), bias.shape, strict=True)
        return mpmath.mpf(float(bias[tuple(0 if n == 1 else x for x, n in spot)]))

    return at
