"""Gradients of polar attention as finite differences of one number, in mpmath. For tests only.

With lse and D held, dq, dk, dv and ddelta are the gradient of the sum of exp(t - lse) (dout . v -
D), as in `tightrope.oracles.attention_backward_mpmath`; t is the real part of the sum of
conj(z_q) z_k, z = ln(1 + e^x) e^(i a) (PoPE, arXiv:2509.10534, eq. 5), and of plain products.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import mpmath

from tightrope.formats import Array
from tightrope.oracles.attention_backward_mpmath import DIGITS, differences, slope, term
from tightrope.oracles.attention_mpmath import logit, numbers, sees

if TYPE_CHECKING:
    from tightrope.oracles.pope_attention_backward_cases import PopeAttentionBackwardCase

NAMES = ("dout", "q", "k", "v", "out", "lse", "inv_freq")


def pope_attention_backward(
    case: PopeAttentionBackwardCase, inputs: Mapping[str, Array]
) -> dict[str, list[Any]]:
    """ "dq", "dk", "dv" and "ddelta", flat in C order, as mpf."""
    with mpmath.workdps(DIGITS):
        held = {name: numbers(inputs[name]) for name in NAMES}
        for name in ("q_positions", "k_positions"):
            places = inputs[name].tolist()
            held[name] = places if inputs[name].ndim == 2 else [places] * len(inputs["q"])
        held["delta"] = numbers(inputs["delta"]) if "delta" in inputs else []
        if case.softmax_scale is None:  # of features counted once
            case = replace(case, softmax_scale=float(1 / mpmath.sqrt(inputs["q"].shape[-1])))
        return of_numbers(case, held, inputs.get("q_offset"))


def of_numbers(
    case: Any, held: Mapping[str, Any], offsets: Array | None
) -> dict[str, list[Any]]:  # fmt: skip
    """The same of nested lists of mpf, whose digits are all used; softmax_scale is given."""
    found = differences(case, held, offsets, polar)
    found["ddelta"] = [
        slope(phases, c, lambda h=h: _sum(case, held, offsets, h))  # type: ignore[misc]
        for h, phases in enumerate(held["delta"])
        for c in range(len(phases))
    ]
    return found


def _sum(case: Any, held: Mapping[str, Any], offsets: Array | None, phase: int) -> Any:
    """The terms to which the heads of a phase belong."""
    total = mpmath.mpf(0)
    for b, heads in enumerate(held["q"]):
        offset = case.q_offset if offsets is None else int(offsets[b])
        group = len(heads) // len(held["delta"])
        for h in range(phase * group, (phase + 1) * group):
            for i in range(len(heads[h])):
                keys = (j for j in range(len(held["k"][b][0])) if sees(case, i + offset, j))
                total += sum((term(case, held, polar, b, h, i, j) for j in keys), mpmath.mpf(0))
    return total


def polar(case: Any, held: Mapping[str, Any], batch: int, head: int, i: int, j: int) -> Any:
    """The logit of a query and a key, each turned to its angle."""
    heads, frequencies = held["q"][batch], held["inv_freq"]
    keys, phases = held["k"][batch], [mpmath.mpf(0)] * len(frequencies)
    key, query = keys[head * len(keys) // len(heads)][j], heads[head][i]
    if held["delta"]:
        phases = held["delta"][head * len(held["delta"]) // len(heads)]
    width = len(frequencies)
    m, n = held["q_positions"][batch][i], held["k_positions"][batch][j]
    points = [
        (_magnitude(x) * mpmath.expj(m * f), _magnitude(y) * mpmath.expj(n * f + phase))
        for x, y, f, phase in zip(query, key, frequencies, phases, strict=False)
    ]
    real = [z.real for pair in points for z in pair] + [z.imag for pair in points for z in pair]
    first, second = [*real[::2], *query[width:]], [*real[1::2], *key[width:]]
    return logit(case, first, second)


@lru_cache(maxsize=1 << 12)
def _magnitude(x: Any) -> Any:
    return mpmath.log1p(mpmath.exp(x))
