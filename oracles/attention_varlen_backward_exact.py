"""Exact gradients of packed attention in ball arithmetic: each token in its own sequence.

Tokens cu_seqlens[s] .. cu_seqlens[s + 1] - 1 belong to sequence s; the gradients of others are 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from tightrope.formats import Array
from tightrope.oracles import attention_backward_exact

if TYPE_CHECKING:
    from tightrope.oracles.attention_varlen_backward_cases import AttentionVarlenBackwardCase

Given = Mapping[str, Array]


def exact(
    case: AttentionVarlenBackwardCase, inputs: Given, output: str, flat: Sequence[int]
) -> list[Fraction]:
    """Exact values of "dq", "dk" or "dv" at flat (C order) indices, within 2**-100 of themselves.

    Raises ArithmeticError if an input that counts is not finite.
    """
    _, heads, features = inputs[output.removeprefix("d")].shape
    ends = inputs["cu_seqlens_q" if output == "dq" else "cu_seqlens_k"].astype(np.int64)
    inside: dict[int, list[tuple[int, int]]] = defaultdict(list)
    values = [Fraction(0)] * len(flat)
    for at, index in enumerate(flat):
        place, feature = divmod(int(index), features)
        token, head = divmod(place, heads)
        s = int(np.searchsorted(ends, token, side="right")) - 1
        if 0 <= s < len(ends) - 1:
            length, row = int(ends[s + 1] - ends[s]), token - int(ends[s])
            inside[s].append((at, (head * length + row) * features + feature))
    for s, wanted in inside.items():
        found = _of(case, inputs, s, output, [index for _, index in wanted])
        for (at, _), value in zip(wanted, found, strict=True):
            values[at] = value
    return values


def _of(
    case: AttentionVarlenBackwardCase, inputs: Given, s: int, output: str, flat: list[int]
) -> list[Fraction]:
    """The same of sequence s, whose elements are counted heads first."""
    first_q, last_q = (int(n) for n in inputs["cu_seqlens_q"][s : s + 2])
    first_k, last_k = (int(n) for n in inputs["cu_seqlens_k"][s : s + 2])
    tensors = {name: inputs[name][first_q:last_q] for name in ("dout", "q", "out")}
    tensors |= {name: inputs[name][first_k:last_k] for name in ("k", "v")}
    given = {name: np.moveaxis(x, 1, 0)[np.newaxis] for name, x in tensors.items()}
    given["lse"] = inputs["lse"][np.newaxis, :, first_q:last_q]
    rows, keys = last_q - first_q, last_k - first_k
    offset = int(inputs["q_offset"][s]) if "q_offset" in inputs else keys - rows
    single: Any = SimpleNamespace(**vars(case), q_offset=offset)
    return attention_backward_exact.exact(single, given, output, flat)
