"""The error budget of `ring_attention_backward`: that of each pair of runs, and their sums.

Derived in docs/error-budgets.md, section ring_attention_backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tightrope.arithmetic import Arithmetic
from tightrope.budget import Budget, Replay
from tightrope.formats import FORMATS, Array
from tightrope.oracles.attention_backward_budget import backward
from tightrope.oracles.attention_backward_inputs import shapes, stated
from tightrope.oracles.attention_backward_problem import Backward
from tightrope.oracles.attention_backward_stages import STAGES as OF_A_PAIR
from tightrope.oracles.attention_numbers import OUTWARD
from tightrope.oracles.ring_attention_backward_pairs import pair, pairs, runs
from tightrope.oracles.ring_attention_backward_sums import (
    Adding,
    Part,
    beside,
    chained,
    in_any_order,
)
from tightrope.ring_shards import Span, owners

if TYPE_CHECKING:
    from tightrope.oracles.ring_attention_backward_cases import RingAttentionBackwardCase

STAGES: dict[str, Any] = {
    **OF_A_PAIR, "state": "given", "partial": "float32", "sum_order": "any"
}  # fmt: skip
"""What a stranger is granted. partial: what the gradients of a pair of runs are rounded to, and
every sum of them; sum_order: "ring", or "any" chain or tree. "ring": dq from own keys first, then
from those of the rank before, runs ascending; dk and dv of a run from the rank that holds it first,
then from the next, what a rank's runs of rows give added up before it meets what came. The others
are those of `attention_backward`, for each pair of runs; lse and out are `given`, since those of a
pair are not the whole's.
"""
ORDERS = ("any", "ring")
Parts = Mapping[tuple[Span, Span], Mapping[str, Part]]
"""By rows and keys: dq, dk and dv of those rows or keys."""


def budget(
    case: RingAttentionBackwardCase, inputs: Mapping[str, Array], arithmetic: Arithmetic
) -> dict[str, Budget]:
    """Budgets of dq, dk and dv. Raises ValueError for a stage value that has no budget."""
    return of_ring(case, stated(case, inputs), arithmetic)


def of_ring(
    case: RingAttentionBackwardCase, b: Backward, arithmetic: Mapping[str, Any],
    call: Callable[[Backward, Span, Span, str], Backward] = pair,
) -> dict[str, Budget]:  # fmt: skip
    """As `budget`, of a backward pass that is given. call: what a pair of runs is called with."""
    given = {**STAGES, **arithmetic}
    _known("sum_order", given["sum_order"], ORDERS)
    _known("state", given["state"], ("given",))
    name = case.dtype if given["partial"] == "input" else given["partial"]
    _known("partial", name, ("float16", "bfloat16", "float32"))
    how = Adding(None if name == "float32" else FORMATS[name])
    of_pair = {stage: given[stage] for stage in OF_A_PAIR}
    parts = {}
    for rows, keys in pairs(case):
        spent = backward(call(b, rows, keys, name), of_pair)
        parts[rows, keys] = {n: how.part(budget) for n, budget in spent.items()}
    gather = in_any_order if given["sum_order"] == "any" else chained
    whole = {
        "dq": beside(_of_rows(case, parts, lambda found: gather(found, how))),
        **{n: beside(_of_keys(case, parts, n, how, given["sum_order"])) for n in ("dk", "dv")},
    }
    out_dtype = b.forward.out_dtype
    return {n: _budget(part, out_dtype).reshape(shapes(case)[n]) for n, part in whole.items()}


def _known(stage: str, value: Any, values: tuple[str, ...]) -> None:
    if value not in values:
        known = ", ".join(map(repr, values))
        raise ValueError(f"ring_attention_backward: {stage}={value!r}; known: {known}")


def _of_rows(
    case: RingAttentionBackwardCase, parts: Parts, gather: Callable[[list[Part]], Part]
) -> Iterator[tuple[Span, Part]]:
    """dq of every run of rows, from own keys first."""
    for rank in range(case.ranks):
        keys = [s for owner in owners(case.ranks, rank) for s in runs(case, case.seqlen_k, owner)]
        for rows in runs(case, case.seqlen_q, rank):
            yield rows, gather([parts[rows, run]["dq"] for run in keys])


def _of_keys(
    case: RingAttentionBackwardCase, parts: Parts, name: str, how: Adding, order: str
) -> Iterator[tuple[Span, Part]]:
    """dk or dv of every run of keys: from the rank that holds it, then from the next, ..."""
    for owner in range(case.ranks):
        ranks = [(owner + step) % case.ranks for step in range(case.ranks)]
        for keys in runs(case, case.seqlen_k, owner):
            each = [
                [parts[rows, keys][name] for rows in runs(case, case.seqlen_q, rank)]
                for rank in ranks
            ]
            if order == "any":
                yield keys, in_any_order([part for found in each for part in found], how)
            else:
                yield keys, chained([chained(found, how) for found in each], how)


def _budget(part: Part, out_dtype: str) -> Budget:
    terms = {name: _certain(term) for name, term in part.terms.items() if np.any(term)}
    replay = part.replay and Replay(part.replay.centre, _certain(part.replay.radius + 2 * part.own))
    return Budget(part.expected, terms, out_dtype, part.own * OUTWARD, replay)


def _certain(term: Array) -> Array:
    return np.where(np.isnan(term), np.inf, term * OUTWARD)
