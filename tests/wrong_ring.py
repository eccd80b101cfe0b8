"""Rings in plain torch with one mistake each, and their right twins; all ranks in one process.

tests/test_ring.py demands that all but the right ones are rejected. `distributed` runs the same
walk in a rank of a process group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from tiled_attention import BLOCK, DTYPES, LN2, LOWEST, attention

from tightrope import Arithmetic, implements
from tightrope.ring_exchange import circulated
from tightrope.ring_pool import gathered, shard
from tightrope.ring_shards import held, owners, spans, touches


def rescaled(one, other):
    """Two states as one; None is no state."""
    if one is None:
        return other
    (out, lse), (more, its) = one, other
    top = torch.maximum(lse, its)
    shift = torch.where(top == LOWEST, 0, top)
    a, b = torch.exp(lse - shift), torch.exp(its - shift)
    total = a + b
    safe = torch.where(total == 0, 1, total)
    merged = (a[..., None] * out + b[..., None] * more) / safe[..., None]
    return merged, shift + torch.log(total)


def same(x):
    return x


def globally(rows, keys, q_offset, rank, owner):
    """q_offset of a pair of runs, by indices of the whole."""
    return q_offset + rows[0] - keys[0]


def everywhere(window, rank, owner):
    return window


@dataclass(frozen=True, kw_only=True)
class Ring:
    """Where a mistake may go; every default is right."""

    steps: Callable[..., Any] = same
    offset: Callable[..., Any] = globally
    merge: Callable[..., Any] = rescaled
    partial: Callable[..., Any] = same
    state: Callable[..., Any] = same
    key_runs: Callable[..., Any] = same
    skip: bool = True
    window: Callable[..., Any] = everywhere
    gather: str | None = None
    finish: Callable[..., Any] = same


def walk(q, steps, rank, ranks, scheme, seqlen_q, seqlen_k, ring, out_dtype=None, **options):
    """out and lse of a rank's rows; steps: (owner, k, v), shard by shard."""
    causal, window = options["causal"], options["window_size"]
    offset = options["q_offset"]
    found = [None for _ in spans(seqlen_q, ranks, scheme, rank)]
    width = 1
    for owner, k, v in ring.steps(steps):
        width = v.shape[-1]
        keys = ring.key_runs(spans(seqlen_k, ranks, scheme, owner))
        rows = spans(seqlen_q, ranks, scheme, rank)
        sides = ring.window(window, rank, owner)
        for run, ks, vs in zip(keys, *(x.split([b - a for a, b in keys], 2) for x in (k, v)),
                               strict=True):  # fmt: skip
            for i, (mine, qs) in enumerate(zip(rows, q.split([b - a for a, b in rows], 2),
                                               strict=True)):  # fmt: skip
                if ring.skip and not touches(mine, run, offset, causal, window):
                    continue
                moved = {**options, "window_size": sides}
                moved["q_offset"] = ring.offset(mine, run, offset, rank, owner)
                state = ring.state(attention(qs, ks, vs, out_dtype=torch.float32, **moved))
                state = (ring.partial(state[0]), state[1])
                old = found[i] and (ring.partial(found[i][0]), found[i][1])
                found[i] = ring.merge(old, state)
    parts = [
        (q.new_zeros(*q.shape[:2], b - a, width), q.new_full((*q.shape[:2], b - a), LOWEST).float())
        if s is None else s
        for s, (a, b) in zip(found, spans(seqlen_q, ranks, scheme, rank), strict=True)
    ]  # fmt: skip
    out, lse = (torch.cat(x, 2) for x in zip(*parts, strict=True))
    return ring.finish((out.to(out_dtype or q.dtype), lse))


def simulated(ring):
    """The contract's function: every rank walks in turn, in one process."""

    def run(q, k, v, *, ranks, scheme, **options):
        lengths = {"seqlen_q": q.shape[2], "seqlen_k": k.shape[2]}
        given = {"causal": False, "window_size": (None, None), "q_offset": 0, **options}
        shards = [[shard(x, ranks, scheme, r) for x in (q, k, v)] for r in range(ranks)]
        found = [
            walk(
                shards[r][0], [(o, *shards[o][1:]) for o in owners(ranks, r)], r, ranks, scheme,
                ring=ring, **lengths, **given,
            )
            for r in range(ranks)
        ]  # fmt: skip
        return tuple(gathered(x, ring.gather or scheme) for x in zip(*found, strict=True))

    return run


def distributed(q, k, v, group, *, scheme, seqlen_q, seqlen_k, ring=None, **options):
    """The same walk in one rank of a group."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    lengths = [held(seqlen_k, ranks, scheme, r) for r in range(ranks)]
    steps = [(o, a.clone(), b.clone()) for o, a, b in circulated(k, v, group, lengths)]
    given = {"causal": False, "window_size": (None, None), "q_offset": 0, **options}
    return walk(q, steps, rank, ranks, scheme, seqlen_q, seqlen_k, ring or Ring(), **given)


def register(name, ring, dtype=DTYPES, **more):
    return implements("ring_attention", name=name, dtype=dtype, ranks=(1, 2, 3, 4), **more)(
        simulated(ring)
    )


def sharded_in(dtype):
    return lambda case, device: Arithmetic(
        logits="scaled", block_k=BLOCK, lse="base2", merge_order="ring", partial=dtype
    )


def in_half(out):
    return out.to(torch.bfloat16).float()


register("right", Ring(), dtype=(*DTYPES, "float32"))
register("right_declared", Ring(), arithmetic=sharded_in("float32"))
register(
    "right_partials_in_bfloat16", Ring(partial=in_half), dtype=("bfloat16",),
    arithmetic=sharded_in("bfloat16"),
)  # fmt: skip


def locally(rows, keys, q_offset, rank, owner):
    return q_offset


def of_the_next_rank(rows, keys, q_offset, rank, owner):
    return globally(rows, keys, q_offset, rank, owner) + rows[1] - rows[0]


def of_equal_lengths(rows, keys, q_offset, rank, owner):
    """Where keys are counted in runs as long as those of the rows."""
    return q_offset + rows[0] - keys[0] * (rows[1] - rows[0]) // max(keys[1] - keys[0], 1)


def averaged(one, other):
    if one is None:
        return other
    return (one[0] + other[0]) / 2, rescaled(one, other)[1]


def added(one, other):
    return other if one is None else (one[0] + other[0], rescaled(one, other)[1])


def lse_of_the_last(one, other):
    return other if one is None else (rescaled(one, other)[0], other[1])


def lse_of_the_largest(one, other):
    if one is None:
        return other
    return rescaled(one, other)[0], torch.maximum(one[1], other[1])


def empty_counts(one, other):
    """An empty state weighs what lse = 0 would."""
    pair = [(o, torch.where(l == LOWEST, 0.0, l)) for o, l in (one or other, other)]
    return other if one is None else rescaled(*pair)


def stale(steps):
    """The buffer is read before the transfer into it has ended."""
    steps = list(steps)
    late = [steps[max(i - 1, 0)] for i in range(len(steps))]
    return [(o, k, v) if k.shape == a.shape else (o, a, b)
            for (o, a, b), (_, k, v) in zip(steps, late, strict=True)]  # fmt: skip


def v_of_the_last_step(steps):
    steps = list(steps)
    late = [steps[max(i - 1, 0)] for i in range(len(steps))]
    return [(o, a, v if v.shape == b.shape else b)
            for (o, a, b), (_, _, v) in zip(steps, late, strict=True)]  # fmt: skip


def all_but_the_last(steps):
    steps = list(steps)
    return steps[:-1] if len(steps) > 1 else steps


def all_but_the_own(steps):
    steps = list(steps)
    return steps[1:] if len(steps) > 1 else steps


def own_twice(steps):
    steps = list(steps)
    return [*steps, steps[0]]


def swapped(runs):
    """Runs of a shard in the other order, where they have one length."""
    same_length = len({b - a for a, b in runs}) == 1
    return tuple(reversed(runs)) if same_length else runs


register("local_positions", Ring(offset=locally, skip=False))
register("causal_by_local_index", Ring(offset=locally))
register("offset_of_the_next_rank", Ring(offset=of_the_next_rank, skip=False))
register("keys_as_long_as_rows", Ring(offset=of_equal_lengths, skip=False))
register("merged_without_rescale", Ring(merge=averaged))
register("states_added", Ring(merge=added))
register("lse_of_the_last_state", Ring(merge=lse_of_the_last))
register("lse_is_the_largest", Ring(merge=lse_of_the_largest))
register("empty_states_count", Ring(merge=empty_counts, skip=False), causal=(True,))
register("last_shard_skipped", Ring(steps=all_but_the_last))
register("own_shard_skipped", Ring(steps=all_but_the_own))
register("own_shard_twice", Ring(steps=own_twice))
register("stale_buffer", Ring(steps=stale))
register("v_one_step_late", Ring(steps=v_of_the_last_step))
register("zigzag_runs_swapped", Ring(key_runs=swapped, skip=False), scheme=("zigzag",))
register("zigzag_gathered_in_a_row", Ring(gather="contiguous"), scheme=("zigzag",))
register("lse_in_base_2", Ring(state=lambda s: (s[0], s[1] / LN2)))
register("lse_in_base_2_at_the_end", Ring(finish=lambda s: (s[0], s[1] / LN2)))
register("window_of_the_own_shard_only", Ring(
    window=lambda window, rank, owner: window if rank == owner else (None, None), skip=False
), window_left=range(2, 64), causal=(True,))  # fmt: skip
register(
    "partials_in_bfloat16", Ring(partial=in_half), dtype=("bfloat16",),
    arithmetic=sharded_in("float32"),
)  # fmt: skip
