"""Who takes part in `tightrope bench attention`, and how a call of each is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any

from tightrope.attention_tiles import Config
from tightrope.bench_inputs import Inputs, Shape
from tightrope.implementation import registered
from tightrope.timing import reason

SMALL = 8 * 1024  # tokens times heads up to which the key-outer order, made to be read, is timed
ONE_WAY: Mapping[str, Mapping[str, Any]] = {"": {}}
SDPA = ("math", "flash", "efficient", "cudnn")
Run = Callable[..., Any]


@dataclass
class Contender:
    """One row. run(inputs, i), within around(), returns out for buffers i.

    compiles: whether its first call is slow. position: what positions do to q and k, one of
    `bench_inputs.POSITIONS`. error: why it does not take part.
    """

    name: str
    shape: Shape
    run: Run
    around: Callable[[], Any] = nullcontext
    compiles: bool = False
    position: str = "none"
    error: str | None = None


def absent(name: str, shape: Shape, error: str) -> Contender:
    """A row that says why there is no other."""

    def run(inputs: Inputs, i: int) -> Any:
        raise RuntimeError("a contender that does not take part was called")

    return Contender(name, shape, run, error=error)


def contenders(shape: Shape) -> list[Contender]:
    """All of them, those that cannot take part with the reason."""
    return [
        *bundled(shape, "attention", "attention"),
        *bundled(shape, "attention_hopper", "attention"),
        *bundled(shape, "attention_key_outer", "attention"),
        *bundled(shape, "rope_attention", "rope_attention"),
        *(sdpa(shape, backend) for backend in SDPA),
    ]


def bundled(shape: Shape, module: str, contract: str) -> list[Contender]:
    """The implementations of a contract in one of our modules that take the shape's dtype."""
    try:
        import_module(f"tightrope.impls.{module}")
    except Exception as error:  # a package that is absent, or too old for this kernel
        return [absent(f"{module} missing", shape, f"missing: {reason(error)}")]
    run = {"attention": plain, "rope_attention": rotating, "pope_attention": polar}[contract]
    position = {"rope_attention": "rope", "pope_attention": "pope"}.get(contract, "none")
    return [
        Contender(
            f"{contract} {impl.name}", shape, partial(run, impl.fn), compiles=True,
            position=position, error=_too_large(shape, module),
        )
        for impl in registered(f"tightrope.impls.{module}")
        if impl.contract_name == contract
        and shape.dtype in impl.limits.get("dtype", (shape.dtype,))
    ]  # fmt: skip


def _too_large(shape: Shape, module: str) -> str | None:
    size = shape.batch * shape.num_heads * shape.seqlen
    if module == "attention_key_outer" and size > SMALL:
        return f"not timed: {size} rows, at most {SMALL} of an order that is not made for speed"
    return None


def plain(fn: Callable[..., Any], inputs: Inputs, i: int, **more: Any) -> Any:
    causal = inputs.shape.causal
    return fn(inputs.q[i], inputs.k[i], inputs.v[i], causal=causal, **more)[0]


def rotating(fn: Callable[..., Any], inputs: Inputs, i: int) -> Any:
    table = (inputs.cos, inputs.sin, inputs.positions, inputs.positions)
    given = (inputs.q[i], inputs.k[i], inputs.v[i], *table)
    return fn(*given, interleaved=False, causal=inputs.shape.causal)[0]


def polar(
    fn: Callable[..., Any], inputs: Inputs, i: int, delta: bool = False, **options: Any
) -> Any:
    given = (inputs.q[i], inputs.k[i], inputs.v[i], inputs.inv_freq)
    more = (inputs.delta if delta else None, inputs.positions, inputs.positions)
    return fn(*given, *more, causal=inputs.shape.causal, **options)[0]


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


def sweep_of(
    shape: Shape, contract: str = "attention", ways: Mapping[str, Mapping[str, Any]] = ONE_WAY
) -> list[Contender]:
    """The bundled "triton" with its own tile and every other one; errors become rows.

    ways: what a row's name ends with -> keyword arguments, for each tile.
    """
    found = bundled(shape, contract, contract)
    ours = [c for c in found if c.error or c.name == f"{contract} triton"][:1]
    if not ours or ours[0].error:
        return ours
    made = [replace(ours[0], name="default")]
    every = next(tiles for widest, tiles in TILES.items() if shape.head_dim <= widest)
    for (m, n, warps, stages), (suffix, more) in product(every, ways.items()):
        tile = Config(BLOCK_M=m, BLOCK_N=n, num_warps=warps, num_stages=stages)
        name = f"{m}x{n}, {warps} warps, {stages} stages{suffix}"
        made.append(replace(ours[0], name=name, run=partial(ours[0].run, blocks=tile, **more)))
    return made
