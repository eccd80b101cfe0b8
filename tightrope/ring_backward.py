"""Gradients of keys and values, which follow them around a ring of processes and end at home."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from tightrope.ring_exchange import Transfer, _split
from tightrope.ring_shards import owners

Pair = tuple[torch.Tensor, torch.Tensor]


class Following:
    """dk and dv of the keys that are here now, as all ranks that had them before left them.

    For every step of `ring_exchange.circulated`: `here`, add to it, `on`. After the last one `here`
    is what all ranks have found of this rank's own keys: one hop more than the keys take. A
    transfer is under way from `on` until the next `here`. There are two buffers.
    """

    def __init__(
        self, k: torch.Tensor, v: torch.Tensor, group: Any, lengths: Sequence[int],
        dtype: torch.dtype,
    ) -> None:  # fmt: skip
        """k (batch, num_kv_heads, rows, head_dim) and v (..., head_dim_v) of this rank; lengths:
        rows of every rank; dtype: of the sums, at home and under way."""
        self.k, self.v, self.group, self.lengths = k, v, group, lengths
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        self.turns = [*owners(ranks, rank), rank]
        self.width = k.shape[0] * k.shape[1] * (k.shape[3] + v.shape[3])  # of one row
        size = max(lengths) * self.width
        self.buffers = [k.new_zeros(size, dtype=dtype) for _ in range(min(ranks, 2))]
        self.step = 0
        self.coming: Transfer | None = None

    def _held(self, step: int) -> torch.Tensor:
        buffer = self.buffers[step % len(self.buffers)]
        return buffer[: self.lengths[self.turns[step]] * self.width]

    def here(self) -> Pair:
        """dk (batch, num_kv_heads, rows, head_dim) and dv (..., head_dim_v) to add to, zeros at
        first; waits for them."""
        if self.coming is not None:
            self.coming.wait()
            self.coming = None
        dk, dv = _split(self._held(self.step), self.k, self.v, self.lengths[self.turns[self.step]])
        return dk, dv

    def on(self) -> None:
        """Send them to the next rank, and be ready for those of the rank before."""
        before, self.step = self._held(self.step), self.step + 1
        if len(self.buffers) > 1:
            self.coming = Transfer(before, self._held(self.step), self.group)
