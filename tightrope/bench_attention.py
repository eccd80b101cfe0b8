"""`tightrope bench attention`: the bundled kernels against every backend of PyTorch's attention.

A shape at a time, all contenders in turn. Times are those of a CUDA graph of many calls, on the
device, and direct, queued one by one. q, k and v take turns with copies of themselves that exceed
the L2 cache. TFLOP/s counts two products, 4 batch num_heads seqlen_q seqlen_k head_dim, and half
of that where causal. What a contender cannot do is a row with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tightrope import bench_rows
from tightrope.bench import Rows, Wanted, fastest, median, show_all
from tightrope.bench_contenders import Contender, contenders, sweep_of
from tightrope.bench_inputs import Inputs, Shape
from tightrope.bench_rows import GRAPH, METHOD, Step, by_shape, chosen, timed

SHAPES = (
    *(Shape(1, 8, n, 64) for n in (512, 1024, 2048, 4096)),
    *(Shape(b, 8, 1024, 64) for b in (2, 4)),
    Shape(4, 32, 4096, 64),
    Shape(4, 16, 4096, 128),
    Shape(4, 16, 4096, 128, causal=False),
    Shape(4, 16, 4096, 128, dtype="bfloat16"),
)
OURS = "attention triton"
FLOP = "4 batch num_heads seqlen_q seqlen_k head_dim a call, half of it where causal"


def measure(wanted: Wanted) -> dict[str, Any]:
    """Rows a shape, and ratios. Raises ValueError where no shape's name starts with `only`."""
    shapes = chosen(SHAPES, wanted.only)
    fields = {
        s: {"rows": contenders(s), "sweep": sweep_of(s) if wanted.sweep else []} for s in shapes
    }
    found = by_shape(fields, rows, wanted, {**METHOD, "TFLOP/s": FLOP})
    return {**found, "ratios": verdict(found["shapes"])}


def rows(inputs: Inputs, field: Sequence[Contender], step: Step) -> Rows:
    """With TFLOP/s, and the ratio to the fastest backend of PyTorch, where both are timed."""
    found = bench_rows.rows(inputs, field, step)
    best = yardstick(found)
    for name, row in found.items():
        if timed(row):
            row["TFLOP/s"] = inputs.shape.flop / row[GRAPH]["median"] / 1e6
            if best:
                row["over the fastest torch"] = median(found, name) / median(found, best)
    return found


def yardstick(found: Rows) -> str | None:
    """The fastest backend of PyTorch."""
    return fastest(found, lambda n: n.startswith("torch") and timed(found[n]))


def verdict(shapes: dict[str, Any]) -> dict[str, float]:
    """What the project promises, as ratios of medians of this run."""
    ratios: dict[str, float] = {}
    for title, here in shapes.items():
        found: Rows = here["rows"]
        best, ours = yardstick(found), [n for n in found if timed(found[n])]
        if OURS not in ours:
            continue
        if best:
            ratios[f"{title}: {OURS} over {best}"] = median(found, OURS) / median(found, best)
        for other in ours:
            if other.startswith("rope_attention"):
                ratios[f"{title}: {other} over {OURS}"] = median(found, other) / median(found, OURS)
    return ratios


def show(found: dict[str, Any]) -> None:
    """Print a table a shape, how it was counted, and the ratios."""
    tables = []
    for name, here in found["shapes"].items():
        tables.append((name, here["rows"]))
        tables.append((f"{name}, tiles", here.get("sweep", {})))
    lines = [f"{what}: {how}" for what, how in found["method"].items()]
    show_all(tables, lines, found["ratios"])
