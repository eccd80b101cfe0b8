"""Shapes and tensors of `tightrope bench`, and the float64 output that theirs is held against."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tightrope.timing import BUFFERS

MOST_BUFFERS = 64
CHECKED_ROWS = 64  # of every head, where a shape has as many
ROPE_THETA = 10_000.0
POSITIONS = ("none", "rope", "pope", "pope with delta")


@dataclass(frozen=True)
class Shape:
    """Self-attention of equal lengths; a contiguous tensor is (batch, num_heads, seqlen, dim)."""

    batch: int
    num_heads: int
    seqlen: int
    head_dim: int
    dtype: str = "float16"
    causal: bool = True

    @property
    def name(self) -> str:
        """`1x8x512x64`, and what differs from causal float16."""
        sizes = (self.batch, self.num_heads, self.seqlen, self.head_dim)
        other = [] if self.dtype == "float16" else [self.dtype]
        return " ".join(["x".join(map(str, sizes)), *other, *([] if self.causal else ["full"])])

    @property
    def flop(self) -> float:
        """Of both products; half of it where causal."""
        pairs = self.batch * self.num_heads * self.seqlen**2
        return 4.0 * pairs * self.head_dim / (2 if self.causal else 1)

    @property
    def tensor_bytes(self) -> int:
        """Of one of q, k, v and out, 16 bits an element."""
        return 2 * self.batch * self.num_heads * self.seqlen * self.head_dim

    @property
    def output_bytes(self) -> int:
        """Of out, and lse in float32."""
        return self.tensor_bytes + 4 * self.batch * self.num_heads * self.seqlen

    def buffers(self, cache: int) -> int:
        """How many sets of q, k and v exceed a cache of that many bytes twice over."""
        return min(MOST_BUFFERS, max(BUFFERS, math.ceil(2 * cache / (3 * self.tensor_bytes))))


@dataclass(frozen=True)
class Inputs:
    """q, k and v, several of each, and what positions are made of.

    positions (seqlen,) int64; cos, sin: a float32 table, (seqlen, head_dim/2), of RoPE. inv_freq
    (head_dim,) float32 and delta (num_heads, head_dim) float32: of PoPE.
    """

    shape: Shape
    q: list[Any]
    k: list[Any]
    v: list[Any]
    cos: Any
    sin: Any
    positions: Any
    inv_freq: Any
    delta: Any

    @cached_property
    def by_token(self) -> list[tuple[Any, Any, Any]]:
        """Each q, k and v again as a contiguous (batch, seqlen, num_heads, head_dim)."""
        sets = zip(self.q, self.k, self.v, strict=True)
        q_k_v = [[x.transpose(1, 2).contiguous() for x in one] for one in sets]
        return [(q, k, v) for q, k, v in q_k_v]

    def rows(self) -> Any:
        """Numbers of the rows that are checked: the first, the last, others at random, sorted."""
        import torch

        last = self.shape.seqlen - 1
        some = torch.randperm(last + 1, generator=torch.Generator().manual_seed(0))
        ends = torch.tensor([0, last])
        return torch.cat([ends, some[: CHECKED_ROWS - 2]]).unique().to(self.positions.device)

    def exact(self, position: str, rows: Any) -> Any:
        """out of buffer 0 in float64, those rows: (batch, num_heads, len(rows), head_dim).

        position: one of POSITIONS. A sequence at a time: scores of all keys are held.
        """
        import torch

        found = []
        for q, k, v in zip(self.q[0], self.k[0], self.v[0], strict=True):
            q, k = (self._features(position, x.double(), key) for x, key in ((q, False), (k, True)))
            scores = q[:, rows] @ k.mT * self.shape.head_dim**-0.5
            if self.shape.causal:
                later = torch.arange(k.shape[1], device=k.device) > rows[:, None]
                scores.masked_fill_(later, -torch.inf)
            found.append(torch.softmax(scores, -1) @ v.double())
        return torch.stack(found)

    def _features(self, position: str, x: Any, key: bool) -> Any:
        """q or k of one sequence, (num_heads, seqlen, features), as they enter the product."""
        import torch

        if position == "none":
            return x
        if position == "rope":
            (a, b), cos, sin = x.chunk(2, dim=-1), self.cos.double(), self.sin.double()
            return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
        angle = self.positions[:, None].double() * self.inv_freq.double()
        if key and position == "pope with delta":
            angle = angle + self.delta.double()[:, None]
        magnitude = torch.logaddexp(x, torch.zeros_like(x))
        return torch.cat((magnitude * angle.cos(), magnitude * angle.sin()), dim=-1)


def draw(shape: Shape, buffers: int | None = None, device: str = "cuda") -> Inputs:
    """Normal tensors; on a GPU as many sets as exceed its L2 cache."""
    import torch

    count = buffers or shape.buffers(torch.cuda.get_device_properties().L2_cache_size)
    sizes = (shape.batch, shape.num_heads, shape.seqlen, shape.head_dim)
    kind = {"device": device, "dtype": getattr(torch, shape.dtype)}
    q, k, v = ([torch.randn(sizes, **kind) for _ in range(count)] for _ in range(3))
    positions = torch.arange(shape.seqlen, device=device)
    feature = torch.arange(shape.head_dim, device=device, dtype=torch.float64)
    angles = positions[:, None] * ROPE_THETA ** (-feature[::2] / shape.head_dim)
    inv_freq = (ROPE_THETA ** (-feature / shape.head_dim)).float()
    delta = torch.rand(shape.num_heads, shape.head_dim, device=device) * (-2 * math.pi)
    table = (angles.cos().float(), angles.sin().float())
    return Inputs(shape, q, k, v, *table, positions, inv_freq, delta)
