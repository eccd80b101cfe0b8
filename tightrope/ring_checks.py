"""Refusing what is no shard of a ring, before anything is sent: from metadata alone."""

from __future__ import annotations

from typing import Any

import torch

from tightrope.ring_shards import held
from tightrope.validate import refuse


def check_offset(q_offset: Any, seqlen_q: int, seqlen_k: int) -> None:
    """Refuse a q_offset that is not one number for all sequences, of 32 bits in every pair of runs.

    Raises TypeError or ValueError.
    """
    if not isinstance(q_offset, int):
        refuse("q_offset", "an int, the same for all sequences", repr(q_offset), TypeError)
    if not seqlen_k - 2**31 <= q_offset < 2**31 - seqlen_q:
        refuse("q_offset", "a number of 32 bits less the lengths", q_offset)


def check_shard(name: str, x: Any, length: int, ranks: int, scheme: str, rank: int) -> None:
    """Refuse a tensor (.., .., rows, ..) whose rows are not as many as a rank of the scheme holds.

    Raises ValueError.
    """
    rows = held(length, ranks, scheme, rank)
    if x.shape[2] != rows:
        expected = f"{rows} of {length} on rank {rank} of {ranks}, {scheme}"
        refuse(f"rows of {name}", expected, x.shape[2])


def check_partial(partial_dtype: Any, dtype: torch.dtype) -> None:
    """Refuse partial results in another format than float32 or the inputs'. Raises TypeError."""
    if partial_dtype not in (torch.float32, dtype):
        refuse("partial_dtype", f"torch.float32 or {dtype}", partial_dtype, TypeError)
