"""The contract `rope_table`: cos and sin of every position times every rotary frequency.

theta_c = rope_theta**(-2c/rotary_dim) for c = 0 .. rotary_dim/2 - 1, cos(m theta_c), sin(m theta_c)
(RoFormer, arXiv 2104.09864, section 3.2.2 and eq. 15). Derivations: docs/error-budgets.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tightrope.contract import Contract
from tightrope.formats import Array
from tightrope.limits import Limits
from tightrope.oracles import (
    rope_scaling,
    rope_scaling_budget,
    rope_table_budget,
    rope_table_exact,
    rope_table_scaling_alternatives,
    rope_table_scaling_budget,
)
from tightrope.oracles.rope_table_scaling import (
    INTERLEAVED,
    ONE,
    SECTIONS,
    VARIANTS,
    effective,
    mapping,
    of_axes,
    scaling_of,
)
from tightrope.oracles.rope_table_scaling_cases import possible, scaled
from tightrope.rope_scaling import RopeScaling

# Kinds of positions, in two groups: an honest float32 builder stays useful up to 2**24, where
# float32 stops holding the integers; beyond it only those are asked that claim "huge" in their
# limits. The law of angles subtracts positions, so that these stay below 2**62.
KINDS = ("range", "random", "repeated", "descending", "negative", "powers", "long")
HUGE = "huge"

# Where something happens: limits of bfloat16 and float16, context lengths of models, their edges.
EDGES = (255, 256, 257, 2047, 2048, 4094, 4095, 4096, 8191, 15962, 32767, 65535, 131070)
LONG = (2**17 - 1, 2**17, 2**20 - 1, 2**20, 2**23 - 1, 2**23, 2**24 - 17)
BEYOND = (2**24 - 1, 2**25 + 1, 2**30, 2**31 - 17, 2**31 - 1)
BEYOND_INT32 = (2**31, 2**32 - 1, 2**40 + 1, 2**52 + 1, 2**53 + 1, 2**60 + 1, 2**62 - 17)

SIZES = (8, 2, 4, 6, 16, 32, 40, 64, 80, 96, 128, 192, 256)
BASES = (10000.0, 500000.0, 1000000.0, 150000.0, 5000000.0, 10000000.0, 100.0, 10.0, 2.5, 0.5)
TOKENS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 16, 17, 0)


@dataclass(frozen=True, kw_only=True)
class RopeTableCase:
    """positions: a kind. Magnitudes begin at `start`; `random`, `powers`: below start + span.

    rope_scaling: a rope_type; its keys come from `factor`, `length` (the length that the model was
    trained for), `variant` and the seed. axes: one position a token, or three, and how they share
    the columns.
    """

    tokens: int = 1
    rotary_dim: int = 8
    rope_theta: float = 10000.0
    positions: str = "range"
    start: int = 1
    span: int = 4096
    position_dtype: str = "int64"
    layout: str = "contiguous"
    dtype: str = "float32"
    rope_scaling: str = "default"
    factor: float = 8.0
    length: int = 4096
    seq_len: int | None = None
    variant: str = "plain"
    axes: str = ONE
    seed: int = 0


def positions(case: Any) -> Array:
    """The positions of a case, (tokens,) in its `position_dtype`."""
    rng, n = np.random.default_rng(case.seed), case.tokens
    steps, sign = np.arange(n, dtype=np.int64), np.ones(n, np.int64)
    if case.positions == "random":
        steps = rng.integers(0, case.span, n)
    elif case.positions == "repeated":
        steps = rng.integers(0, 2, n)
    elif case.positions == "descending":
        steps = steps[::-1]
    elif case.positions == "negative":
        sign = -sign
    elif case.positions == "powers":
        low, high = (case.start - 1).bit_length(), (case.start + case.span - 1).bit_length()
        steps = 2 ** rng.integers(low, max(high, low + 1), n) - case.start
    if case.positions in ("powers", "long", HUGE):
        sign = rng.choice(np.array([1, -1]), n)
    info = np.iinfo(case.position_dtype)
    return np.clip(sign * (case.start + steps), info.min, info.max).astype(case.position_dtype)


def cases(limits: Limits) -> Any:
    """A Hypothesis strategy of cases, a few tokens each."""
    from hypothesis import strategies as st

    possible(limits)

    @st.composite
    def case(draw: Any) -> RopeTableCase:
        fields = draw(fields_of_cases(limits, SIZES))
        return RopeTableCase(**{**fields, **draw(scaled(limits, fields))})

    return case()


def fields_of_cases(limits: Limits, sizes: tuple[int, ...]) -> Any:
    """A Hypothesis strategy of a case's fields; sizes: of rotary_dim.

    "huge" positions are drawn only where the limits name that kind: a table built with float32
    angles says nothing there, and right so.
    """
    from hypothesis import strategies as st

    kinds = limits.values("positions")
    if "positions" not in limits.given:
        kinds = tuple(k for k in kinds if k != HUGE)

    @st.composite
    def fields(draw: Any) -> dict[str, Any]:
        kind = draw(st.sampled_from(kinds))
        width = draw(st.sampled_from(limits.values("position_dtype")))
        tokens = draw(st.sampled_from(limits.pick("tokens", TOKENS)))
        edges, low, high = _starts(kind, width, tokens)
        edge, start = draw(st.sampled_from(edges)), draw(st.integers(low, high))
        return {
            "positions": kind,
            "position_dtype": width,
            "tokens": tokens,
            "start": start if edge is None else edge,
            "span": draw(st.sampled_from((16, 4096, 2**17))),
            "rotary_dim": draw(st.sampled_from(limits.pick("rotary_dim", sizes))),
            "rope_theta": draw(st.sampled_from(limits.values("rope_theta"))),
            "layout": draw(st.sampled_from(limits.values("layout"))),
            "dtype": draw(st.sampled_from(limits.values("dtype"))),
            "seed": draw(st.integers(0, 2**16 - 1)),
        }

    return fields()


def _starts(kind: str, width: str, tokens: int) -> tuple[tuple[int | None, ...], int, int]:
    """Edges (None: not at an edge, but from the range), and a range of the smallest magnitude.

    Every kind has a choice of both (to Hypothesis fewer choices are simpler) and the ranges meet,
    so that failures shrink to the first kind. 0 begins runs only: alone it looks like no rotation.
    """
    if kind == "long":
        return (None, *LONG), 2**17 - 1, 2**24 - 17
    if kind == HUGE:
        wide = BEYOND + BEYOND_INT32 if width == "int64" else BEYOND
        return (None, *wide), 2**24 - 17, max(wide)
    if kind in ("random", "powers"):
        return (None, None), 1, 64
    low = 0 if tokens > 1 and kind != "repeated" else 1
    return (None,) * len(EDGES) + EDGES, low, 2**17 - 1


def inputs(case: Any) -> dict[str, Array]:
    """The tensor arguments: positions (tokens,)."""
    return {"positions": positions(case)}


def options(case: RopeTableCase) -> dict[str, Any]:
    return {
        "rotary_dim": case.rotary_dim,
        "rope_theta": case.rope_theta,
        "rope_scaling": mapping(case),
        "seq_len": case.seq_len,
    }


def oracle(case: RopeTableCase, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The definition in float64, (tokens, rotary_dim/2); good to `oracle_error`."""
    scaling = effective(case)
    theta = rope_scaling.frequencies(case.rotary_dim, case.rope_theta, scaling)
    angle = _of_columns(inputs["positions"], scaling, len(theta)) * theta
    factor = rope_scaling.attention_factor(scaling)
    return {"cos": factor * np.cos(angle), "sin": factor * np.sin(angle)}


def _of_columns(positions: Array, scaling: RopeScaling, columns: int) -> Array:
    """The position that turns each column, in float64, (tokens, 1) or (tokens, rotary_dim/2)."""
    if positions.ndim == 1:
        return positions.astype(np.float64)[:, None]
    return positions.astype(np.float64)[rope_scaling.axes(columns, scaling)].T


def oracle_error(case: RopeTableCase, inputs: Mapping[str, Array]) -> Array:
    """Bound on |oracle - exact|, eq. (10) of the derivation; it grows with the position."""
    scaling = effective(case)
    theta = rope_scaling.frequencies(case.rotary_dim, case.rope_theta, scaling)
    base = rope_scaling.base_of(case.rotary_dim, case.rope_theta, scaling)
    exponent = np.arange(0, case.rotary_dim, 2) / case.rotary_dim
    rho = (exponent * abs(np.log(base)) + 11) * 2.0**-53 * (1 + 2.0**-30)
    off = theta * rho + rope_scaling_budget.scaling_term(
        case.rotary_dim, case.rope_theta, scaling, rho, 2.0**-53
    )
    angle = np.abs(_of_columns(inputs["positions"], scaling, len(theta)))
    return rope_scaling.attention_factor(scaling) * np.minimum(2.0, angle * off + 2.0**-50)


CONTRACT = Contract(
    name="rope_table",
    signature="rope_table(positions, *, rotary_dim, rope_theta, rope_scaling=None, seq_len=None)"
    " -> cos, sin",
    case=RopeTableCase,
    domain={
        "dtype": ("float32",),
        "tokens": range(0, 4097),
        "rotary_dim": range(2, 513, 2),
        "rope_theta": BASES,
        "positions": (*KINDS, HUGE),
        "position_dtype": ("int64", "int32"),
        "layout": ("contiguous", "strided", "offset"),
        "rope_scaling": tuple(VARIANTS),
        "axes": (ONE, SECTIONS, INTERLEAVED),
    },
    unless_named={"rope_scaling": ("default",), "axes": (ONE,)},
    outputs=("cos", "sin"),
    stages=rope_table_budget.STAGES,
    cases=cases,
    inputs=lambda case: {"positions": of_axes(case, positions(case))},
    options=options,
    layouts=lambda case: {"positions": case.layout},
    oracle=oracle,
    exact=lambda case, inputs, output, flat: rope_table_exact.exact(
        case, inputs, output, flat, scaling_of(case)
    ),
    budget=partial(rope_table_scaling_budget.budget, rope_table_exact),
    nulls=partial(rope_table_scaling_alternatives.nulls, rope_table_exact),
    alternatives=partial(rope_table_scaling_alternatives.alternatives, rope_table_exact),
    axes=("positions", "position_dtype", "layout", "rope_scaling", "axes"),
)
