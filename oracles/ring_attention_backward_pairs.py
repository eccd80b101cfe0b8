"""The calls that a ring makes of one backward pass: every run of rows with every run of keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from tightrope.oracles.attention_backward_problem import Backward
from tightrope.ring_shards import Span, spans

if TYPE_CHECKING:
    from tightrope.oracles.ring_attention_backward_cases import RingAttentionBackwardCase


def runs(case: RingAttentionBackwardCase, length: int, rank: int) -> tuple[Span, ...]:
    """The runs of a sequence that a rank holds."""
    return spans(length, case.ranks, case.scheme, rank)


def pairs(case: RingAttentionBackwardCase) -> Iterator[tuple[Span, Span]]:
    """Every run of rows with every run of keys, empty ones too."""
    ranks = range(case.ranks)
    keys = [run for rank in ranks for run in runs(case, case.seqlen_k, rank)]
    for rank in ranks:
        for rows in runs(case, case.seqlen_q, rank):
            yield from ((rows, run) for run in keys)


def pair(b: Backward, rows: Span, keys: Span, dtype: str = "float32") -> Backward:
    """The call on some rows and keys, its lse and out those of the whole; dtype: of its result."""
    i, j, p = slice(*rows), slice(*keys), b.forward
    forward = replace(
        p, q=p.q[:, i], k=p.k[:, j], v=p.v[:, j], visible=p.visible[:, i, j], out_dtype=dtype
    )
    return replace(b, forward=forward, dout=b.dout[:, i], out=b.out[:, i], lse=b.lse[:, i])
