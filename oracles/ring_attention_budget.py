"""The error budget of `ring_attention`: that of each block of keys, and the merges in their order.

Derived in docs/error-budgets.md, section ring_attention.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tightrope.arithmetic import Arithmetic
from tightrope.budget import Budget, Replay
from tightrope.compare import reach
from tightrope.formats import Array
from tightrope.oracles.attention_budget import STAGES as OF_A_BLOCK
from tightrope.oracles.attention_budget import Forward, forward
from tightrope.oracles.attention_inputs import stated
from tightrope.oracles.attention_numbers import OUTWARD
from tightrope.oracles.attention_problem import Problem
from tightrope.oracles.ring_attention_chain import chained
from tightrope.oracles.ring_attention_merges import Merging, in_any_order
from tightrope.oracles.ring_attention_states import BLOCKS, State
from tightrope.ring_shards import owners, spans

if TYPE_CHECKING:
    from tightrope.oracles.ring_attention_cases import RingAttentionCase

STAGES: dict[str, Any] = {**OF_A_BLOCK, "partial": "float32", "merge_order": "any"}
"""What a stranger is granted. partial: what a block's out is rounded to, and a merged out before
the next merge; merge_order: "ring", own keys first, then those of the rank before, runs ascending;
"any" order, two by two. The others are those of `attention`, for each block and each merge.
"""
ORDERS = ("any", "ring")
FLOAT64 = 2.0**-42  # of a weight, as in tightrope.parts


@dataclass(frozen=True)
class Block:
    """A run of keys and what attention to it may be off: as T0 has it, and as T1 (or None)."""

    worst: State
    replayed: State | None


def budget(
    case: RingAttentionCase, inputs: Mapping[str, Array], arithmetic: Arithmetic
) -> dict[str, Budget]:
    """Budgets of out and lse. Raises ValueError for a stage value that has no budget."""
    given = {**STAGES, **arithmetic}
    if given["merge_order"] not in ORDERS:
        known = ", ".join(map(repr, ORDERS))
        raise ValueError(f"ring_attention: merge_order={given['merge_order']!r}; known: {known}")
    problem = stated(case, inputs)
    how = Merging.of(given, case.dtype)
    of_block = {name: given[name] for name in OF_A_BLOCK}
    whole = forward(problem, of_block)
    blocks = dict(_blocks(case, problem, of_block))
    if case.seqlen_k and problem.visible.size:
        whole = _put_together(case, whole, blocks, how, given["merge_order"])
    else:
        whole = Forward(*(replace(b, terms={}, replay=None) for b in (whole.out, whole.lse)))
    shape = (case.batch, case.num_heads, case.seqlen_q)
    return {"out": whole.out.reshape((*shape, case.head_dim_v)), "lse": whole.lse.reshape(shape)}


def _blocks(
    case: RingAttentionCase, problem: Problem, of_block: Mapping[str, Any]
) -> Iterator[tuple[tuple[int, int], Block]]:
    """Every run of keys that is not empty, attended to by all rows."""
    for rank in range(case.ranks):
        for start, stop in spans(case.seqlen_k, case.ranks, case.scheme, rank):
            if start < stop:
                keys = np.s_[:, start:stop]
                part = replace(
                    problem, k=problem.k[keys], v=problem.v[keys], out_dtype="float32",
                    visible=problem.visible[:, :, start:stop],
                )  # fmt: skip
                yield (start, stop), _block(forward(part, of_block))


def _block(spent: Forward) -> Block:
    """A block's state; reach counts the rounding to float32."""
    out, lse = spent.out.expected, spent.lse.expected
    e_lse = {BLOCKS: np.broadcast_to(reach(spent.lse), lse.shape)}
    limit = reach(spent.out)
    if spent.out.replay is None:
        return Block(State(out, lse, {BLOCKS: limit}, e_lse), None)
    centre, radius = spent.out.replay.centre, spent.out.replay.radius
    final = radius + spent.out.format.half_ulp(np.abs(centre) + radius)
    limit = np.minimum(limit, np.abs(centre - out) + final)
    replayed = State(centre, lse, {BLOCKS: np.broadcast_to(final, out.shape)}, e_lse)
    return Block(State(out, lse, {BLOCKS: limit}, e_lse), replayed)


def _put_together(
    case: RingAttentionCase, whole: Forward, blocks: Mapping[tuple[int, int], Block],
    how: Merging, order: str,
) -> Forward:  # fmt: skip
    if order == "any":
        found = in_any_order([b.worst for b in blocks.values()], how)
        return Forward(_spent(whole.out, found.e_out), _spent(whole.lse, found.e_lse))
    rows: list[int] = []
    states: list[tuple[State, State | None]] = []
    for rank in range(case.ranks):
        mine = [r for span in spans(case.seqlen_q, case.ranks, case.scheme, rank)
                for r in range(*span)]  # fmt: skip
        turns = [b for b in _in_turn(case, rank) if b in blocks]
        seen = [blocks[b] for b in turns]
        rows += mine
        worst = chained([_of_rows(b.worst, mine) for b in seen], how)
        again = [b.replayed for b in seen if b.replayed is not None]
        replayed = None
        if len(again) == len(seen):
            replayed = chained([_of_rows(s, mine) for s in again], how)
        states.append((worst, replayed))
    back = np.argsort(rows)
    terms = [_placed([getattr(s, name) for s, _ in states], back) for name in ("e_out", "e_lse")]
    out = _spent(whole.out, terms[0])
    if all(r is not None for _, r in states):
        out = replace(out, replay=_replay([r for _, r in states if r is not None], back))
    return Forward(out, _spent(whole.lse, terms[1]))


def _in_turn(case: RingAttentionCase, rank: int) -> Iterator[tuple[int, int]]:
    for owner in owners(case.ranks, rank):
        yield from spans(case.seqlen_k, case.ranks, case.scheme, owner)


def _of_rows(state: State, rows: list[int]) -> State:
    def cut(terms: Mapping[str, Array]) -> dict[str, Array]:
        return {name: term[:, rows] for name, term in terms.items()}

    return State(state.out[:, rows], state.lse[:, rows], cut(state.e_out), cut(state.e_lse))


def _placed(terms: list[dict[str, Array]], back: Array) -> dict[str, Array]:
    """Terms of every rank's rows, in the order of the whole sequence."""
    names = dict.fromkeys(name for each in terms for name in each)
    size = [next(iter(each.values())).shape for each in terms]
    return {
        name: np.concatenate(
            [np.broadcast_to(e.get(name, 0.0), s) for e, s in zip(terms, size, strict=True)], 1
        )[:, back]
        for name in names
    }


def _replay(states: list[State], back: Array) -> Replay:
    centre = np.concatenate([s.out for s in states], 1)[:, back]
    radius = np.concatenate([s.total() for s in states], 1)[:, back]
    size = np.abs(centre).max(-1, keepdims=True, initial=0.0)
    return Replay(centre, _certain(radius + FLOAT64 * size))


def _spent(budget: Budget, terms: Mapping[str, Array]) -> Budget:
    """The budget of the whole, with what a ring's result may be off instead; nothing where no key
    is seen."""
    kept = {name: _certain(term) for name, term in terms.items() if np.any(term)}
    return replace(budget, terms=kept, replay=None, _cache={})


def _certain(term: Array) -> Array:
    return np.where(np.isnan(term), np.inf, term * OUTWARD)
