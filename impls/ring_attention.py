"""Ring attention: sequences sharded over processes, keys and values circulated, states merged.

Liu, Zaharia and Abbeel 2023 (arXiv:2310.01889, section 3), with `attention` on each pair of shards
and `merge_attention` between them. Every pair of runs of rows and keys is one call whose q_offset
is that of the whole sequence, so that causal masks and windows go by global indices. Pairs without
a visible key are skipped; their keys travel all the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from tightrope import Arithmetic, implements
from tightrope.attention_tiles import config
from tightrope.implementation import bundled
from tightrope.launch import check_plain
from tightrope.ring_checks import check_offset, check_partial, check_shard
from tightrope.ring_exchange import Step, circulated
from tightrope.ring_pool import on_ranks
from tightrope.ring_shards import held, spans, touches
from tightrope.validate_attention import check_attention

State = tuple[torch.Tensor, torch.Tensor]
"""out, float32 or of a partial's dtype, and lse of some rows over some keys."""
PIECE = 2**24  # elements of an out that are merged at a time


class Sharding(NamedTuple):
    """Lengths of the whole sequence and who holds what of it."""

    seqlen_q: int
    seqlen_k: int
    ranks: int
    scheme: str

    def lengths(self, length: int) -> list[int]:
        return [held(length, self.ranks, self.scheme, rank) for rank in range(self.ranks)]


def ring_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group: Any = None, *, seqlen_q: int,
    seqlen_k: int, scheme: str = "contiguous", partial_dtype: torch.dtype = torch.float32,
    out_dtype: torch.dtype | None = None, **options: Any,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """This rank's rows of attention over the whole sequence; every rank of `group` calls it.

    q (batch, num_heads, rows, head_dim), k (batch, num_kv_heads, keys, head_dim) and v (...,
    head_dim_v): this rank's shards, those rows of a sequence of seqlen_q and seqlen_k that
    `tightrope.ring_shards.spans` names for the scheme, "contiguous" or "zigzag", in its order.
    options: softmax_scale, causal, q_offset (an int), window_size and softcap, of the whole, as in
    `attention`. partial_dtype: what an out is rounded to before it is merged; float32, or q's
    dtype, whose error grows with the ring. Returns out (batch, num_heads, rows, head_dim_v) in q's
    dtype or out_dtype, and lse (batch, num_heads, rows) float32; 0 and -inf for a row without a
    key. It holds two shards of keys and values and two states of this rank's rows.
    Raises as `validate_attention.check_attention`; ValueError for shards that are not those of the
    scheme, TypeError for q_offset that is no int. Lengths, scheme and options must be the same on
    every rank, which none can see alone.
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    sharding = Sharding(seqlen_q, seqlen_k, ranks, scheme)
    _check(q, k, v, sharding, rank, partial_dtype, {**options, "out_dtype": out_dtype})
    steps = circulated(k, v, group, sharding.lengths(seqlen_k))
    states = around(q, steps, sharding, rank, partial_dtype, v.shape[3], options)
    outs = [out.to(out_dtype or q.dtype) for out, _ in states]
    return torch.cat(outs, 2), torch.cat([lse for _, lse in states], 2)


def around(
    q: torch.Tensor, steps: Iterable[Step], sharding: Sharding, rank: int,
    partial_dtype: torch.dtype, head_dim_v: int, options: dict[str, Any],
) -> list[State]:  # fmt: skip
    """The state of each of a rank's runs of rows, from keys and values as they come."""
    mine = _runs(q, sharding.seqlen_q, sharding, rank)
    attend = bundled("attention", "triton").fn
    states: list[State | None] = [None] * len(mine)
    offset = options.get("q_offset", 0)
    mask = options.get("causal", False), options.get("window_size")
    for owner, k, v in steps:
        theirs = _runs(k, sharding.seqlen_k, sharding, owner)
        values = _runs(v, sharding.seqlen_k, sharding, owner)
        for (keys, k_run), (_, v_run) in zip(theirs, values, strict=True):
            for i, (rows, q_run) in enumerate(mine):
                if not touches(rows, keys, offset, *mask):
                    continue
                moved = {**options, "q_offset": offset + rows[0] - keys[0]}
                state = attend(q_run, k_run, v_run, out_dtype=partial_dtype, **moved)
                states[i] = merged(states[i], state, partial_dtype)
    return [s or _empty(q_run, head_dim_v) for s, (_, q_run) in zip(states, mine, strict=True)]


def merged(state: State | None, other: State, partial_dtype: torch.dtype) -> State:
    """Two states of the same rows over other keys as one, in the first one's memory where that is
    float32; None is no state yet. In pieces, since two states side by side are a copy of both.
    """
    if state is None:
        return other
    merge, out, lse = bundled("merge_attention", "triton").fn, state[0].float(), state[1]
    step = max(1, PIECE // max(1, out[:, :, :1].numel()))
    for first in range(0, out.shape[2], step):
        rows = slice(first, first + step)
        outs = torch.stack([x[:, :, rows].to(partial_dtype) for x in (out, other[0])])
        lses = torch.stack([x[:, :, rows] for x in (lse, other[1])])
        out[:, :, rows], lse[:, :, rows] = merge(outs.float(), lses)
    return out, lse


def _runs(
    x: torch.Tensor, length: int, sharding: Sharding, rank: int
) -> list[tuple[tuple[int, int], torch.Tensor]]:  # fmt: skip
    """A shard's runs of consecutive rows: where they stand in the whole, and views of them."""
    found, first = [], 0
    for span in spans(length, sharding.ranks, sharding.scheme, rank):
        last = first + span[1] - span[0]
        found.append((span, x[:, :, first:last]))
        first = last
    return found


def _empty(q: torch.Tensor, head_dim_v: int) -> State:
    rows = q.shape[:3]
    out = torch.zeros(*rows, head_dim_v, device=q.device)
    return out, torch.full(rows, float("-inf"), device=q.device)


def _check(
    q: Any, k: Any, v: Any, sharding: Sharding, rank: int, partial: Any, options: dict[str, Any]
) -> None:
    check_offset(options.get("q_offset", 0), sharding.seqlen_q, sharding.seqlen_k)
    check_attention(q, k, v, **options)
    check_plain(q, k, v)
    for name, x, length in (("q", q, sharding.seqlen_q), ("k", k, sharding.seqlen_k)):
        check_shard(name, x, length, sharding.ranks, sharding.scheme, rank)
    check_partial(partial, q.dtype)


def _promise(case: Any, device: Any) -> Arithmetic:
    """That of `attention` on every pair of runs; None for its blocks where runs have several."""
    size, width = 4 if case.dtype == "float32" else 2, max(case.head_dim, case.head_dim_v)
    heads, ranks = case.batch * case.num_heads, range(case.ranks)
    runs = [span for r in ranks for span in spans(case.seqlen_q, case.ranks, case.scheme, r)]
    blocks = {config(heads, b - a, width, size, False, device.capability).BLOCK_N for a, b in runs}
    base = bundled("attention", "triton").promise(case, device)
    block = blocks.pop() if len(blocks) == 1 else None
    return Arithmetic(**{**base, "block_k": block, "partial": "float32", "merge_order": "ring"})


RANKS = (1, 2, 3, 4)


@implements("ring_attention", name="triton", arithmetic=_promise, ranks=RANKS)
def sharded(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, ranks: int, scheme: str, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """`ring_attention` of whole tensors: sharded, run by so many processes, and gathered.

    For laws and tests. The processes are `tightrope.ring_pool`'s.
    """
    return on_ranks(ring_attention, q, k, v, ranks=ranks, scheme=scheme, **options)
