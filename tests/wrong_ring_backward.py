"""Backward passes of rings in plain torch with one mistake each, and their right twins.

All ranks walk in one process. tests/test_wrong_ring_backward.py demands that all but the right ones
are rejected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from right_attention_backward import attention_backward
from tiled_attention import DTYPES, attention, same

from tightrope import Arithmetic, implements
from tightrope.ring_pool import gathered, shard
from tightrope.ring_shards import spans, touches


def of_the_whole(out, lse, own):
    return out, lse


def summed(total, more, step):
    return total + more


@dataclass(frozen=True, kw_only=True)
class Ring:
    """Where a mistake may go; every default is right.

    steps: those that are taken of so many; offset: q_offset of a pair of runs; state: out and lse
    that a pair is given, own() being those of its own; dq, dk: a sum and what comes to it; kept:
    dk and dv on their way; at: whose dk and dv a rank adds to at a step, so many ranks on from the
    right one; home: whose it returns, so many ranks on; runs: of a shard's keys.
    """

    steps: Callable[..., Any] = range
    offset: Callable[..., Any] = lambda rows, keys, q_offset: q_offset + rows[0] - keys[0]
    state: Callable[..., Any] = of_the_whole
    dq: Callable[..., Any] = summed
    dk: Callable[..., Any] = summed
    kept: Callable[..., Any] = same
    at: int = 0
    home: int = 0
    runs: Callable[..., Any] = same
    skip: bool = True


def split(tensors, runs):
    """Runs of shards: (place, parts) of each."""
    parts = zip(*(x.split([b - a for a, b in runs], 2) for x in tensors), strict=True)
    return list(zip(runs, parts, strict=True))


def both(old, new):
    return new if old is None else [a + b for a, b in zip(old, new, strict=True)]


def met(ring, rows, keys, options):
    """dq of a rank's rows, run by run, dk and dv of a shard; None where nothing is seen."""
    mask = options["q_offset"], options["causal"], options["window_size"]
    dqs, found = [None] * len(rows), [None] * len(keys)
    for j, (theirs, (k, v)) in enumerate(keys):
        for i, (mine, (dout, q, out, lse)) in enumerate(rows):
            if ring.skip and not touches(mine, theirs, *mask):
                continue
            moved = {**options, "q_offset": ring.offset(mine, theirs, mask[0])}
            given = ring.state(out, lse, lambda q=q, k=k, v=v, o=moved: attention(q, k, v, **o))
            pair = attention_backward(dout, q, k, v, *given, out_dtype=torch.float32, **moved)
            dqs[i] = both(dqs[i], pair[:1])
            found[j] = both(found[j], pair[1:])
    return dqs, found


def added(totals, places, more, add):
    """Runs added to a shard of their length, None to nothing."""
    if totals[0].shape[2] != sum(b - a for a, b in places):
        return
    runs = [x.split([b - a for a, b in places], 2) for x in totals]
    for i, new in enumerate(more):
        if new is not None:
            for total, gradient in zip((x[i] for x in runs), new, strict=True):
                total.copy_(add(total, gradient))


def simulated(ring):
    """The contract's function: step by step, every rank in turn, in one process."""

    def run(dout, q, k, v, out, lse, *, ranks, scheme, out_dtype=None, **options):
        given = {"causal": False, "window_size": (None, None), "q_offset": 0, **options}
        each = range(ranks)
        places = [spans(q.shape[2], ranks, scheme, r) for r in each]
        rows = [split([shard(x, ranks, scheme, r) for x in (dout, q, out, lse)], places[r])
                for r in each]  # fmt: skip
        owned = [[shard(x, ranks, scheme, r) for x in (k, v)] for r in each]
        totals = [[torch.zeros_like(x, dtype=torch.float32) for x in shards] for shards in owned]
        dq = [torch.zeros_like(shard(q, ranks, scheme, r), dtype=torch.float32) for r in each]
        for step in ring.steps(ranks):
            for rank in each:
                owner = (rank - step) % ranks
                runs = spans(k.shape[2], ranks, scheme, owner)
                dqs, found = met(ring, rows[rank], split(owned[owner], ring.runs(runs)), given)
                add = [lambda a, b, f=f, step=step: f(a, b, step) for f in (ring.dq, ring.dk)]
                added([dq[rank]], places[rank], dqs, add[0])
                to = (owner + ring.at) % ranks
                added(totals[to], runs, found, add[1])
                totals[to] = [ring.kept(x) for x in totals[to]]
        home = [totals[(r + ring.home) % ranks] for r in each]
        if [x[0].shape for x in home] != [x[0].shape for x in totals]:
            home = totals
        found = [dq, *zip(*home, strict=True)]
        return [gathered(list(x), scheme).to(out_dtype or q.dtype) for x in found]

    return run


def declared(partial):
    return lambda case, device: Arithmetic(
        logits="scaled", heads="summed", partial=partial, sum_order="ring"
    )


def register(name, ring=None, dtype=DTYPES, **more):
    add = implements("ring_attention_backward", name=name, dtype=dtype, ranks=(1, 2, 3, 4), **more)
    return add(simulated(ring or Ring()))


def in_bfloat16(x):
    return x.to(torch.bfloat16).float()


register("right", dtype=(*DTYPES, "float32"))
register("right_declared", arithmetic=declared("float32"))
HALF = {"dtype": ("bfloat16",)}
register(
    "right_sums_in_bfloat16",
    Ring(
        kept=in_bfloat16, dq=lambda a, b, step: in_bfloat16(a + b),
        dk=lambda a, b, step: in_bfloat16(a + in_bfloat16(b)),
    ),
    arithmetic=declared("bfloat16"), **HALF,
)  # fmt: skip


def swapped(runs):
    """Runs of a shard in the other order, where they have one length."""
    return tuple(reversed(runs)) if len({b - a for a, b in runs}) == 1 else runs


def latest(total, more, step):
    return more


LOCAL = {"offset": lambda rows, keys, q_offset: q_offset}
register("dk_added_in_bfloat16", Ring(kept=in_bfloat16), arithmetic=declared("float32"), **HALF)
register(
    "dq_added_in_bfloat16", Ring(dq=lambda a, b, step: in_bfloat16(a + b)),
    arithmetic=declared("float32"), **HALF,
)  # fmt: skip
register("last_block_dropped", Ring(steps=lambda n: range(max(n - 1, 1))))
register("own_block_dropped", Ring(steps=lambda n: range(1, n) if n > 1 else range(1)))
register("own_block_twice", Ring(steps=lambda n: (*range(n), 0)))
register("lse_of_the_block", Ring(state=lambda out, lse, own: (out, own()[1])))
register("rowsum_of_the_block", Ring(state=lambda out, lse, own: (own()[0], lse)))
register("out_and_lse_of_the_block", Ring(state=lambda out, lse, own: own()))
register("mask_by_local_index", Ring(**LOCAL), causal=(True,))
register("local_positions", Ring(**LOCAL, skip=False), causal=(True,))
register("dk_one_hop_short", Ring(home=1))
register("dk_one_hop_too_far", Ring(home=-1))
register("dk_added_one_step_late", Ring(at=1))
register("dk_of_the_last_rank", Ring(dk=latest))
register("dq_of_the_last_block", Ring(dq=latest))
register("zigzag_runs_swapped", Ring(runs=swapped, skip=False), scheme=("zigzag",), causal=(True,))
