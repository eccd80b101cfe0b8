"""Gradients of ring attention: keys and values circulate, and theirs follow them home.

Liu, Zaharia and Abbeel 2023 (arXiv:2310.01889, section 3): rows of q, out, lse and dout stay where
they are. out and lse are those of the whole sequence, so that P = exp(t - lse) and D = sum dout out
of a pair of runs are the whole's, and what `attention_backward` finds of the pairs adds up. Every
pair is one call whose q_offset is that of the whole sequence. Pairs without a visible key are
skipped; their keys travel all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from tightrope import Arithmetic, implements
from tightrope.implementation import bundled
from tightrope.launch import check_plain
from tightrope.ring_backward import Following
from tightrope.ring_checks import check_offset, check_partial, check_shard
from tightrope.ring_exchange import circulated
from tightrope.ring_pool import spread
from tightrope.ring_shards import Span, held, spans, touches
from tightrope.validate_attention_backward import check_attention_backward

Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Run = tuple[Span, tuple[torch.Tensor, ...]]
"""Where consecutive rows stand in the whole, and those rows of some tensors."""


def ring_attention_backward(
    dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
    lse: torch.Tensor, group: Any = None, *, seqlen_q: int, seqlen_k: int,
    scheme: str = "contiguous", partial_dtype: torch.dtype = torch.float32,
    out_dtype: torch.dtype | None = None, **options: Any,
) -> Gradients:  # fmt: skip
    """dq, dk and dv of this rank's rows and keys; every rank of `group` calls it.

    q (batch, num_heads, rows, head_dim), dout and out (..., head_dim_v), lse (batch, num_heads,
    rows) float32; k (batch, num_kv_heads, keys, head_dim), v (..., head_dim_v): this rank's shards
    of a sequence of seqlen_q and seqlen_k, those rows that `tightrope.ring_shards.spans` names for
    the scheme, "contiguous" or "zigzag", in its order. out and lse are what `ring_attention`
    returned for the same options: of the whole sequence, not of a shard. options: softmax_scale,
    causal, q_offset (an int), window_size and softcap, as in `attention_backward`. partial_dtype:
    what gradients of a pair of runs and their sums are rounded to, on their way too; float32, or
    q's dtype, whose error grows with the ring. Returns gradients of the shapes of q, k and v, in
    q's dtype or out_dtype. It holds two shards of keys and values and two of their gradients; the
    next shard comes, and sums of the last one, while a shard is computed with.
    Raises as `validate_attention_backward.check_attention_backward`; ValueError for shards that are
    not those of the scheme, TypeError for q_offset that is no int. Lengths, scheme and options must
    be the same on every rank, which none can see alone.
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    check_attention_backward(dout, q, k, v, out, lse, **options, out_dtype=out_dtype)
    check_plain(dout, q, k, v, out, lse)
    check_offset(options.get("q_offset", 0), seqlen_q, seqlen_k)
    check_shard("q", q, seqlen_q, ranks, scheme, rank)
    check_shard("k", k, seqlen_k, ranks, scheme, rank)
    check_partial(partial_dtype, q.dtype)
    rows = _runs((dout, q, out, lse), spans(seqlen_q, ranks, scheme, rank))
    lengths = [held(seqlen_k, ranks, scheme, r) for r in range(ranks)]
    following = Following(k, v, group, lengths, partial_dtype)
    dq = torch.zeros(q.shape, dtype=partial_dtype, device=q.device)
    sums = _runs((dq,), spans(seqlen_q, ranks, scheme, rank))
    for owner, *shard in circulated(k, v, group, lengths):
        keys = _runs(shard, spans(seqlen_k, ranks, scheme, owner))
        found = [_of_keys(rows, run, sums, partial_dtype, options) for run in keys]
        here = _runs(following.here(), [span for span, _ in keys])
        for (_, totals), more in zip(here, found, strict=True):
            if more is not None:
                for total, gradient in zip(totals, more, strict=True):
                    total += gradient
        following.on()
    kept, (dk, dv) = out_dtype or q.dtype, following.here()
    return dq.to(kept), dk.to(kept), dv.to(kept)


def _of_keys(
    rows: Sequence[Run], keys: Run, sums: Sequence[Run], dtype: torch.dtype,
    options: dict[str, Any],
) -> tuple[torch.Tensor, torch.Tensor] | None:  # fmt: skip
    """dk and dv of a run of keys from these rows, dq added to `sums`; None if no row sees it."""
    differentiate = bundled("attention_backward", "triton").fn
    offset = options.get("q_offset", 0)
    mask = options.get("causal", False), options.get("window_size")
    place, (k, v) = keys
    found: tuple[torch.Tensor, torch.Tensor] | None = None
    for (span, (dout, q, out, lse)), (_, (total,)) in zip(rows, sums, strict=True):
        if touches(span, place, offset, *mask):
            moved = {**options, "q_offset": offset + span[0] - place[0]}
            dq, dk, dv = differentiate(dout, q, k, v, out, lse, out_dtype=dtype, **moved)
            total += dq
            found = (dk, dv) if found is None else (found[0].add_(dk), found[1].add_(dv))
    return found


def _runs(shards: Sequence[torch.Tensor], places: Sequence[Span]) -> list[Run]:
    """Runs of consecutive rows (axis 2) of tensors that hold the same rows; views."""
    sizes = [stop - start for start, stop in places]
    return list(zip(places, zip(*(x.split(sizes, 2) for x in shards), strict=True), strict=True))


def _promise(case: Any, device: Any) -> Arithmetic:
    """That of `attention_backward` on every pair of runs."""
    base = bundled("attention_backward", "triton").promise(case, device)
    return Arithmetic(**{**base, "partial": "float32", "sum_order": "ring"})


@implements("ring_attention_backward", name="triton", arithmetic=_promise, ranks=(1, 2, 3, 4))
def sharded(
    dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
    lse: torch.Tensor, *, ranks: int, scheme: str, **options: Any,
) -> Gradients:  # fmt: skip
    """`ring_attention_backward` of whole tensors: sharded, run by so many processes, and gathered.

    For laws and tests. The processes are `tightrope.ring_pool`'s.
    """
    whole = {"seqlen_q": q.shape[2], "seqlen_k": k.shape[2]}
    dq, dk, dv = spread(
        ring_attention_backward, (dout, q, k, v, out, lse), ranks, scheme, {**options, **whole}
    )
    return dq, dk, dv
