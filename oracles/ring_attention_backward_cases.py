"""Cases of `ring_attention_backward`: those of `attention_backward`, and a ring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tightrope.limits import Limits
from tightrope.oracles import attention_backward_cases, ring_attention_cases
from tightrope.oracles.attention_backward_cases import AttentionBackwardCase, differentiated

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


@dataclass(frozen=True, kw_only=True)
class RingAttentionBackwardCase(AttentionBackwardCase):
    """One call of `ring_attention_backward`. All tensors follow from these scalars.

    ranks, scheme: as in RingAttentionCase; the rest is as in AttentionBackwardCase, of the whole
    sequence, with one q_offset for all.
    """

    ranks: int = 2
    scheme: str = "contiguous"


RING = ("ranks", "scheme")
DOMAIN: dict[str, tuple[Any, ...] | range] = {
    **attention_backward_cases.DOMAIN, "offsets": ("int",),
    **{name: ring_attention_cases.DOMAIN[name] for name in RING},
}  # fmt: skip
AXES = (*(a for a in attention_backward_cases.AXES if a != "offsets"), *RING)
RELATIONS = attention_backward_cases.RELATIONS


def cases(limits: Limits) -> SearchStrategy[RingAttentionBackwardCase]:
    """A strategy of cases within limits; simplest first, nothing filtered.

    Raises ValueError if the limits leave no case.
    """
    name = "ring_attention_backward"
    return differentiated(limits, name, ring_attention_cases, RingAttentionBackwardCase)
