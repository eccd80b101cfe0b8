"""The stages of the arithmetic of polar attention's backward pass, resolved for one call."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tightrope.formats import FORMATS, Format
from tightrope.oracles import (
    attention_backward_stages,
    attention_stages,
    pope_features_stages,
)
from tightrope.oracles.attention_backward_stages import Stages
from tightrope.oracles.attention_numbers import FLOAT32
from tightrope.oracles.attention_problem import Problem
from tightrope.oracles.pope_features_stages import Grant

OWN: dict[str, Any] = {
    "sigmoid_ulp": 11.0,
    "sigmoid_error": 3 * 2.0**-25,
    "point_gradients": "input",
    "phase_sums": "any",
}
STAGES: dict[str, Any] = {**attention_backward_stages.STAGES, **pope_features_stages.STAGES, **OWN}
"""What a stranger is granted; meaning: `tightrope.oracles.pope_attention_backward`."""

NAME = "pope_attention_backward"
CHOICES = {
    "point_gradients": ("input", "float32"),
    "phase_sums": ("any", "keys", "rows"),
}


@dataclass(frozen=True)
class Way:
    """stages: of P, dS and dv; products: of dS with points, which may be float32; grant: of points.
    kept: what gradients of points are rounded to, None for float32; sums: where ddelta is added up.
    """

    stages: Stages
    products: Stages
    grant: Grant
    sigmoid_ulp: float
    sigmoid_error: float
    kept: Format | None
    sums: str

    @classmethod
    def of(cls, problem: Problem, arithmetic: Mapping[str, Any]) -> Way:
        """Raises ValueError, naming the stage, for a value that means nothing here."""
        given = {**STAGES, **arithmetic}
        _check(given)
        stages = Stages.of(problem, {n: given[n] for n in attention_backward_stages.STAGES})
        unknown = not stages.scaled  # may flush products beside the exponentials
        grant = Grant.of(problem.dtype, {**given, "block_k": None if unknown else 1})
        products = stages
        if grant.features is FLOAT32:
            wide = replace(problem, dtype="float32")
            products = replace(stages, forward=attention_stages.Stages.of(wide, stages.recomputed))
        kept = None if given["point_gradients"] == "float32" else FORMATS[problem.dtype]
        return cls(
            stages, products, grant, given["sigmoid_ulp"], given["sigmoid_error"],
            None if kept is FLOAT32 else kept, given["phase_sums"],
        )  # fmt: skip


def _check(given: Mapping[str, Any]) -> None:
    for stage, value in given.items():
        if stage not in STAGES:
            raise ValueError(f"{NAME}: unknown stage {stage}; known: {', '.join(STAGES)}")
        if stage in CHOICES and value not in CHOICES[stage]:
            known = ", ".join(map(repr, CHOICES[stage]))
            raise ValueError(f"{NAME}: {stage}={value!r}; known: {known}")
    for stage, least in (("sigmoid_ulp", 0.5), ("sigmoid_error", 0.0)):
        if not least <= given[stage] < math.inf:
            raise ValueError(f"{NAME}: {stage}={given[stage]!r} must be at least {least}")
