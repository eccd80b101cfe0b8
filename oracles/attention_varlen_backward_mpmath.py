"""`attention_varlen_backward` in mpmath: every sequence sliced out, differences. For tests only."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import mpmath

from tightrope.formats import Array
from tightrope.oracles.attention_backward_mpmath import DIGITS, differences
from tightrope.oracles.attention_mpmath import numbers

if TYPE_CHECKING:
    from tightrope.oracles.attention_varlen_backward_cases import AttentionVarlenBackwardCase


def attention_varlen_backward(
    case: AttentionVarlenBackwardCase, inputs: Mapping[str, Array]
) -> dict[str, list[Any]]:
    """ "dq", "dk" and "dv", flat in C order, as mpf; 0 for tokens of no sequence."""
    ends = {x: list(pairwise(inputs[f"cu_seqlens_{x}"].tolist())) for x in "qk"}
    with mpmath.workdps(DIGITS):
        held = {n: _heads(numbers(inputs[n])) for n in ("dout", "q", "k", "v", "out")}
        lse = numbers(inputs["lse"])
        found = {f"d{n}": [[[mpmath.mpf(0)] * len(x) for x in h] for h in held[n]] for n in "qkv"}
        for s, (rows, keys) in enumerate(zip(ends["q"], ends["k"], strict=True)):
            lengths = rows[1] - rows[0], keys[1] - keys[0]
            offset = inputs["q_offset"][s] if "q_offset" in inputs else lengths[1] - lengths[0]
            of = {n: keys if n in "kv" else rows for n in held}
            own = {n: [[h[slice(*of[n])] for h in x]] for n, x in held.items()}
            own["lse"] = [[row[slice(*rows)] for row in lse]]
            single = SimpleNamespace(**vars(case), q_offset=int(offset))
            mine = differences(single, own, None)
            for name, flat in mine.items():
                _put(found[name], of[name[1]], iter(flat))
    return {name: [x for token in _heads(h) for row in token for x in row]
            for name, h in found.items()}  # fmt: skip


def _heads(x: list[Any]) -> list[Any]:
    """Tokens and heads exchanged in nested lists."""
    return [list(rows) for rows in zip(*x, strict=True)]


def _put(whole: list[Any], span: tuple[int, int], values: Any) -> None:
    """The numbers of one sequence, heads first, in their place."""
    for head in whole:
        for token in range(*span):
            head[token] = [next(values) for _ in head[token]]
