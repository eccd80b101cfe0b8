"""What `tightrope bench` does with the contenders of one shape: check, time, count memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

from tightrope.bench import Row, Rows, Wanted
from tightrope.bench_contenders import Contender
from tightrope.bench_inputs import Inputs, Shape, draw
from tightrope.timing import BATCH, REPEATS, Call, both, reason

COMPILING = 8  # threads: the compiler gives the interpreter lock back
GRAPH, DIRECT = "us in a graph", "us direct"
Step = Callable[[str], None]
Field = Mapping[str, Sequence[Contender]]

METHOD = {
    "times": "all contenders in turn, warm; the GPU's L2 cache is exceeded by taking turns with "
    "copies of q, k and v",
    "calls a time": f"{BATCH}, or all buffers if more, or 6 ms of slow ones",
    "repeats": REPEATS,
    "max error": "out against float64: every head, 64 rows of each (the first, the last, random)",
    "extra memory": "peak allocated during one call, over the bytes of out and lse",
}


def chosen(shapes: Sequence[Shape], only: str | None) -> tuple[Shape, ...]:
    """Shapes whose names start with `only`; all for None. Raises ValueError for none at all."""
    wanted = tuple(s for s in shapes if only is None or s.name.startswith(only))
    if not wanted:
        raise ValueError(f"no shape starts with {only!r}: {', '.join(s.name for s in shapes)}")
    return wanted


def by_shape(
    fields: Mapping[Shape, Field],
    rows: Callable[[Inputs, Sequence[Contender], Step], Rows],
    wanted: Wanted,
    method: Mapping[str, Any],
) -> dict[str, Any]:
    """A result with a table a title of each shape's field; kept after each shape.

    rows: of one table, such as `rows` here with a column more.
    """
    every = [c for field in fields.values() for table in field.values() for c in table]
    found: dict[str, Any] = {"method": dict(method), "shapes": {}}
    with progress(len(every) + len(starting(every))) as step:
        compile_first(every, step)
        for shape, field in fields.items():
            inputs = draw(shape)
            counted = {"flop": shape.flop, "output bytes": shape.output_bytes}
            tables = {title: rows(inputs, table, step) for title, table in field.items() if table}
            here = {**asdict(shape), **counted, "buffers": len(inputs.q), **tables}
            found["shapes"][shape.name] = here
            del inputs
            forget()
            wanted.keep(found)
    return found


@contextmanager
def progress(total: int) -> Iterator[Step]:
    """A bar on stderr while it runs; called with what begins now."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), "{task.description}")
    shown = [TextColumn(c) if isinstance(c, str) else c for c in columns]
    with Progress(*shown, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda what: bar.update(task, description=what, advance=1)


def starting(field: Sequence[Contender]) -> list[Contender]:
    """Those whose first call compiles."""
    return [c for c in field if c.compiles and not c.error]


def compile_first(field: Sequence[Contender], step: Step) -> None:
    """Call every kernel of ours once, several at a time; what fails says so in its row.

    First one shape a row's name, head_dim and dtype: others mostly share its compiled form.
    """
    import torch

    todo = starting(field)
    first = {(c.name, c.shape.head_dim, c.shape.dtype): c for c in reversed(todo)}.values()

    @torch.no_grad()
    def once(contender: Contender) -> None:
        step(f"compiling {contender.name}, {contender.shape.name}")
        try:
            contender.run(draw(contender.shape, buffers=1), 0)
            torch.cuda.synchronize()
        except Exception as error:
            contender.error = reason(error)

    with ThreadPoolExecutor(COMPILING) as pool:
        list(pool.map(once, first))
        list(pool.map(once, [c for c in todo if all(c is not f for f in first)]))
    forget()


def rows(inputs: Inputs, field: Sequence[Contender], step: Step) -> Rows:
    """Name -> times, error and memory; or an "error"."""
    found: Rows = {}
    for contender in field:
        step(f"{inputs.shape.name}: {contender.name}")
        found[contender.name] = check(contender, inputs)
    fit = [c for c in field if "error" not in found[c.name]]
    runs: dict[str, Call] = {c.name: partial(c.run, inputs) for c in fit}
    device, direct = both(runs, len(inputs.q), {c.name: c.around for c in fit})
    for name in runs:
        found[name] = {GRAPH: device[name], DIRECT: direct[name], **found[name]}
    return found


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
            poison(inputs)
            rows = inputs.rows()
            out = contender.run(inputs, 0)[:, :, rows].double()
        far = float((out - inputs.exact(contender.position, rows)).abs().max())
        if far != far:
            return {"error": "out holds NaN"}
        bytes_out = inputs.shape.output_bytes
        return {"max error": far, "extra memory": extra / bytes_out, "extra MiB": extra / 2**20}
    except Exception as error:  # out of memory, too: a row says so
        return {"error": reason(error)}
    finally:
        torch.cuda.empty_cache()


def poison(inputs: Inputs) -> None:
    """NaN in memory that the next output may get, so that what is not written shows."""
    import torch

    spare = [torch.full_like(inputs.q[0], torch.nan) for _ in range(4)]
    del spare


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


def forget() -> None:
    """Give cached memory back: what one shape left must not be another's shortage."""
    import gc

    import torch

    gc.collect()
    torch.cuda.empty_cache()
