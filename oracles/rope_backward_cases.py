"""Cases of `rope_backward`: those of `rope`, for the gradients of its results."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from tightrope.limits import Limits
from tightrope.oracles import rope_cases
from tightrope.oracles.rope_cases import RopeCase

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


@dataclass(frozen=True, kw_only=True)
class RopeBackwardCase(RopeCase):
    """One call of `rope_backward`. All tensors follow from these scalars, which are RopeCase's.

    data and the layouts of q and k are those of their gradients.
    """


def cases(limits: Limits) -> SearchStrategy[RopeBackwardCase]:
    """A strategy of cases within limits, as `rope` draws them. Raises ValueError if none is."""
    return rope_cases.cases(limits).map(lambda case: RopeBackwardCase(**asdict(case)))
