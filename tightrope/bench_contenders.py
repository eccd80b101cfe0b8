"""Who takes part in `tightrope bench attention`, on which shapes and tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from tightrope.implementation import registered
from tightrope.timing import BUFFERS

MOST_BUFFERS = 64
SMALL = 8 * 1024  # tokens times heads up to which the key-outer order, made to be read, is timed
SDPA = ("math", "flash", "efficient", "cudnn")
Run = Callable[["Inputs", int], Any]


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
    """q, k and v, several of each; a float32 table of cos and sin, (seqlen, head_dim/2)."""

    shape: Shape
    q: list[Any]
    k: list[Any]
    v: list[Any]
    cos: Any
    sin: Any
    positions: Any

    def exact(self, rotated: bool, heads: int) -> Any:
        """out of the first heads of buffer 0, sequence 0, in float64: (heads, seqlen, dim)."""
        import torch

        q, k, v = (x[0][0, :heads].double() for x in (self.q, self.k, self.v))
        if rotated:
            q, k = (self._rotated(x) for x in (q, k))
        scores = q @ k.mT * self.shape.head_dim**-0.5
        if self.shape.causal:
            hidden = torch.ones_like(scores[0], dtype=torch.bool).triu(1)
            scores.masked_fill_(hidden, -torch.inf)
        return torch.softmax(scores, -1) @ v

    def _rotated(self, x: Any) -> Any:
        """Halves turned by the table's angles, in float64."""
        import torch

        (a, b), cos, sin = x.chunk(2, dim=-1), self.cos.double(), self.sin.double()
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def draw(shape: Shape, buffers: int | None = None) -> Inputs:
    """Normal tensors on the GPU; as many sets as exceed its L2 cache."""
    import torch

    count = buffers or shape.buffers(torch.cuda.get_device_properties().L2_cache_size)
    sizes = (shape.batch, shape.num_heads, shape.seqlen, shape.head_dim)
    kind = {"device": "cuda", "dtype": getattr(torch, shape.dtype)}
    q, k, v = ([torch.randn(sizes, **kind) for _ in range(count)] for _ in range(3))
    positions = torch.arange(shape.seqlen, device="cuda")
    exponent = torch.arange(0, shape.head_dim, 2, device="cuda", dtype=torch.float64)
    angles = positions[:, None] * 10_000.0 ** (-exponent / shape.head_dim)
    return Inputs(shape, q, k, v, angles.cos().float(), angles.sin().float(), positions)


@dataclass
class Contender:
    """One row. run(inputs, i), within around(), returns out for buffers i.

    compiles: whether its first call is slow. rotated: whether it rotates q and k. error: why it
    does not take part.
    """

    name: str
    shape: Shape
    run: Run
    around: Callable[[], Any] = nullcontext
    compiles: bool = False
    rotated: bool = False
    error: str | None = None


def _nothing(inputs: Inputs, i: int) -> Any:
    raise RuntimeError("a contender that does not take part was called")


def contenders(shape: Shape) -> list[Contender]:
    """All of them, those that cannot take part with the reason."""
    return [
        *bundled(shape, "attention", "attention"),
        *bundled(shape, "attention_key_outer", "attention"),
        *bundled(shape, "rope_attention", "rope_attention"),
        *(sdpa(shape, backend) for backend in SDPA),
    ]


def bundled(shape: Shape, module: str, contract: str) -> list[Contender]:
    """The implementations of a contract in one of our modules that take the shape's dtype."""
    try:
        import_module(f"tightrope.impls.{module}")
    except ImportError as error:
        return [Contender(f"{module} missing", shape, _nothing, error=f"missing: {error}")]
    made = []
    for impl in registered(f"tightrope.impls.{module}"):
        if impl.contract_name != contract or shape.dtype not in impl.limits.get(
            "dtype", (shape.dtype,)
        ):
            continue
        run = _rotating if contract == "rope_attention" else _plain
        made.append(
            Contender(
                f"{contract} {impl.name}", shape, partial(run, impl.fn), compiles=True,
                rotated=contract == "rope_attention", error=_too_large(shape, module),
            )
        )  # fmt: skip
    return made


def _too_large(shape: Shape, module: str) -> str | None:
    size = shape.batch * shape.num_heads * shape.seqlen
    if module == "attention_key_outer" and size > SMALL:
        return f"not timed: {size} rows, at most {SMALL} of an order that is not made for speed"
    return None


def _plain(fn: Callable[..., Any], inputs: Inputs, i: int, **more: Any) -> Any:
    causal = inputs.shape.causal
    return fn(inputs.q[i], inputs.k[i], inputs.v[i], causal=causal, **more)[0]


def _rotating(fn: Callable[..., Any], inputs: Inputs, i: int) -> Any:
    table = (inputs.cos, inputs.sin, inputs.positions, inputs.positions)
    given = (inputs.q[i], inputs.k[i], inputs.v[i], *table)
    return fn(*given, interleaved=False, causal=inputs.shape.causal)[0]


def sdpa(shape: Shape, backend: str) -> Contender:
    """PyTorch's attention with one backend forced, which is chosen outside the clock."""
    peer = import_module("tightrope.impls.peer_torch")

    def run(inputs: Inputs, i: int) -> Any:
        given = (inputs.q[i], inputs.k[i], inputs.v[i])
        return peer.scaled_dot_product_attention(*given, is_causal=inputs.shape.causal)

    around = partial(peer.forced, backend)
    return Contender(f"torch {backend}", shape, run, around, error=peer.MISSING.get(backend))


# (BLOCK_M, BLOCK_N, num_warps, num_stages) by the widest head_dim, 16-bit inputs; the last ones
# of each may not fit: that is then said.
TILES = {
    64: (
        *((128, 128, 8, 3), (128, 128, 8, 2), (128, 128, 4, 3), (128, 64, 8, 3), (128, 64, 4, 3)),
        *((128, 64, 4, 4), (64, 128, 4, 3), (64, 64, 4, 2), (64, 64, 4, 3), (64, 64, 4, 4)),
        *((64, 32, 4, 4), (256, 64, 8, 3)),
    ),
    128: (
        *((128, 128, 8, 2), (128, 128, 8, 3), (128, 64, 8, 2), (128, 64, 8, 3), (128, 64, 8, 4)),
        *((128, 64, 4, 3), (128, 32, 4, 4), (64, 128, 4, 2), (64, 64, 4, 2), (64, 64, 4, 3)),
        *((128, 128, 4, 2), (256, 64, 8, 2)),
    ),
}


def sweep_of(shape: Shape) -> list[Contender]:
    """The bundled attention with its own tile and every other one; errors become rows."""
    ours = [c for c in bundled(shape, "attention", "attention") if c.name == "attention triton"]
    if not ours or ours[0].error:
        return ours
    module = import_module("tightrope.impls.attention")
    fn = next(i.fn for i in registered(module.__name__) if i.name == "triton")
    found = [Contender("default", shape, ours[0].run, compiles=True)]
    every = next(tiles for widest, tiles in TILES.items() if shape.head_dim <= widest)
    for m, n, warps, stages in every:
        tile = module.Config(BLOCK_M=m, BLOCK_N=n, num_warps=warps, num_stages=stages)
        run = partial(_plain, fn, blocks=tile)
        name = f"{m}x{n}, {warps} warps, {stages} stages"
        found.append(Contender(name, shape, run, compiles=True))
    return found
