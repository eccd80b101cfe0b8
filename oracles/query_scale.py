"""The contract `query_scale`: the temperature that queries of layers without positions are given.

    scale(m) = 1 + attn_scale ln(1 + floor((m + shift) / floor_scale)),   m >= 0

Llama 4 (its interleaved RoPE, iRoPE; transformers' models/llama4, after Nakanishi, arXiv
2501.19399) has shift 1: token m is the last of m + 1. Ministral 3 (transformers' models/ministral3)
has shift 0. Between the two every step lies one position apart. q is multiplied with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tightrope.contract import Contract
from tightrope.formats import Array
from tightrope.limits import Limits
from tightrope.oracles.query_scale_alternatives import alternatives, nulls
from tightrope.oracles.query_scale_budget import STAGES, budget
from tightrope.oracles.query_scale_exact import exact

# Kinds of positions. float32 holds those of all but "huge", which only implementations are asked
# for that name it.
KINDS = ("range", "steps", "random", "repeated", "descending", "long")
HUGE = "huge"
FLOORS = (8192, 16384, 100, 4096, 3, 1, 1000003)
SCALES = (0.1, 0.25, 1.0, 0.07)
TOKENS = (1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 31, 64, 0)
BEYOND = (2**24 - 1, 2**25 + 1, 2**31 - 17)
BEYOND_INT32 = (2**31, 2**40 + 1, 2**53 + 1, 2**62 - 17)


@dataclass(frozen=True, kw_only=True)
class QueryScaleCase:
    """positions: a kind; `start` is the first or the smallest, `span` how far random ones go."""

    tokens: int = 1
    attn_scale: float = 0.1
    floor_scale: int = 8192
    shift: int = 1
    positions: str = "range"
    start: int = 8191
    span: int = 65536
    position_dtype: str = "int64"
    layout: str = "contiguous"
    dtype: str = "float32"
    seed: int = 0


def positions(case: QueryScaleCase) -> Array:
    """The positions of a case, (tokens,) in its `position_dtype`, 0 or more."""
    rng, n = np.random.default_rng(case.seed), case.tokens
    found = case.start + np.arange(n, dtype=np.int64)
    if case.positions == "steps":  # where the floor moves, and one before and after
        steps = rng.integers(1, 2 + case.span // case.floor_scale, n) * case.floor_scale
        found = np.maximum(steps - case.shift + rng.integers(-1, 2, n), 0)
        found[:1] = case.floor_scale - case.shift
    elif case.positions == "random":
        found = case.start + rng.integers(0, case.span, n)
    elif case.positions == "repeated":
        found = case.start + rng.integers(0, 2, n)
    elif case.positions == "descending":
        found = found[::-1]
    last = np.iinfo(case.position_dtype).max
    return np.minimum(found, last).astype(case.position_dtype)


def cases(limits: Limits) -> Any:
    """A Hypothesis strategy of cases, few tokens each. Each has a temperature other than 1."""
    from hypothesis import strategies as st

    kinds = limits.values("positions")
    if "positions" not in limits.given:
        kinds = tuple(kind for kind in kinds if kind != HUGE)

    @st.composite
    def case(draw: Any) -> QueryScaleCase:
        kind = draw(st.sampled_from(kinds))
        width = draw(st.sampled_from(limits.values("position_dtype")))
        floor_scale = draw(st.sampled_from(limits.pick("floor_scale", FLOORS)))
        shift = draw(st.sampled_from(limits.values("shift")))
        return QueryScaleCase(
            positions=kind,
            position_dtype=width,
            floor_scale=floor_scale,
            shift=shift,
            start=draw(_starts(kind, width, floor_scale, shift)),
            tokens=draw(st.sampled_from(limits.pick("tokens", TOKENS))),
            attn_scale=draw(st.sampled_from(limits.values("attn_scale"))),
            span=draw(st.sampled_from((65536, 16, 2**20))),
            layout=draw(st.sampled_from(limits.values("layout"))),
            seed=draw(st.integers(0, 2**16 - 1)),
        )

    return case()


def _starts(kind: str, width: str, floor_scale: int, shift: int) -> Any:
    """First positions: on a step, one behind it or short of a later one; long ones by kind."""
    from hypothesis import strategies as st

    step = max(floor_scale - shift, 0)
    later = max(step, min(step + 15 * floor_scale, 2**23))
    near = [step, step + 1, step + floor_scale - 1, later]
    if kind == "long":
        return st.sampled_from([max(p, step) for p in (2**17 - 1, 2**20 - 1, 2**20, 2**24 - 80)])
    if kind == HUGE:
        wide = BEYOND + BEYOND_INT32 if width == "int64" else BEYOND
        return st.sampled_from(wide)
    return st.sampled_from(near) | st.integers(step, step + 2**17)


def inputs(case: QueryScaleCase) -> dict[str, Array]:
    """The tensor arguments: positions (tokens,)."""
    return {"positions": positions(case)}


def options(case: QueryScaleCase) -> dict[str, Any]:
    return {
        "attn_scale": case.attn_scale,
        "floor_scale": case.floor_scale,
        "shift": case.shift,
    }


def oracle(case: QueryScaleCase, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The definition in float64, (tokens,)."""
    whole = (inputs["positions"].astype(np.int64) + case.shift) // case.floor_scale
    return {"scale": 1 + case.attn_scale * np.log(1.0 + whole)}


CONTRACT = Contract(
    name="query_scale",
    signature="query_scale(positions, *, attn_scale, floor_scale, shift) -> scale",
    case=QueryScaleCase,
    domain={
        "dtype": ("float32",),
        "tokens": range(0, 4097),
        "attn_scale": SCALES,
        "floor_scale": range(1, 2**31),
        "shift": (1, 0),
        "positions": (*KINDS, HUGE),
        "position_dtype": ("int64", "int32"),
        "layout": ("contiguous", "strided", "offset"),
    },
    outputs=("scale",),
    stages=STAGES,
    cases=cases,
    inputs=inputs,
    options=options,
    layouts=lambda case: {"positions": case.layout},
    oracle=oracle,
    exact=exact,
    budget=budget,
    nulls=nulls,
    alternatives=alternatives,
    axes=("positions", "position_dtype", "floor_scale", "shift"),
)
