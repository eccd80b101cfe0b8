"""The budget of `rope_attention`: that of attention, with the rotation in its scores.

Derived in docs/error-budgets.md, section rope_attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from tightrope.arithmetic import Arithmetic
from tightrope.budget import Budget
from tightrope.formats import FORMATS, Array, Format
from tightrope.oracles import attention_budget, rope_budget
from tightrope.oracles.attention_budget import forward
from tightrope.oracles.attention_dots import Scores, scores
from tightrope.oracles.attention_numbers import U64
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


@dataclass(frozen=True)
class Turned:
    """Rotated q or k of all groups, (groups, length, head_dim): exact (float64, off by own), error
    of what the kernel holds; near, open: where that lies as prescribed roundings give it."""

    exact: Array
    error: Array
    own: Array
    near: Array
    open: Array


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
    shape = (case.batch, case.num_heads, case.seqlen_q)
    if 0 in shape:
        nothing = np.zeros((*shape, case.head_dim_v))
        return {
            "out": Budget(nothing, {}, p.out_dtype),
            "lse": Budget(nothing[..., 0], {}, "float32"),
        }
    spent = forward(p, rest, rotated_scores(case, inputs, p, given))
    return {
        "out": spent.out.reshape((*shape, case.head_dim_v)),
        "lse": spent.lse.reshape(shape),
    }


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
    size_q, size_k = np.abs(q.exact) + q.error, np.abs(k.exact) + k.error
    worst = scores(size_q, size_k, stages, smallest_factor(p)).error
    centre = q.exact @ _t(k.exact)
    moved = np.abs(q.exact) @ _t(k.error) + q.error @ _t(size_k)
    own = np.abs(q.exact) @ _t(k.own) + q.own @ _t(size_k)
    own = own + p.q.shape[-1] * U64 * (size_q @ _t(size_k))
    again: tuple[Array | None, Array | None] = None, None
    if given["contraction"] == "none" or (not wide and kept.name != "float32"):
        again = _replayed(q, k, worst, stages, smallest_factor(p))
    return Scores(centre, worst + moved, own, *again)


def _replayed(
    q: Turned, k: Turned, worst: Array, stages: Stages, factor: float
) -> tuple[Array, Array]:
    """Centre and error of scores whose rotated q and k are known, but for a few undecided ones."""
    found = scores(q.near, k.near, stages, factor)
    centre, error = found.centre, found.error
    if found.replay_centre is not None and found.replay_error is not None:
        centre, error = found.replay_centre, found.replay_error
    error = error + found.own
    undecided = (q.open.max(-1) > 0)[..., :, None] | (k.open.max(-1) > 0)[..., None, :]
    if undecided.any():
        moved = np.abs(q.near) @ _t(k.open) + q.open @ _t(np.abs(k.near) + k.open)
        away = np.abs(centre - found.centre)  # of operands that are converted
        error = np.where(undecided, worst + moved + away + found.own, error)
    return centre, error


def _t(x: Array) -> Array:
    return x.swapaxes(-1, -2)


def _turned(
    case: RopeAttentionCase, inputs: Mapping[str, Array], name: str, x: Array, kept: Format,
    fused: bool,
) -> Turned:  # fmt: skip
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
    exactly = (before == 0) & (kept.round(y) == y)
    error = np.where(exactly, 0.0, before + kept.half_ulp(np.abs(y) + before))
    low, high = kept.round(y - before), kept.round(y + before)
    if spent.replay is not None:
        low = high = kept.round(spent.replay.centre)
    error = np.where(np.isfinite(low) & np.isfinite(high), error, np.inf)
    near, radius = (low + high) / 2, (high - low) / 2
    own = np.broadcast_to(spent.oracle, y.shape)
    group = case.num_heads // x.shape[1]

    def groups(z: Array) -> Array:
        whole = np.repeat(unflattened(z, x.shape), group, axis=1)
        return np.ascontiguousarray(
            whole.reshape(whole.shape[0] * case.num_heads, *whole.shape[2:])
        )

    return Turned(*map(groups, (y, error, own, near, radius)))
