"""What a wrong ring computes instead of the gradients of the whole sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tightrope.budget import Budget
from tightrope.compare import part
from tightrope.diagnosis import Mistake
from tightrope.formats import Array
from tightrope.oracles import attention_backward_alternatives
from tightrope.oracles.attention_backward_alternatives import Outputs, Triple, _shaped
from tightrope.oracles.attention_backward_inputs import stated
from tightrope.oracles.attention_backward_problem import Backward, gradients
from tightrope.oracles.attention_backward_stages import STAGES as OF_A_PAIR
from tightrope.oracles.attention_problem import attend
from tightrope.oracles.ring_attention_alternatives import of_rings
from tightrope.oracles.ring_attention_backward_budget import of_ring
from tightrope.oracles.ring_attention_backward_pairs import pair, pairs
from tightrope.ring_shards import Span, rows

if TYPE_CHECKING:
    from tightrope.oracles.ring_attention_backward_cases import RingAttentionBackwardCase


Wrong = tuple[str, Triple, Callable[[Mapping[str, Any]], dict[str, Budget]]]
"""A sentence, dq, dk and dv, and what a promise says of them."""


def alternatives(
    case: RingAttentionBackwardCase, inputs: Mapping[str, Array]
) -> Iterator[tuple[str, Outputs]]:
    """(what is computed instead, outputs), rings first, then what any backward pass may do."""
    b = stated(case, inputs)
    right = gradients(b)
    with np.errstate(all="ignore"):
        for mistakes in (_of_masks(case, b), _of_states(case, b), _of_homes(case, b, right)):
            for sentence, wrong, budgets in mistakes:
                if any((x != y).any() for x, y in zip(wrong, right, strict=True)):
                    yield sentence, Mistake(_shaped(case, b, wrong), budgets)
    for sentence, outputs in attention_backward_alternatives.alternatives(case, inputs):
        yield sentence, _in_one_call(outputs)


def _in_one_call(outputs: Outputs) -> Outputs:
    """A mistake of one call of `attention_backward`, which knows no stages of a ring."""
    if not isinstance(outputs, Mistake):
        return outputs
    asked = outputs.budgets
    return Mistake(outputs, lambda given: asked({n: given[n] for n in given if n in OF_A_PAIR}))


def _of_masks(case: RingAttentionBackwardCase, b: Backward) -> Iterator[Wrong]:
    for sentence, seen in of_rings(case):  # type: ignore[arg-type]
        p = replace(b.forward, visible=np.broadcast_to(seen, b.forward.visible.shape))
        wrong = replace(b, forward=p)
        yield sentence, gradients(wrong), partial(of_ring, case, wrong)


def _of_states(case: RingAttentionBackwardCase, b: Backward) -> Iterator[Wrong]:
    """lse or out of a pair of runs where those of the whole belong."""
    every = [
        ("lse of each pair of runs, not of the whole", True, False),
        ("rowsum(dout out) with out of each pair of runs, not of the whole", False, True),
        ("lse and out of each pair of runs, not of the whole", True, True),
    ]
    for sentence, of_lse, of_out in every:
        call = partial(_of_its_own, of_lse, of_out)
        found = [np.zeros_like(x) for x in gradients(b)]
        for i, j in pairs(case):
            gradient = gradients(call(b, i, j, "float32"))
            for whole, run, more in zip(found, (i, j, j), gradient, strict=True):
                whole[:, slice(*run)] += more
        wrong = found[0], found[1], found[2]
        yield sentence, wrong, partial(of_ring, case, b, call=call)


def _of_its_own(
    of_lse: bool, of_out: bool, b: Backward, i: Span, j: Span, dtype: str
) -> Backward:  # fmt: skip
    call = pair(b, i, j, dtype)
    out, lse = attend(call.forward)
    lse = np.where(np.isfinite(lse), lse, 0.0) if of_lse else call.lse
    return replace(call, out=out if of_out else call.out, lse=lse)


def _of_homes(case: RingAttentionBackwardCase, b: Backward, right: Triple) -> Iterator[Wrong]:
    """dk and dv on another rank than their keys, where shards are of one length."""
    held = [rows(case.seqlen_k, case.ranks, case.scheme, rank) for rank in range(case.ranks)]
    if len({len(each) for each in held}) > 1:
        return
    dq, dk, dv = right
    for step, sentence in ((1, "one hop short of home"), (-1, "one hop past home")):
        moved = np.zeros(case.seqlen_k, int)
        for rank in range(case.ranks):
            moved[held[rank]] = held[(rank + step) % case.ranks]
        budgets = partial(_moved, case, b, moved)
        yield f"dk and dv {sentence}", (dq, dk[:, moved], dv[:, moved]), budgets


def _moved(
    case: RingAttentionBackwardCase, b: Backward, places: Array, arithmetic: Mapping[str, Any]
) -> dict[str, Budget]:
    found = of_ring(case, b, arithmetic)
    return {"dq": found["dq"], **{n: part(found[n], np.s_[:, :, places]) for n in ("dk", "dv")}}
