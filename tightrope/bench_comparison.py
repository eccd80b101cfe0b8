"""`tightrope bench`: attention without positions, with RoPE and with PoPE, in one run.

Each row makes from q, k, v, inv_freq and positions what else it needs within the call: tables,
angles, copies. So these are in its time, and in its memory, the most that one forward holds beyond
its inputs, out and lse included. Timed by replaying a CUDA graph of many calls, and direct.

`tightrope bench pope_attention`: the PoPE rows with and without delta, beside the yardstick; with
`--sweep` every way the plain Triton kernel can be built, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

from tightrope import bench_rows
from tightrope.bench import Rows, Wanted, median
from tightrope.bench_contenders import SDPA, Contender, absent, bundled, sdpa, sweep_of
from tightrope.bench_inputs import ROPE_THETA, Inputs, Shape
from tightrope.bench_rows import METHOD, Step, by_shape, chosen, timed
from tightrope.bench_summary import show
from tightrope.implementation import registered

__all__ = ["draw", "measure", "show"]

SHAPES = (
    *(Shape(1, 8, n, 64) for n in (512, 1024, 2048, 4096)),
    *(Shape(b, 8, 1024, 64) for b in (2, 4)),
    Shape(4, 32, 4096, 64),
    Shape(2, 16, 4096, 128),
)
YARDSTICK = "torch cudnn"
BASES = (YARDSTICK, "flash")
DELTA = "pope with delta"
# row: (module, contract, implementation)
BUNDLED = {
    "flash": ("attention", "attention", "triton"),
    "rope": ("rope_attention", "rope_attention", "triton-rotated-k"),
    "simple_pope": ("pope_attention_expanded", "pope_attention", "triton-expanded"),
    "memory_optimized_pope (hopper)": ("pope_attention_hopper", "pope_attention", "hopper"),
    "memory_optimized_pope (triton)": ("pope_attention", "pope_attention", "triton"),
}
LEGEND = {
    "flash": "attention without positions, this project's plain Triton kernel",
    "rope": "its table of cos and sin, k rotated into a copy, q rotated inside attention",
    "simple_pope": "q and k expanded to their Cartesian features, then the kernel of flash",
    "memory_optimized_pope (hopper)": "no expanded tensor is stored; Gluon, sm_90 only",
    "memory_optimized_pope (triton)": "no expanded tensor is stored; plain Triton",
    **{f"torch {b}": f"attention without positions, PyTorch's {b} backend" for b in SDPA},
    "pope-pytorch": "PoPE as the package of that name fuses it, tensors in the layout it takes",
}


def measure(wanted: Wanted) -> dict[str, Any]:
    """Rows a shape. Raises ValueError for a sweep of the comparison, and where no shape's name
    starts with `only`."""
    if wanted.sweep and wanted.operation == "comparison":
        raise ValueError("the comparison has no sweep; bench attention and pope_attention have")
    make = contenders if wanted.operation == "comparison" else with_delta
    fields = {
        shape: {"rows": make(shape), "sweep": sweep(shape) if wanted.sweep else []}
        for shape in chosen(SHAPES, wanted.only)
    }
    ratio = {f"over {base}": "time in a graph over that row's, same run" for base in BASES}
    found = by_shape(fields, rows, wanted, {**METHOD, **ratio})
    return {**found, "yardstick": YARDSTICK, "legend": LEGEND}


def contenders(shape: Shape) -> list[Contender]:
    """All of them, those that cannot take part with the reason."""
    ours = [ours_of(shape, row) for row in BUNDLED]
    return [*ours, *(sdpa(shape, backend) for backend in SDPA), pope_pytorch(shape)]


def with_delta(shape: Shape) -> list[Contender]:
    """The PoPE rows, each again with a delta of width num_heads; flash and the yardstick."""
    plain = [ours_of(shape, row) for row in BUNDLED if "pope" in row]
    every = [ours_of(shape, "flash"), sdpa(shape, "cudnn")]
    for row in (*plain, pope_pytorch(shape)):
        run = partial(row.run, delta=True)
        every += [row, replace(row, name=f"{row.name} with delta", position=DELTA, run=run)]
    return every


def sweep(shape: Shape) -> list[Contender]:
    """The plain Triton kernel: each tile and form of softplus."""
    ways = {f", {form}": {"form": form} for form in import_module("tightrope.softplus").FORMS}
    return sweep_of(shape, "pope_attention", ways)


def ours_of(shape: Shape, row: str) -> Contender:
    """The row of one of our kernels, under the row's name; or why it is not there."""
    module, contract, name = BUNDLED[row]
    found = bundled(shape, module, contract)
    wanted = [c for c in found if c.error or c.name == f"{contract} {name}"]
    if not wanted:
        why = getattr(import_module(f"tightrope.impls.{module}"), "MISSING", None)
        return absent(row, shape, str(why or f"{module} registers no {contract} {name}"))
    made = replace(wanted[0], name=row)
    if row == "rope" and not made.error:
        made.run = partial(rope, made.run)
    return made


def rope(attend: Any, inputs: Inputs, i: int) -> Any:
    """`rope_attention` with the table of cos and sin made in the call."""
    module = import_module("tightrope.impls.rope_table")
    table = next(x.fn for x in registered(module.__name__) if x.name == "exact")
    width = inputs.shape.head_dim
    cos, sin = table(inputs.positions, rotary_dim=width, rope_theta=ROPE_THETA)
    return attend(replace(inputs, cos=cos, sin=sin), i)


def pope_pytorch(shape: Shape) -> Contender:
    """PyPI's pope-pytorch, fused, called as it wants to be: (batch, seqlen, num_heads, dim)."""
    name = "pope-pytorch"
    try:
        peer = import_module("tightrope.impls.peer_pope_pytorch")
    except ImportError as error:
        return absent(name, shape, f"missing: {error}")
    if peer.MISSING:
        return absent(name, shape, peer.MISSING)

    def run(inputs: Inputs, i: int, delta: bool = False) -> Any:
        q, k, v = inputs.by_token[i]
        given = (q, k, v, inputs.inv_freq, inputs.delta if delta else None, inputs.positions)
        out = peer.call(*given, heads_first=False, causal=shape.causal, fused=True)
        return out.transpose(1, 2)

    return Contender(name, shape, run, position="pope")


def rows(inputs: Inputs, field: Sequence[Contender], step: Step) -> Rows:
    """With the ratios to the yardstick and to flash, where both are timed."""
    found = bench_rows.rows(inputs, field, step)
    there = [name for name, row in found.items() if timed(row)]
    for base in [b for b in BASES if b in there]:
        for name in there:
            found[name][f"over {base}"] = median(found, name) / median(found, base)
    return found


def draw(found: dict[str, Any], path: str) -> None:
    """A picture of runtime and memory against length. Raises ImportError without matplotlib."""
    import_module("tightrope.bench_picture").save(found, path)
