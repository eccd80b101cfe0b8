"""`rope`: rotary position embedding, the rotation of q and k by a given table.

RoFormer (Su et al. 2021, arXiv:2104.09864, eq. 34). The first rotary_dim features of each head form
pairs; pair i of a token turns by the angle whose cosine and sine stand in the table at row
positions[token], column i:

    y1 = x1 cos - x2 sin        y2 = x2 cos + x1 sin

half-split (`interleaved=False`, GPT-NeoX, Llama): x1 = x[i], x2 = x[i + rotary_dim/2];
adjacent (`interleaved=True`, RoFormer, GPT-J): x1 = x[2i], x2 = x[2i + 1].
Features from rotary_dim on pass unchanged. The given table counts as exact in its own dtype; a
wrong table is a finding on `rope_table`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tightrope.contract import Contract
from tightrope.formats import Array, widen
from tightrope.oracles.rope_alternatives import alternatives, nulls
from tightrope.oracles.rope_budget import STAGES, budget
from tightrope.oracles.rope_cases import DOMAIN, RELATIONS, RopeCase, cases
from tightrope.oracles.rope_exact import exact
from tightrope.oracles.rope_inputs import inputs

__all__ = ["CONTRACT", "RopeCase", "oracle", "rotate"]


def rotate(x: Array, cos: Array, sin: Array, positions: Array, interleaved: bool) -> Array:
    """The definition in float64. x (tokens, heads, head_dim), cos and sin (rows, rotary_dim/2),
    positions (tokens,); any dtypes. Its error is derived in docs/error-budgets.md, section rope.
    """
    y = widen(x).copy()
    c, s = widen(cos)[positions][:, None], widen(sin)[positions][:, None]
    half = cos.shape[1]
    if interleaved:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    else:
        first, second = slice(0, half), slice(half, 2 * half)
    x1, x2 = y[..., first].copy(), y[..., second].copy()
    y[..., first] = x1 * c - x2 * s
    y[..., second] = x2 * c + x1 * s
    return y


def oracle(case: RopeCase, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """q and k rotated, in float64."""
    cos, sin, positions = inputs["cos"], inputs["sin"], inputs["positions"]
    return {x: rotate(inputs[x], cos, sin, positions, case.interleaved) for x in ("q", "k")}


def options(case: RopeCase) -> dict[str, Any]:
    out_dtype = None if case.out_dtype == "input" else case.out_dtype
    return {"interleaved": case.interleaved, "inplace": case.inplace, "out_dtype": out_dtype}


def layouts(case: RopeCase) -> dict[str, str]:
    """Positions have a stride or an offset when the table has."""
    table = case.layout_table
    positions = table if table in ("strided", "offset") else "contiguous"
    named = {"q": case.layout_q, "k": case.layout_k, "cos": table, "sin": table}
    return {**named, "positions": positions}


def in_place(case: RopeCase) -> dict[str, str]:
    return {"q": "q", "k": "k"} if case.inplace else {}


SIGNATURE = """\
rope(q, k, cos, sin, positions, *, interleaved, inplace=False, out_dtype=None) -> q, k"""
AXES = (
    *("dtype", "table_dtype", "position_dtype", "out_dtype", "inplace", "interleaved"),
    *("head_dim", "rotary_dim", "positions", "table", "data", "layout_q", "layout_k"),
    *("layout_table", "size", "builds"),
)

CONTRACT = Contract(
    name="rope",
    signature=SIGNATURE,
    case=RopeCase,
    domain=DOMAIN,
    outputs=("q", "k"),
    stages=STAGES,
    cases=cases,
    inputs=inputs,
    oracle=oracle,
    exact=exact,
    budget=budget,
    relations=RELATIONS,
    options=options,
    layouts=layouts,
    in_place=in_place,
    nulls=nulls,
    alternatives=alternatives,
    axes=AXES,
)
