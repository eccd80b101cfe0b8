"""What kernels compute instead of polar attention: useless models, and known mistakes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tightrope.budget import Budget
from tightrope.diagnosis import Mistake
from tightrope.formats import FORMATS, Array
from tightrope.oracles import attention_alternatives, attention_budget
from tightrope.oracles.attention_dots import Scores
from tightrope.oracles.attention_feature_alternatives import Spend, spending
from tightrope.oracles.attention_problem import attend
from tightrope.oracles.pope_attention_angle_alternatives import of_angles, of_delta, of_positions
from tightrope.oracles.pope_attention_budget import STAGES, budget, polar_scores
from tightrope.oracles.pope_attention_points import Outputs, Points
from tightrope.oracles.pope_attention_problem import Polar, as_attention, polar, softplus
from tightrope.oracles.pope_features_stages import Grant

if TYPE_CHECKING:
    from tightrope.oracles.pope_attention_cases import PopeAttentionCase

BLOCKS = (16, 32, 64, 128)


def nulls(case: PopeAttentionCase, inputs: Mapping[str, Array]) -> dict[str, Outputs]:
    """Models that no budget should accept, each with both outputs."""
    points = Points.of(case, inputs)
    models = dict(attention_alternatives.nulls(*as_attention(case, inputs, points.q, points.k)))
    still = points.still("inv_freq")
    pairs = ((still.q, points.q), (still.k, points.k))
    if models and any((x.features != y.features).any() for x, y in pairs):
        models["positions ignored"] = still.outputs()
        if "delta" in inputs:
            models["positions and delta ignored"] = points.still("inv_freq", "delta").outputs()
    return models


def alternatives(
    case: PopeAttentionCase, inputs: Mapping[str, Array]
) -> Iterator[tuple[str, Outputs]]:
    """(what is computed instead, outputs), the likeliest first; those equal to a right result are
    left out.
    """
    points = Points.of(case, inputs)
    right, spend = attend(points.problem()), _spend(case, inputs, points)
    with np.errstate(all="ignore"):
        for mistakes in (of_magnitudes, of_angles, of_delta, of_positions, of_the_rest):
            for sentence, wrong in mistakes(points):
                p = wrong.problem()
                if attention_alternatives.differ(right, pair := attend(p)):
                    found = attention_alternatives.mistaken(case, p, pair, spend)
                    yield sentence, _asked(wrong, found) if wrong.asked() else found
        same, given = as_attention(case, inputs, points.q, points.k)
        yield from attention_alternatives.alternatives(same, given, spend)


def fits(
    case: PopeAttentionCase, inputs: Mapping[str, Array], outputs: Outputs,
    budgets: Mapping[str, Budget],
) -> Iterator[tuple[str, Outputs]]:  # fmt: skip
    """What is found from the lse that was returned: another scale, or other keys."""
    points = Points.of(case, inputs)
    same, given = as_attention(case, inputs, points.q, points.k)
    spend = _spend(case, inputs, points)
    yield from attention_alternatives.fits(same, given, outputs, budgets, spend)


def _asked(wrong: Points, outputs: Outputs) -> Mistake:
    """A call of other arguments: its own budget is known."""
    return Mistake(outputs, lambda arithmetic: budget(wrong.case, wrong.given, arithmetic))


def _spend(case: PopeAttentionCase, inputs: Mapping[str, Array], points: Points) -> Spend:
    """Budgets of mistakes in polar attention."""

    def found(arithmetic: Mapping[str, Any]) -> Scores:
        given = {**STAGES, **arithmetic}
        rest = {name: given[name] for name in attention_budget.STAGES}
        return polar_scores(case, inputs, points.problem(), rest, Grant.of(case.dtype, given))

    return spending(found)


def of_magnitudes(points: Points) -> Iterator[tuple[str, Points]]:
    def instead(magnitude: Callable[[Array], Array]) -> Points:
        return points.each(lambda name, _: polar(points.case, points.given, name, magnitude))

    yield "relu for softplus", instead(lambda x: np.maximum(x, 0.0))
    yield "exp for softplus", instead(np.exp)
    yield "the features themselves for softplus", instead(lambda x: x)
    yield "softplus in base 2, not natural", instead(lambda x: softplus(x) / np.log(2.0))
    yield "softplus of at most 20", instead(lambda x: softplus(np.minimum(x, 20.0)))
    yield "features of at most 20", instead(lambda x: np.where(x > 20, 20.0, softplus(x)))
    for x in (5, 8, 10, 15, 20):
        yield f"softplus linear from {x} on", instead(_linear_from(x))
    for name in dict.fromkeys(("float32", points.case.dtype)):
        yield f"ln(1 + e^x) with the sum in {name}", instead(_naive(name))
    if points.q.plain.shape[-1]:
        yield "softplus of plain features too", points.each(_all_softplus)


def _linear_from(threshold: float) -> Callable[[Array], Array]:
    return lambda x: np.where(x > threshold, x, softplus(x))


def _naive(name: str) -> Callable[[Array], Array]:
    fmt = FORMATS[name]
    return lambda x: np.where(x > 20, x, np.log(fmt.round(1.0 + np.exp(np.minimum(x, 20.0)))))


def _all_softplus(_: str, x: Polar) -> Polar:
    return replace(x, plain=softplus(x.plain))


def of_the_rest(points: Points) -> Iterator[tuple[str, Points]]:
    """Of the scale, and of keys that do not exist."""
    case = points.case
    for width, what in (
        (case.head_dim + case.rotary_dim, "the expanded width"),
        (case.rotary_dim, "rotary_dim"),
    ):
        scaled = replace(case, softmax_scale=width**-0.5)
        yield f"the scale of {what}", replace(points, case=scaled)
    for block in BLOCKS:
        if case.seqlen_k % block:
            sentence = f"keys of 0 (softplus ln 2) seen past the end, up to a multiple of {block}"
            yield sentence, _padded(points, -case.seqlen_k % block)


def _padded(points: Points, more: int) -> Points:
    given = {}
    for name, axis in (("k", 2), ("v", 2), ("k_positions", -1)):
        x = points.given[name]
        widths = [(0, 0)] * x.ndim
        widths[axis] = (0, more)
        given[name] = np.pad(x, widths)
    case = replace(points.case, seqlen_k=points.case.seqlen_k + more)
    return Points.of(case, {**points.given, **given})
