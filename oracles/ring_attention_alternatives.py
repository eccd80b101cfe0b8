"""What a wrong ring computes instead of attention of the whole sequence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tightrope.formats import Array
from tightrope.oracles import attention_alternatives
from tightrope.oracles.attention_alternatives import Outputs, shaped
from tightrope.oracles.attention_inputs import stated
from tightrope.oracles.attention_problem import attend, visible
from tightrope.ring_shards import spans

if TYPE_CHECKING:
    from tightrope.oracles.ring_attention_cases import RingAttentionCase


def alternatives(
    case: RingAttentionCase, inputs: Mapping[str, Array]
) -> Iterator[tuple[str, Outputs]]:
    """(what is computed instead, outputs), rings first, then what any attention may do."""
    p = stated(case, inputs)
    right = attend(p)
    for sentence, seen in of_rings(case):
        wrong = replace(p, visible=np.broadcast_to(seen, p.visible.shape))
        if (wrong.visible != p.visible).any():
            outputs = attend(wrong)
            if any((a != b).any() for a, b in zip(right, outputs, strict=True)):
                yield sentence, shaped(case, p, *outputs)
    yield from attention_alternatives.alternatives(case, inputs)


def of_rings(case: RingAttentionCase) -> Iterator[tuple[str, Array]]:
    """What each row sees, (seqlen_q, seqlen_k), of rings that go wrong."""
    window = case.causal, case.window_left, case.window_right
    whole = visible(case.seqlen_q, case.seqlen_k, case.q_offset, *window)
    local, own, last, first = (np.zeros_like(whole) for _ in range(4))
    last |= whole
    first |= whole
    for rank in range(case.ranks):
        q = _rows(case, case.seqlen_q, rank)
        for owner in range(case.ranks):
            k = _rows(case, case.seqlen_k, owner)
            at = np.ix_(q, k)
            local[at] = visible(len(q), len(k), case.q_offset, *window)
            own[at] = whole[at] & (owner == rank)
            last[at] &= case.ranks == 1 or owner != (rank + 1) % case.ranks
            first[at] &= owner != rank
    yield "the mask by indices of the shards, not of the whole", local
    yield "a rank's own keys only", own
    yield "the last shard that comes left out", last
    yield "a rank's own keys left out", first


def _rows(case: RingAttentionCase, length: int, rank: int) -> Array:
    runs = [np.arange(*span) for span in spans(length, case.ranks, case.scheme, rank)]
    return np.concatenate(runs)
