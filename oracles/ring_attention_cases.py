"""Cases of `ring_attention`: those of `attention` without bias and sinks, and a ring."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import TYPE_CHECKING, Any

from tightrope.limits import Limits
from tightrope.oracles import attention_cases
from tightrope.oracles.attention_cases import AttentionCase, head_counts, related
from tightrope.ring_shards import SCHEMES

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


@dataclass(frozen=True, kw_only=True)
class RingAttentionCase(AttentionCase):
    """One call of `ring_attention`. All tensors follow from these scalars.

    ranks: processes; scheme: which rows each holds (tightrope.ring_shards.spans), of queries and
    keys alike. The rest is as in AttentionCase, of the whole sequence, with one q_offset for all.
    """

    ranks: int = 2
    scheme: str = "contiguous"


OFF = {
    "bias": ("none",), "bias_dtype": ("float32",), "layout_bias": ("contiguous",),
    "sink": (False,), "offsets": ("int",),
}  # fmt: skip
DOMAIN: dict[str, tuple[Any, ...] | range] = {
    **attention_cases.DOMAIN, **OFF, "ranks": range(1, 65), "scheme": SCHEMES,
}  # fmt: skip
AXES = (*(a for a in attention_cases.AXES if a not in OFF), "ranks", "scheme")
RELATIONS = attention_cases.RELATIONS
RANKS = (3, 2, 4, 3, 2, 4, 2, 1)
ROOM = 100  # of a small case: pairs of runs, times heads and sequences; each is a program


def cases(limits: Limits) -> SearchStrategy[RingAttentionCase]:
    """A strategy of cases within limits; simplest first, nothing filtered.

    Raises ValueError if the limits leave no case.
    """
    from hypothesis import strategies as st

    from tightrope.oracles.attention_builds import builds, free
    from tightrope.oracles.attention_draw_lengths import differences
    from tightrope.oracles.attention_draws import Draw, drawn_case

    limits = related(limits, attention_cases.NARROWED_BY, "ring_attention")
    rows, every = builds(limits), free(limits)
    heads, apart = head_counts(limits), differences(limits, "ring_attention")

    @st.composite
    def case(draw: Any) -> RingAttentionCase:
        d = Draw(draw, st, limits)
        fields = drawn_case(d, rows, every, heads, apart)
        scheme = d.one("scheme", SCHEMES)
        return RingAttentionCase(**fields, scheme=scheme, ranks=_ranks(d, fields, scheme))

    return case()


def _ranks(d: Any, fields: dict[str, Any], scheme: str) -> int:
    """Ranks whose launches stay few, else the fewest that limits allow."""
    if fields["size"] != "small":
        return int(d.one("ranks", RANKS))
    groups = max(fields["batch"] * fields["num_heads"], 1)
    runs = 1 if scheme == "contiguous" else 2
    most = max(isqrt(ROOM // groups) // runs, 1)
    return int(d.one("ranks", RANKS, most))
