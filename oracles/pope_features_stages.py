"""The stages of `pope_attention`'s features, and what a set of them means for one case.

Values, meaning and the grant are derived in docs/error-budgets.md, section pope_attention.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tightrope.formats import FORMATS, Format
from tightrope.oracles.attention_numbers import FLOAT32

STAGES: dict[str, Any] = {
    "angle": "float32",
    "angle_error": 0.0,
    "trig_ulp": 2.5,
    "table": "float32",
    "phase": "key",
    "softplus_ulp": 6.5,
    "softplus_error": 3 * 2.0**-25,
    "magnitude": "float32",
    "features": "input",
    "feature_order": "any",
}
"""What a stranger is granted on the way to the features that enter the scores."""

_FORMATS = ("float32", "float16", "bfloat16", "input")
CHOICES = {
    "angle": ("float32", "float64", "exact"),
    "table": _FORMATS,
    "phase": ("key", "query_angle", "query"),
    "magnitude": _FORMATS,
    "features": ("input", "float32"),
    "feature_order": ("any", "blocks", "joined", "interleaved"),
}
LOWEST = {"angle_error": 0.0, "trig_ulp": 0.5, "softplus_ulp": 0.5, "softplus_error": 0.0}


@dataclass(frozen=True)
class Grant:
    """Stages resolved for one case. angle: None if it is exact but for angle_error; table,
    magnitude: None where nothing is rounded further. flushed: what a product may lose beside its
    rounding; lost: magnitudes below may be 0."""

    angle: Format | None
    angle_error: float
    trig_ulp: float
    table: Format | None
    phase: str
    softplus_ulp: float
    softplus_error: float
    magnitude: Format | None
    features: Format
    order: str
    flushed: float
    lost: float

    @classmethod
    def of(cls, dtype: str, given: Mapping[str, Any]) -> Grant:
        """given: these stages and attention's. Raises ValueError, naming the stage, for a value
        that means nothing."""
        _check(given)

        def named(stage: str) -> Format | None:
            name = dtype if given[stage] == "input" else given[stage]
            return None if name == "float32" else FORMATS[name]

        least = 2.0**-126 if given["exp_flush"] else 0.0
        return cls(
            angle=None if given["angle"] == "exact" else FORMATS[given["angle"]],
            angle_error=given["angle_error"],
            trig_ulp=given["trig_ulp"],
            table=named("table"),
            phase=given["phase"],
            softplus_ulp=given["softplus_ulp"],
            softplus_error=given["softplus_error"],
            magnitude=named("magnitude"),
            features=named("features") or FLOAT32,
            order=given["feature_order"],
            flushed=least if given["block_k"] is None else 0.0,
            lost=least,
        )


def _check(given: Mapping[str, Any]) -> None:
    for stage, values in CHOICES.items():
        if given[stage] not in values:
            known = ", ".join(map(repr, values))
            raise ValueError(f"pope_attention: {stage}={given[stage]!r}; known: {known}")
    for stage, least in LOWEST.items():
        if not least <= given[stage] < math.inf:
            raise ValueError(f"pope_attention: {stage}={given[stage]!r} must be at least {least}")
    if given["angle"] != "exact" and given["angle_error"]:
        raise ValueError(f"pope_attention: angle_error={given['angle_error']!r} is of exact angles")
