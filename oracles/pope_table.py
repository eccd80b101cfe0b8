"""The contract `pope_table`: PoPE's frequencies, and cos and sin of every position times each.

theta_c = rope_theta**(s c/rotary_dim) for c = 0 .. rotary_dim-1, one a feature and not one a pair,
s = `exponent_sign`; cos(m theta_c), sin(m theta_c) (PoPE, arXiv 2509.10534, eq. 4, which prints
s = 1; most code has s = -1: `tightrope.polar`). Derivations: docs/error-budgets.md.
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
from tightrope.oracles import pope_table_alternatives, pope_table_budget, pope_table_exact
from tightrope.oracles.rope_table import BASES, HUGE, KINDS, fields_of_cases
from tightrope.oracles.rope_table import inputs as inputs
from tightrope.polar import EXPONENT_SIGNS

SIZES = (8, 1, 2, 3, 4, 5, 7, 16, 31, 32, 48, 64, 65, 80, 96, 127, 128)


@dataclass(frozen=True, kw_only=True)
class PopeTableCase:
    """positions, start, span: as in `RopeTableCase`. rotary_dim may be odd."""

    tokens: int = 1
    positions: str = "range"
    start: int = 1
    span: int = 4096
    position_dtype: str = "int64"
    layout: str = "contiguous"
    rotary_dim: int = 8
    rope_theta: float = 10000.0
    exponent_sign: int = EXPONENT_SIGNS[0]
    dtype: str = "float32"
    seed: int = 0


def cases(limits: Limits) -> Any:
    """A Hypothesis strategy of cases, a few tokens each; "huge" positions as in rope_table."""
    from hypothesis import strategies as st

    signs = st.sampled_from(limits.values("exponent_sign"))
    fields = fields_of_cases(limits, SIZES)
    return st.builds(lambda sign, rest: PopeTableCase(exponent_sign=sign, **rest), signs, fields)


def options(case: PopeTableCase) -> dict[str, Any]:
    return {
        "rotary_dim": case.rotary_dim,
        "rope_theta": case.rope_theta,
        "exponent_sign": case.exponent_sign,
    }


def _frequencies(case: PopeTableCase) -> tuple[Array, Array]:
    """theta_c in float64, and a bound on the relative error of each, (rotary_dim,)."""
    exponent = np.arange(case.rotary_dim) / case.rotary_dim
    relative = (exponent * abs(np.log(case.rope_theta)) + 10) * 2.0**-53 * (1 + 2.0**-30)
    return case.rope_theta ** (case.exponent_sign * exponent), relative


def oracle(case: PopeTableCase, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The definition in float64; good to `oracle_error`."""
    theta, _ = _frequencies(case)
    angle = inputs["positions"].astype(np.float64)[:, None] * theta
    return {"inv_freq": theta, "cos": np.cos(angle), "sin": np.sin(angle)}


def oracle_error(case: PopeTableCase, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Bounds on |oracle - exact|, eq. (10) of rope_table's derivation: they grow with the angle."""
    theta, relative = _frequencies(case)
    angle = np.abs(inputs["positions"].astype(np.float64))[:, None] * theta
    table = np.minimum(2.0, angle * (relative + 2.0**-52) + 2.0**-50)
    return {"inv_freq": theta * relative, "cos": table, "sin": table}


CONTRACT = Contract(
    name="pope_table",
    signature="pope_table(positions, *, rotary_dim, rope_theta, exponent_sign)"
    " -> inv_freq, cos, sin",
    case=PopeTableCase,
    domain={
        "dtype": ("float32",),
        "tokens": range(0, 4097),
        "rotary_dim": range(1, 257),
        "rope_theta": BASES,
        "exponent_sign": EXPONENT_SIGNS,
        "positions": (*KINDS, HUGE),
        "position_dtype": ("int64", "int32"),
        "layout": ("contiguous", "strided", "offset"),
    },
    outputs=("inv_freq", "cos", "sin"),
    stages=pope_table_budget.STAGES,
    cases=cases,
    inputs=inputs,
    options=options,
    layouts=lambda case: {"positions": case.layout},
    oracle=oracle,
    exact=pope_table_exact.exact,
    budget=partial(pope_table_budget.budget, pope_table_exact),
    nulls=partial(pope_table_alternatives.nulls, pope_table_exact),
    alternatives=partial(pope_table_alternatives.alternatives, pope_table_exact),
    axes=("exponent_sign", "positions", "position_dtype", "layout"),
)
