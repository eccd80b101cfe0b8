"""The budget of `rope_attention`: that of attention, with the rotation in its scores.

Derived in docs/error-budgets.md, section rope_attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from tightrope.arithmetic import Arithmetic
from tightrope.budget import Budget
from tightrope.formats import FORMATS, Array, Format
from tightrope.oracles import attention_budget, rope_budget
from tightrope.oracles.attention_dots import Scores
from tightrope.oracles.attention_features import Features, budgets, feature_scores, held
from tightrope.oracles.attention_problem import Problem
from tightrope.oracles.attention_scores_budget import smallest_factor
from tightrope.oracles.attention_stages import Stages
from tightrope.oracles.rope_attention_alternatives import right
from tightrope.oracles.rope_attention_inputs import finite_keys, flattened, unflattened

if TYPE_CHECKING:
    from tightrope.oracles.rope_attention_cases import RopeAttentionCase

STAGES: dict[str, Any] = {
    **attention_budget.STAGES,
    "rotated": "input",
    "contraction": "any",
}
"""What a stranger is granted: attention's stages, and rotated: the format that rotated q and k have
in the product, "input" (their dtype) or "float32"; contraction: "none" if the rotation's products
are rounded before its sum, "any" if either may be fused into it. The rotation is in float32.
"""


def budget(
    case: RopeAttentionCase, inputs: Mapping[str, Array], arithmetic: Arithmetic
) -> dict[str, Budget]:
    """Budgets of out and lse. Raises ValueError for a stage value that has no budget."""
    given = {**STAGES, **arithmetic}
    known = {"rotated": ("input", "float32"), "contraction": ("none", "any")}
    for stage, values in known.items():
        if given[stage] not in values:
            told = ", ".join(map(repr, values))
            raise ValueError(f"rope_attention: {stage}={given[stage]!r}; known: {told}")
    rest = {name: given[name] for name in attention_budget.STAGES}
    p = right(case, inputs)
    return budgets(case, p, rest, lambda: rotated_scores(case, inputs, p, given))


def rotated_scores(
    case: RopeAttentionCase, inputs: Mapping[str, Array], p: Problem, given: Mapping[str, Any]
) -> Scores:
    """Scores of rotated q and k: exact centre, worst case, and T1 from the rotated values."""
    rest = {name: given[name] for name in attention_budget.STAGES}
    wide = given["rotated"] == "float32"
    kept = FORMATS["float32" if wide else case.dtype]
    stages = Stages.of(replace(p, dtype="float32") if wide else p, rest)
    q, k = (
        _turned(case, inputs, n, x, kept, given["contraction"] == "any")
        for n, x in (("q", inputs["q"]), ("k", finite_keys(case, inputs)))
    )
    replay = given["contraction"] == "none" or (not wide and kept.name != "float32")
    return feature_scores(q, k, stages, smallest_factor(p), replay)


def _turned(
    case: RopeAttentionCase, inputs: Mapping[str, Array], name: str, x: Array, kept: Format,
    fused: bool,
) -> Features:  # fmt: skip
    """Rotation of x, (batch, heads, length, head_dim) as stored, by the budget of `rope`."""
    tokens, positions = flattened(x, inputs[f"{name}_positions"])
    alone = {"q": tokens, "k": tokens[:, :0], "positions": positions}
    alone |= {t: inputs[t] for t in ("cos", "sin")}
    out_dtype = "float32" if kept.name == "float32" else "input"
    stages = {**rope_budget.STAGES, "contraction": "any" if fused else "none"}
    spent = rope_budget.budget(
        SimpleNamespace(interleaved=case.interleaved, out_dtype=out_dtype),  # type: ignore[arg-type]
        alone, Arithmetic(**stages),
    )["q"]  # fmt: skip
    y, before = spent.expected, spent.bound
    ends = (y - before, y + before)
    if spent.replay is not None:
        ends = (spent.replay.centre, spent.replay.centre)
    same = (before == 0) & (kept.round(y) == y)
    found = held(y, before, np.asarray(spent.oracle), kept, ends, same)
    group = case.num_heads // x.shape[1]

    def groups(z: Array) -> Array:
        whole = np.repeat(unflattened(z, x.shape), group, axis=1)
        return np.ascontiguousarray(
            whole.reshape(whole.shape[0] * case.num_heads, *whole.shape[2:])
        )

    return found.each(groups)
