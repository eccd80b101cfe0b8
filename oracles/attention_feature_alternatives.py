"""What roundings may do to mistakes of kernels that form q and k themselves.

Where a mistake leaves the scores as they are, they are off by what the right ones may be; else by
no more than the worst of those. That is no bound, which a verdict would need: it tells how near a
mistake's outputs have to come to be named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tightrope.formats import Array
from tightrope.oracles.attention_budget import STAGES, Forward, forward
from tightrope.oracles.attention_dots import Scores
from tightrope.oracles.attention_problem import Problem

Spend = Callable[[Problem, Mapping[str, Any]], Forward]


def spending(found: Callable[[Mapping[str, Any]], Scores]) -> Spend:
    """Budgets of a mistake's problem. found: arithmetic -> scores of the right call."""

    def spend(p: Problem, arithmetic: Mapping[str, Any]) -> Forward:
        rest = {name: arithmetic[name] for name in STAGES}
        spent = forward(p, rest, _near(p, found(arithmetic)))
        return Forward(replace(spent.out, replay=None, _cache={}), spent.lse)

    return spend


def _near(p: Problem, right: Scores) -> Scores:
    """Scores of p; beyond the keys of the right call they are of keys of 0, and exact."""
    centre = p.q @ p.k.swapaxes(-1, -2)
    keys = right.centre.shape[-1]
    same = centre.shape[:2] == right.centre.shape[:2] and bool(
        (centre[..., :keys] == right.centre).all()
    )

    def off(error: Array | float) -> Array:
        error = np.broadcast_to(error, right.centre.shape)
        worst = error[np.isfinite(error)].max(initial=0.0)
        found = np.where(centre == 0, 0.0, worst)
        found[..., :keys] = error if same else worst
        return found

    return Scores(centre, off(right.error), off(right.own))
