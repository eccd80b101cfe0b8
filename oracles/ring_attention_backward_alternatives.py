"""What a wrong ring computes instead of the gradients of the whole sequence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tightrope.formats import Array
from tightrope.oracles import attention_backward_alternatives
from tightrope.oracles.attention_backward_alternatives import Outputs, Triple, _shaped
from tightrope.oracles.attention_backward_inputs import stated
from tightrope.oracles.attention_backward_problem import Backward, gradients
from tightrope.oracles.attention_problem import attend
from tightrope.oracles.ring_attention_alternatives import of_rings
from tightrope.oracles.ring_attention_backward_pairs import pair, pairs
from tightrope.ring_shards import rows

if TYPE_CHECKING:
    from tightrope.oracles.ring_attention_backward_cases import RingAttentionBackwardCase


def alternatives(
    case: RingAttentionBackwardCase, inputs: Mapping[str, Array]
) -> Iterator[tuple[str, Outputs]]:
    """(what is computed instead, outputs), rings first, then what any backward pass may do."""
    b = stated(case, inputs)
    right = gradients(b)
    with np.errstate(all="ignore"):
        for mistakes in (_of_masks(case, b), _of_states(case, b), _of_homes(case, right)):
            for sentence, wrong in mistakes:
                if any((x != y).any() for x, y in zip(wrong, right, strict=True)):
                    yield sentence, _shaped(case, b, wrong)
    yield from attention_backward_alternatives.alternatives(case, inputs)


def _of_masks(case: RingAttentionBackwardCase, b: Backward) -> Iterator[tuple[str, Triple]]:
    for sentence, seen in of_rings(case):  # type: ignore[arg-type]
        p = replace(b.forward, visible=np.broadcast_to(seen, b.forward.visible.shape))
        yield sentence, gradients(replace(b, forward=p))


def _of_states(case: RingAttentionBackwardCase, b: Backward) -> Iterator[tuple[str, Triple]]:
    """lse or out of a pair of runs where those of the whole belong."""
    every = [
        ("lse of each pair of runs, not of the whole", True, False),
        ("rowsum(dout out) with out of each pair of runs, not of the whole", False, True),
        ("lse and out of each pair of runs, not of the whole", True, True),
    ]
    for sentence, of_lse, of_out in every:
        found = [np.zeros_like(x) for x in gradients(b)]
        for i, j in pairs(case):
            part = pair(b, i, j)
            out, lse = attend(part.forward)
            lse = np.where(np.isfinite(lse), lse, 0.0) if of_lse else part.lse
            part = replace(part, out=out if of_out else part.out, lse=lse)
            for whole, run, gradient in zip(found, (i, j, j), gradients(part), strict=True):
                whole[:, slice(*run)] += gradient
        yield sentence, (found[0], found[1], found[2])


def _of_homes(case: RingAttentionBackwardCase, right: Triple) -> Iterator[tuple[str, Triple]]:
    """dk and dv on another rank than their keys, where shards are of one length."""
    held = [rows(case.seqlen_k, case.ranks, case.scheme, rank) for rank in range(case.ranks)]
    if len({len(each) for each in held}) > 1:
        return
    dq, dk, dv = right
    for step, sentence in ((1, "one hop short of home"), (-1, "one hop past home")):
        moved = [np.zeros_like(x) for x in (dk, dv)]
        for rank in range(case.ranks):
            for whole, x in zip(moved, (dk, dv), strict=True):
                whole[:, held[rank]] = x[:, held[(rank + step) % case.ranks]]
        yield f"dk and dv {sentence}", (dq, moved[0], moved[1])
