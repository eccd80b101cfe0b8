"""The stages of the arithmetic of attention's backward pass, resolved for one problem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tightrope.formats import Format
from tightrope.oracles import attention_stages
from tightrope.oracles.attention_problem import Problem

OF_ATTENTION = ("dot", "scores", "logits", "p", "exp_ulp", "exp_flush", "division_ulp")
STAGES: dict[str, Any] = {
    "state": "any",
    **{name: attention_stages.STAGES[name] for name in OF_ATTENTION},
    "ds": "input",
    "heads": "apart",
}
"""What a stranger is granted; meaning: `tightrope.oracles.attention_backward`."""

CHOICES = {"state": ("any", "given"), "heads": ("apart", "summed")}


@dataclass(frozen=True)
class Stages:
    """forward: the stages of scores, logits, P and products. ds: the format of dS, None for
    float32. given: P and D come from the given lse and out. apart: dk and dv of each query head
    are rounded before they are added up.
    """

    forward: attention_stages.Stages
    ds: Format | None
    given: bool
    apart: bool
    recomputed: Mapping[str, Any]

    @property
    def scaled(self) -> bool:
        return self.forward.scaled

    @classmethod
    def of(cls, problem: Problem, arithmetic: Mapping[str, Any]) -> Stages:
        """Raises ValueError, naming the stage, for a value that means nothing here."""
        given = {**STAGES, **arithmetic}
        for stage, value in given.items():
            if stage not in STAGES:
                known = ", ".join(STAGES)
                raise ValueError(f"attention_backward: unknown stage {stage}; known: {known}")
            if stage in CHOICES and value not in CHOICES[stage]:
                known = ", ".join(map(repr, CHOICES[stage]))
                raise ValueError(f"attention_backward: {stage}={value!r}; known: {known}")
        of_forward = {name: given[name] for name in OF_ATTENTION}
        try:
            ds = attention_stages.Stages.of(problem, {**of_forward, "p": given["ds"]}).p
        except ValueError as error:
            raise ValueError(f"attention_backward: ds={given['ds']!r}: {error}") from None
        return cls(
            attention_stages.Stages.of(problem, of_forward), ds, given["state"] == "given",
            given["heads"] == "apart", of_forward,
        )  # fmt: skip
