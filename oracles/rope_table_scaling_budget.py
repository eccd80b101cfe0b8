"""rope_table's budgets where frequencies are scaled, amplified, or turned by several axes.

Derivation: docs/error-budgets.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from tightrope.arithmetic import Arithmetic
from tightrope.budget import Budget, Replay
from tightrope.formats import FORMATS, Array
from tightrope.oracles import rope_scaling, rope_table_budget
from tightrope.oracles.rope_scaling_budget import scaling_term
from tightrope.oracles.rope_table_scaling import scaling_of
from tightrope.rope_scaling import RopeScaling

OWN = 2.0**-50  # relative, of attention_factor and of products in float64


@dataclass(frozen=True)
class Scaled:
    """`rope_table`'s exact numbers for scaled frequencies; attention_factor is left out."""

    truth: Any
    rope_theta: float
    scaling: RopeScaling

    def table(
        self, positions: tuple[int, ...], rotary_dim: int, rope_theta: float
    ) -> tuple[Array, Array]:
        found: tuple[Array, Array] = self.truth.table(
            positions, rotary_dim, self.rope_theta, self.scaling
        )
        return found

    def inv_freq(self, rotary_dim: int, rope_theta: float, dtype: str) -> Array:
        found: Array = self.truth.inv_freq(rotary_dim, self.rope_theta, dtype, self.scaling)
        return found


def budget(
    truth: Any, case: Any, inputs: Mapping[str, Array], arithmetic: Arithmetic
) -> dict[str, Budget]:
    """Budgets of cos and sin, (tokens, rotary_dim/2), for this case's positions and arithmetic."""
    scaling = scaling_of(case)
    if scaling is None:
        return rope_table_budget.budget(truth, case, inputs, arithmetic)
    return of_scaling(truth, case, scaling, inputs, arithmetic)


def of_scaling(
    truth: Any,
    case: Any,
    scaling: RopeScaling,
    inputs: Mapping[str, Array],
    arithmetic: Arithmetic,
) -> dict[str, Budget]:
    """Those of any scaling; case: rotary_dim, rope_theta and dtype."""
    numbers, base = asked(truth, case, scaling)
    factor, ulps = rope_scaling.attention_factor(scaling), arithmetic["trig_ulp"]
    rounded = factor != 1 and arithmetic["attention_factor"] != "exact"
    # what is multiplied was rounded: all of its ulps count, not only those before the rounding
    given = Arithmetic(**{**arithmetic, "trig_ulp": ulps + 0.5}) if rounded else arithmetic
    own = partial(scaling_term, ulps=arithmetic["inv_freq_ulp"])
    terms = partial(own, case.rotary_dim, case.rope_theta, scaling)
    each = [rope_table_budget.budget(numbers, base, one, given, terms) for one in by_axis(inputs)]
    found = {name: _select(scaling, [one[name] for one in each]) for name in each[0]}
    if factor == 1:
        return found
    if rounded:
        held = arithmetic["attention_factor"]
        return {name: _multiplied(b, factor, held, ulps) for name, b in found.items()}
    return {name: _amplified(b, factor) for name, b in found.items()}


def asked(truth: Any, case: Any, scaling: RopeScaling) -> tuple[Scaled, Any]:
    """Exact numbers, and a case with the base that the powers have."""
    base = rope_scaling.base_of(case.rotary_dim, case.rope_theta, scaling)
    plain = SimpleNamespace(rotary_dim=case.rotary_dim, rope_theta=base, dtype=case.dtype)
    return Scaled(truth, case.rope_theta, scaling), plain


def by_axis(inputs: Mapping[str, Array]) -> list[dict[str, Array]]:
    """The inputs of one axis of positions at a time."""
    return [{"positions": one} for one in np.atleast_2d(inputs["positions"])]


def chosen(scaling: RopeScaling, each: list[Array]) -> Array:
    """From the same table of every axis, (tokens, rotary_dim/2), the columns that it turns."""
    if len(each) == 1:
        return each[0]
    return np.choose(rope_scaling.axes(each[0].shape[-1], scaling), each)


def _select(scaling: RopeScaling, each: list[Budget]) -> Budget:
    """The budget of columns turned by different axes, from those of each axis."""

    def of(arrays: list[Any]) -> Array:
        whole = [np.broadcast_to(a, each[0].expected.shape) for a in arrays]
        return chosen(scaling, whole)

    replays, replay = [b.replay for b in each if b.replay], None
    if len(replays) == len(each):
        replay = Replay(of([r.centre for r in replays]), of([r.radius for r in replays]))
    return Budget(
        of([b.expected for b in each]),
        {name: of([b.terms[name] for b in each]) for name in each[0].terms},
        each[0].dtype,
        of([b.oracle for b in each]),
        replay,
    )


def _multiplied(b: Budget, factor: float, held: str, ulps: float) -> Budget:
    """cos or sin rounded, times attention_factor rounded: eq. (S5)."""
    near = float(FORMATS[held].round(factor))
    grown = max(near, factor) * (1 + OWN)
    off = abs(near - factor) + factor * OWN
    terms = {name: grown * np.asarray(term) for name, term in b.terms.items()}
    trig = next(name for name in terms if name.startswith("cos, sin within"))
    terms[f"cos, sin within {ulps:.6g} ulp, rounded"] = terms.pop(trig)
    terms[f"attention_factor rounded to {held}"] = np.abs(b.expected) * off
    replay = b.replay and Replay(
        b.replay.centre * near,
        (np.asarray(b.replay.radius) + np.abs(b.replay.centre) * OWN) * near,
    )
    return _with(b, factor, terms, replay)


def _amplified(b: Budget, factor: float) -> Budget:
    """attention_factor before the one rounding: eq. (S6); an ulp may grow twice as much."""
    wide = factor * (1 + OWN)
    terms = {
        name: (2 * wide if name.startswith("cos, sin within") else wide) * np.asarray(term)
        for name, term in b.terms.items()
    }
    replay = b.replay and Replay(
        b.replay.centre * factor,
        (2 * np.asarray(b.replay.radius) + np.abs(b.replay.centre) * OWN) * factor,
    )
    return _with(b, factor, terms, replay)


def _with(b: Budget, factor: float, terms: dict[str, Array], replay: Replay | None) -> Budget:
    oracle = (np.asarray(b.oracle) + np.abs(b.expected) * OWN) * factor
    return Budget(b.expected * factor, terms, b.dtype, oracle, replay)
