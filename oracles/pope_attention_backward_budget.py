"""The budgets of `pope_attention_backward`: attention's gradients of points, and the way back.

Derived in docs/error-budgets.md, section pope_attention_backward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tightrope.arithmetic import Arithmetic
from tightrope.budget import Budget
from tightrope.formats import Array, widen
from tightrope.oracles.attention_backward_budget import (
    Product,
    finished,
    of_keys,
    of_queries,
    of_values,
    weighed,
)
from tightrope.oracles.attention_backward_ds import Gradient
from tightrope.oracles.attention_backward_inputs import given_to, shapes
from tightrope.oracles.attention_backward_problem import Backward
from tightrope.oracles.attention_backward_weights import Weights
from tightrope.oracles.attention_dots import Scores
from tightrope.oracles.attention_features import Features
from tightrope.oracles.pope_attention_backward_cases import forward
from tightrope.oracles.pope_attention_backward_chain import Back, Side, along
from tightrope.oracles.pope_attention_backward_finish import (
    either,
    finish,
    joined,
    of_heads,
    of_phases,
    plain,
)
from tightrope.oracles.pope_attention_backward_stages import Way
from tightrope.oracles.pope_attention_backward_sums import Sum, known, summed
from tightrope.oracles.pope_attention_budget import parts, scores_of
from tightrope.oracles.pope_attention_problem import repeated, right
from tightrope.oracles.pope_features import polar
from tightrope.oracles.rope_attention_inputs import finite_keys

if TYPE_CHECKING:
    from tightrope.oracles.pope_attention_backward_cases import PopeAttentionBackwardCase

Given = Mapping[str, Array]


@dataclass(frozen=True)
class Pass:
    """One call of attention's backward pass on points: as they are, or as roundings leave them."""

    b: Backward
    w: Weights
    g: Gradient


@dataclass(frozen=True)
class Call:
    """points, sides: of "q" and "k". first: the pass on exact points; again: replayed, or None.
    phases: rows of delta, 0 without; alike: query heads of a kv head read the same points."""

    case: PopeAttentionBackwardCase
    way: Way
    points: Mapping[str, Features]
    sides: Mapping[str, Side]
    first: Pass
    again: Pass | None
    phases: int
    alike: bool

    @property
    def scale(self) -> float:
        return self.first.b.forward.softmax_scale

    @property
    def group(self) -> int:
        return self.first.b.group


def budget(
    case: PopeAttentionBackwardCase, inputs: Given, arithmetic: Arithmetic
) -> dict[str, Budget]:
    """Budgets of dq, dk, dv, ddelta. Raises ValueError for a stage value that has no budget."""
    call = _call(case, inputs, arithmetic)
    b, scale = call.first.b, call.scale
    dtype = b.forward.out_dtype
    rows = _of_rows(call)
    keys = _of_keys(call, call.group if call.alike else 1)
    dk = of_heads(
        _features(call, "k", keys, call.alike), call.group, call.way, scale, shared=call.alike
    )
    found = {
        "dq": finish(_features(call, "q", rows, False), scale, dtype),
        "dk": finish(dk, scale, dtype),
        "dv": _values(call),
    }
    found = {name: x.reshape(shapes(case)[name]) for name, x in found.items()}  # type: ignore[arg-type]
    if not call.phases:
        return {**found, "ddelta": Budget(np.zeros(0), {}, "float32")}
    return {**found, "ddelta": finish(_phases(call, rows), scale, "float32")}


def _call(case: PopeAttentionBackwardCase, inputs: Given, arithmetic: Arithmetic) -> Call:
    call, group = forward(case), case.num_heads // case.num_kv_heads
    p = right(call, inputs)
    way = Way.of(p, arithmetic)
    points, sides = {}, {}
    for name in ("q", "k"):
        mu, turned, rest = parts(call, inputs, name, way.grant)
        found = polar(mu, turned, rest, way.grant)
        points[name] = found.each(lambda z: z.reshape(len(z) * z.shape[1], *z.shape[2:]))
        x = repeated(call, widen(inputs["q"] if name == "q" else finite_keys(call, inputs)))
        sides[name] = Side.of(x[..., : case.rotary_dim], mu, turned, way)
    q, k = points["q"], points["k"]
    of = scores_of(q, k, case.rotary_dim, p, way.stages.recomputed, way.grant)
    b = given_to(replace(p, q=q.exact, k=k.exact), inputs, group)
    first = _pass(b, way, Scores(of.centre, of.error, of.own))
    again, stages = None, way.stages
    if stages.given and stages.scaled and of.replay_centre is not None:
        near = replace(b, forward=replace(p, q=q.near, k=k.near))
        again = _pass(near, way, Scores(of.replay_centre, of.replay_error, of.own))  # type: ignore[arg-type]
    phases = len(inputs["delta"]) if "delta" in inputs else 0
    alike = way.grant.phase != "key" or phases in (0, case.num_kv_heads)
    return Call(case, way, points, sides, first, again, phases, alike)


def _pass(b: Backward, way: Way, scores: Scores) -> Pass:
    return Pass(b, *weighed(b, way.stages, scores))


def _of_rows(call: Call) -> Sum:
    """Gradients of the points of queries."""

    def product(x: Pass) -> Product:
        return of_queries(x.b, x.g)

    return summed(*_both(call, product), call.points["k"], call.way, call.scale)


def _both(call: Call, product: Callable[[Pass], Product]) -> tuple[Product, Product | None]:
    """A product of the exact pass, and of the replayed one."""
    return product(call.first), None if call.again is None else known(product(call.again))


def _of_keys(call: Call, group: int) -> Sum:
    """Gradients of the points of keys, summed over `group` query heads."""

    def product(x: Pass) -> Product:
        return of_keys(replace(x.b, group=group), x.g)

    return summed(*_both(call, product), call.points["q"], call.way, call.scale)


def _features(call: Call, name: str, x: Sum, first: bool) -> Back:
    """Gradients of the features; first: one side stands for the query heads of a group."""
    width = call.case.rotary_dim
    side = call.sides[name].first(call.group) if first else call.sides[name]
    turned = along(
        x.at(np.s_[:width]), x.at(np.s_[width : 2 * width]), (side.cos, side.cos_again),
        (side.sin, side.sin_again), side.sigmoid, ("sigmoid", "way back"), call.way, call.scale,
    )  # fmt: skip
    return joined(turned, plain(x.at(np.s_[2 * width :]), call.way))


def _values(call: Call) -> Budget:
    def product(x: Pass) -> Product:
        return of_values(x.b, x.w, x.g, call.way.stages)

    first, again = _both(call, product)
    return finished(first, call.first.b, call.way.stages, None, again)


def _phases(call: Call, rows: Sum) -> Back:
    """ddelta, by way of the angles of queries, of keys, or of either."""
    sums = call.way.sums
    ways = [_turned(call, "q", rows, False)] if sums != "keys" else []
    if sums != "rows":
        together = call.alike and call.phases == call.case.num_kv_heads
        keys = _of_keys(call, call.group if together else 1)
        ways.append(_turned(call, "k", keys, together))
    return ways[0] if len(ways) == 1 else either(*ways)


def _turned(call: Call, name: str, x: Sum, first: bool) -> Back:
    """Keys turn with a phase, queries against it."""
    width = call.case.rotary_dim
    side = call.sides[name].first(call.group) if first else call.sides[name]
    cos, sin = (side.cos, side.cos_again), (side.sin, side.sin_again)
    a, b = ((-sin[0], -sin[1]), cos) if name == "k" else (sin, (-cos[0], -cos[1]))
    turned = along(
        x.at(np.s_[:width]), x.at(np.s_[width : 2 * width]), a, b, side.mu,
        ("softplus", "way back"), call.way, call.scale,
    )  # fmt: skip
    return of_phases(turned, call.case.batch, call.phases)
