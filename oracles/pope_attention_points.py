"""A call of `pope_attention` whose parts can be exchanged, for null models and alternatives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tightrope.formats import Array
from tightrope.oracles.attention_alternatives import shaped
from tightrope.oracles.attention_inputs import stated
from tightrope.oracles.attention_problem import Problem, attend
from tightrope.oracles.pope_attention_problem import Polar, as_attention, polar

if TYPE_CHECKING:
    from tightrope.oracles.pope_attention_cases import PopeAttentionCase

Outputs = dict[str, Array]
Given = Mapping[str, Array]


@dataclass(frozen=True)
class Points:
    """q and k of one call in polar form, and what weighs their scores.

    mask (batch, 1, seqlen_q, seqlen_k): in place of that by indices, or None.
    """

    case: PopeAttentionCase
    given: Given
    q: Polar
    k: Polar
    mask: Array | None = None

    @classmethod
    def of(cls, case: PopeAttentionCase, given: Given) -> Points:
        return cls(case, given, polar(case, given, "q"), polar(case, given, "k"))

    def given_as(self, **changes: Array) -> Points:
        """The same call of other inputs."""
        return Points.of(self.case, {**self.given, **changes})

    def without(self, name: str) -> Points:
        """The same call without one of its inputs."""
        return Points.of(self.case, {n: x for n, x in self.given.items() if n != name})

    def each(self, change: Callable[[str, Polar], Polar]) -> Points:
        """The same with a change made to the points of "q" and "k"."""
        return replace(self, q=change("q", self.q), k=change("k", self.k))

    def still(self, *names: str) -> Points:
        """The same with inputs of these names that hold 0."""
        return self.given_as(**{name: np.zeros_like(self.given[name]) for name in names})

    def asked(self) -> bool:
        """Whether it is a call that can be made: no part of it was changed by itself."""
        same = Points.of(self.case, self.given)
        pairs = ((same.q, self.q), (same.k, self.k))
        return self.mask is None and all(np.array_equal(a.features, b.features) for a, b in pairs)

    def outputs(self) -> Outputs:
        """out and lse as a kernel would return them."""
        p = self.problem()
        return shaped(self.case, p, *attend(p))

    def problem(self) -> Problem:
        """The same as attention of features."""
        case, given = as_attention(self.case, self.given, self.q, self.k)
        p = stated(case, given)
        if self.mask is not None:
            each = np.broadcast_to(self.mask, (*given["q"].shape[:3], given["k"].shape[2]))
            p = replace(p, visible=each.reshape(p.visible.shape))
        return p
