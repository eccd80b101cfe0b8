"""Keys and values on their way around a ring of processes, one shard ahead of the computation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from tightrope.ring_shards import owners

Step = tuple[int, torch.Tensor, torch.Tensor]
"""Whose shard, its k (batch, num_kv_heads, rows, head_dim) and v (..., head_dim_v)."""


def circulated(
    k: torch.Tensor, v: torch.Tensor, group: Any, lengths: Sequence[int]
) -> Iterator[Step]:
    """Every rank's keys and values, this rank's own first, then those of the rank before it, ...

    k (batch, num_kv_heads, rows, head_dim) and v (..., head_dim_v) of this rank, any strides;
    lengths: rows of every rank. Each rank sends to the next and receives from the one before, k
    and v in one message; the transfer is posted before a shard is handed out and awaited after the
    caller comes back for the next. There are two buffers: what is handed out holds until then. All
    ranks of the group must exhaust their iterators. NCCL, or gloo, which takes GPU tensors through
    the host.
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    if ranks == 1:
        yield rank, k, v
        return
    width = k.shape[0] * k.shape[1] * (k.shape[3] + v.shape[3])  # of one row
    buffers = [k.new_empty(max(lengths) * width) for _ in range(2)]
    torch.cat([k.reshape(-1), v.reshape(-1)], out=buffers[0][: lengths[rank] * width])
    for step, owner in enumerate(owners(ranks, rank)):
        here, there = buffers[step % 2], buffers[(step + 1) % 2]
        coming = None
        if step + 1 < ranks:
            incoming = there[: lengths[(owner - 1) % ranks] * width]
            coming = Transfer(here[: lengths[owner] * width], incoming, group)
        yield owner, *_split(here, k, v, lengths[owner])
        if coming is not None:
            coming.wait()


def _split(buffer: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rows: int) -> Any:
    shapes = [(*x.shape[:2], rows, x.shape[3]) for x in (k, v)]
    sizes = [s[0] * s[1] * s[2] * s[3] for s in shapes]
    parts = buffer[: sum(sizes)].split(sizes)
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


class Transfer:
    """One message to the next rank and one from the rank before, under way until `wait`."""

    def __init__(self, outgoing: torch.Tensor, incoming: torch.Tensor, group: Any) -> None:
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        self.incoming = self.landing = incoming
        if incoming.is_cuda and dist.get_backend(group) == "gloo":
            outgoing, self.landing = outgoing.cpu(), torch.empty_like(incoming, device="cpu")
        nearby = [(rank + 1) % ranks, (rank - 1) % ranks]
        if group is not None:
            nearby = [dist.get_global_rank(group, r) for r in nearby]
        messages = [(dist.isend, outgoing), (dist.irecv, self.landing)]
        posts = [
            dist.P2POp(post, tensor, peer, group)
            for (post, tensor), peer in zip(messages, nearby, strict=True)
            if tensor.numel()
        ]
        self.outgoing = outgoing  # alive until it is sent
        self.works = dist.batch_isend_irecv(posts) if posts else []

    def wait(self) -> None:
        """On a GPU it is the current stream that waits, not the host."""
        for work in self.works:
            work.wait()
        if self.landing is not self.incoming:
            self.incoming.copy_(self.landing)
