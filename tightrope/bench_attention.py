"""`tightrope bench attention`: the bundled kernels against every backend of PyTorch's attention.

A shape at a time, all contenders in turn. Times are those of a CUDA graph of many calls, on the
device, and direct, queued one by one. q, k and v take turns with copies of themselves that exceed
the L2 cache. TFLOP/s counts two products, 4 batch num_heads seqlen_q seqlen_k head_dim, and half
of that where causal. What a contender cannot do is a row with the reason.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from tightrope.bench import Row, Rows, fastest, median, show_all
from tightrope.bench_contenders import Contender, Inputs, Shape, contenders, draw, sweep_of
from tightrope.timing import BATCH, REPEATS, Call, both, reason

SHAPES = (
    *(Shape(1, 8, n, 64) for n in (512, 1024, 2048, 4096)),
    *(Shape(b, 8, 1024, 64) for b in (2, 4)),
    Shape(4, 32, 4096, 64),
    Shape(4, 16, 4096, 128),
    Shape(4, 16, 4096, 128, causal=False),
    Shape(4, 16, 4096, 128, dtype="bfloat16"),
)
CHECKED_HEADS = 2  # the first ones of the first sequence, every row
COMPILING = 8  # threads: the compiler gives the interpreter lock back
OURS = "attention triton"
GRAPH, DIRECT = "us in a graph", "us direct"


def measure(sweep: bool, only: str | None = None) -> dict[str, Any]:
    """Rows a shape, and ratios. Raises ValueError where no shape's name starts with `only`."""
    wanted = chosen(only)
    fields = {s: {"rows": contenders(s), "sweep": sweep_of(s) if sweep else []} for s in wanted}
    compile_first([c for tables in fields.values() for table in tables.values() for c in table])
    found: dict[str, Any] = {"method": method(), "shapes": {}}
    for shape, tables in fields.items():
        inputs = draw(shape)
        timed = {title: rows(inputs, table) for title, table in tables.items() if table}
        found["shapes"][shape.name] = {"flop": shape.flop, "buffers": len(inputs.q), **timed}
        del inputs
        forget()
    return {**found, "ratios": verdict(found["shapes"])}


def chosen(only: str | None) -> tuple[Shape, ...]:
    """Shapes whose names start with `only`; all for None. Raises ValueError for none at all."""
    wanted = tuple(s for s in SHAPES if only is None or s.name.startswith(only))
    if not wanted:
        raise ValueError(f"no shape starts with {only!r}: {', '.join(s.name for s in SHAPES)}")
    return wanted


def method() -> dict[str, Any]:
    return {
        "calls a time": f"{BATCH}, or all buffers if more, or 6 ms of slow ones",
        "repeats": REPEATS,
        "TFLOP/s": "4 batch num_heads seqlen_q seqlen_k head_dim a call, half of it where causal",
        "max error": f"out against float64, {CHECKED_HEADS} heads of sequence 0, all rows",
        "extra memory": "peak allocated during one call, over the bytes of out and lse",
    }


def compile_first(field: list[Contender]) -> None:
    """Call every kernel of ours once, several at a time; what fails says so in its row.

    First one shape a row's name, head_dim and dtype: others mostly share its compiled form.
    """
    import torch

    todo = [c for c in field if c.compiles and not c.error]
    first = {(c.name, c.shape.head_dim, c.shape.dtype): c for c in reversed(todo)}.values()

    @torch.no_grad()
    def once(contender: Contender) -> None:
        try:
            contender.run(draw(contender.shape, buffers=1), 0)
            torch.cuda.synchronize()
        except Exception as error:
            contender.error = reason(error)

    with ThreadPoolExecutor(COMPILING) as pool:
        list(pool.map(once, first))
        list(pool.map(once, [c for c in todo if all(c is not f for f in first)]))
    forget()


def rows(inputs: Inputs, field: list[Contender]) -> Rows:
    """Name -> times, TFLOP/s, error and memory; or an "error"."""
    found: Rows = {c.name: check(c, inputs) for c in field}
    fit = [c for c in field if "error" not in found[c.name]]
    runs: dict[str, Call] = {c.name: partial(c.run, inputs) for c in fit}
    device, direct = both(runs, len(inputs.q), {c.name: c.around for c in fit})
    for name in runs:
        row: dict[str, Any] = {GRAPH: device[name], DIRECT: direct[name]}
        if timed(row):
            row["TFLOP/s"] = inputs.shape.flop / device[name]["median"] / 1e6
        found[name] = {**row, **found[name]}
    return over_the_fastest(found)


def timed(row: Row) -> bool:
    """Whether there is a time in a graph, the only one that is compared."""
    return isinstance(row.get(GRAPH), dict)


def check(contender: Contender, inputs: Inputs) -> dict[str, Any]:
    """Largest error and extra memory of one call, and every buffer warm; or why it failed."""
    import torch

    if contender.error:
        return {"error": contender.error}
    try:
        with contender.around():
            for i in range(len(inputs.q)):
                contender.run(inputs, i)
            extra = memory(contender, inputs)
            out = contender.run(inputs, 0)[0, :CHECKED_HEADS].double()
        far = (out - inputs.exact(contender.rotated, CHECKED_HEADS)).abs().max()
        return {"max error": float(far), "extra memory": extra / inputs.shape.output_bytes}
    except Exception as error:  # out of memory, too: a row says so
        return {"error": reason(error)}
    finally:
        torch.cuda.empty_cache()


def memory(contender: Contender, inputs: Inputs) -> int:
    """Bytes allocated at the peak of one call, beyond those before it; results are in them."""
    import torch

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = contender.run(inputs, 0)
    torch.cuda.synchronize()
    del kept
    return int(torch.cuda.max_memory_allocated()) - before


def yardstick(found: Rows) -> str | None:
    """The fastest backend of PyTorch."""
    return fastest(found, lambda n: n.startswith("torch") and timed(found[n]))


def over_the_fastest(found: Rows) -> Rows:
    """With the ratio to the fastest backend of PyTorch, where both are timed."""
    best = yardstick(found)
    for name, row in found.items() if best else ():
        if timed(row):
            row["over the fastest torch"] = median(found, name) / median(found, str(best))
    return found


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


def forget() -> None:
    """Give cached memory back: what one shape left must not be another's shortage."""
    import gc

    import torch

    gc.collect()
    torch.cuda.empty_cache()


def show(found: dict[str, Any]) -> None:
    """Print a table a shape, how it was counted, and the ratios."""
    tables = []
    for name, here in found["shapes"].items():
        tables.append((name, here["rows"]))
        tables.append((f"{name}, tiles", here.get("sweep", {})))
    lines = [f"{what}: {how}" for what, how in found["method"].items()]
    show_all(tables, lines, found["ratios"])
