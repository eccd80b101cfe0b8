"""The budget of `pope_attention`: that of attention, with the polar features in its scores.

Derived in docs/error-budgets.md, section pope_attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tightrope.arithmetic import Arithmetic
from tightrope.budget import Budget
from tightrope.formats import Array, widen
from tightrope.oracles import attention_budget, pope_features_stages
from tightrope.oracles.attention_dots import Scores
from tightrope.oracles.attention_features import Features, budgets, feature_scores
from tightrope.oracles.attention_numbers import FLOAT32
from tightrope.oracles.attention_problem import Problem
from tightrope.oracles.attention_scores_budget import smallest_factor
from tightrope.oracles.attention_stages import Stages
from tightrope.oracles.pope_attention_problem import repeated, right
from tightrope.oracles.pope_features import magnitude, ordered, polar
from tightrope.oracles.pope_features_angle import turning
from tightrope.oracles.pope_features_held import Held
from tightrope.oracles.pope_features_stages import Grant
from tightrope.oracles.rope_attention_inputs import finite_keys

if TYPE_CHECKING:
    from tightrope.oracles.pope_attention_cases import PopeAttentionCase

STAGES: dict[str, Any] = {**attention_budget.STAGES, **pope_features_stages.STAGES}
"""What a stranger is granted: attention's stages and those of the features."""


def budget(
    case: PopeAttentionCase, inputs: Mapping[str, Array], arithmetic: Arithmetic
) -> dict[str, Budget]:
    """Budgets of out and lse. Raises ValueError for a stage value that has no budget."""
    given = {**STAGES, **arithmetic}
    grant = Grant.of(case.dtype, given)
    rest = {name: given[name] for name in attention_budget.STAGES}
    p = right(case, inputs)
    return budgets(case, p, rest, lambda: polar_scores(case, inputs, p, rest, grant))


def polar_scores(
    case: PopeAttentionCase, inputs: Mapping[str, Array], p: Problem, rest: Mapping[str, Any],
    grant: Grant,
) -> Scores:  # fmt: skip
    """Scores of polar q and k: exact centre, worst case, and T1 from the features' roundings."""
    q, k = (side(case, inputs, name, grant) for name in ("q", "k"))
    return scores_of(q, k, case.rotary_dim, p, rest, grant)


def scores_of(
    q: Features, k: Features, rotary_dim: int, p: Problem, rest: Mapping[str, Any], grant: Grant
) -> Scores:
    """The same of features of `side`; p: only for dtypes, scale and softcap."""
    wide = grant.features is FLOAT32
    stages = Stages.of(replace(p, dtype="float32") if wide else p, rest)
    if grant.order == "any":  # which products a tensor core adds at once is not known
        stages = replace(stages, mma=False)
    q, k = (ordered(x, rotary_dim, grant.order) for x in (q, k))
    decided = not wide or grant.table is not None or grant.magnitude is not None
    return feature_scores(q, k, stages, smallest_factor(p), replay=decided)


def side(case: PopeAttentionCase, inputs: Mapping[str, Array], name: str, grant: Grant) -> Features:
    """Features of "q" or "k", (batch x num_heads, length, rotary_dim + head_dim)."""
    found = polar(*parts(case, inputs, name, grant), grant)
    return found.each(lambda z: z.reshape(len(z) * z.shape[1], *z.shape[2:]))


def parts(
    case: PopeAttentionCase, inputs: Mapping[str, Array], name: str, grant: Grant
) -> tuple[Held, tuple[Held, Held], Array]:
    """Magnitudes, cos and sin, and plain features of "q" or "k" for every query head."""
    x = repeated(case, widen(inputs["q"] if name == "q" else finite_keys(case, inputs)))
    delta = inputs.get("delta")
    if delta is not None:
        delta = repeated(case, widen(delta), axis=0)[:, None, :]
    places = np.atleast_2d(inputs[f"{name}_positions"])[:, None, :, None]
    turned = turning(places, widen(inputs["inv_freq"]), delta, grant, name == "k")
    mu = magnitude(x[..., : case.rotary_dim], grant)
    return mu, turned, x[..., case.rotary_dim :]
