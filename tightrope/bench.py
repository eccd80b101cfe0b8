"""`tightrope bench [OPERATION]`: speed against peers, all in one run, on a GPU.

What is common to all operations: the command, tables and the JSON. What is measured, and how, is
said in `tightrope.bench_<operation>`; without an operation, in `tightrope.bench_comparison`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from tightrope.blackbox import write_atomically
from tightrope.environment import environment
from tightrope.launch import interpreted

MODULES = {
    "comparison": "bench_comparison",
    "pope_attention": "bench_comparison",
    "attention": "bench_attention",
    "rope": "bench_rope",
    "gradients": "bench_gradients",
}
OPERATIONS = tuple(MODULES)
Row = Mapping[str, Any]
Rows = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Wanted:
    """What of an operation to measure.

    sweep: many tiles too. only: shapes that start with it. keep: called with what is measured so
    far, where a run has parts, so that a crash in a later one loses none of it.
    """

    operation: str = "comparison"
    sweep: bool = False
    only: str | None = None
    keep: Callable[[Mapping[str, Any]], None] = lambda measured: None


def bench(
    operation: str = "comparison", json_file: str | None = None, sweep: bool = False,
    only: str | None = None, picture: str | None = None,
) -> int:  # fmt: skip
    """Measure, print tables, write JSON and a picture of runtime and memory against length.

    sweep, only: as in `Wanted`. Raises RuntimeError without a GPU or under Triton's interpreter,
    ValueError for an option that the operation does not have and for `only` without such shapes.
    """
    import torch

    module = import_module(f"tightrope.{MODULES[operation]}")
    if picture:
        if not hasattr(module, "draw"):
            raise ValueError(f"bench {operation} has no picture; plain `tightrope bench` has")
        import_module("tightrope.bench_picture").check(picture)  # not after minutes of timing
    if not torch.cuda.is_available():
        raise RuntimeError("no CUDA device is visible; speed is measured on GPUs")
    if interpreted(import_module("tightrope.impls.rope").rope_kernel):
        raise RuntimeError("TRITON_INTERPRET is set; speed is measured on compiled kernels")
    about = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "environment": environment()}

    def keep(measured: Mapping[str, Any]) -> None:
        if json_file:
            text = json.dumps({**about, **measured}, indent=1)
            write_atomically(Path(json_file), text + "\n")

    with torch.no_grad():
        measured: dict[str, Any] = module.measure(Wanted(operation, sweep, only, keep))
    keep(measured)
    module.show({**about, **measured})
    if picture:
        module.draw({**about, **measured}, picture)
    return 0


def first_times(row: Row) -> Row | None:
    """The first spread (low, median, high) in a row; None if it holds none."""
    return next((v for v in row.values() if isinstance(v, dict) and "median" in v), None)


def median(rows: Rows, name: str) -> float:
    """Of the first times of a row; infinite for a row without any."""
    times = first_times(rows[name])
    return float(times["median"]) if times else float("inf")


def spread(rows: Rows, name: str) -> float:
    """The middle half of the same times, over their median. Raises KeyError without times."""
    times = first_times(rows[name])
    if times is None:
        raise KeyError(name)
    return float((times["high"] - times["low"]) / times["median"])


def words(value: Any) -> str:
    """A time in microseconds with its middle half, a number, or a reason."""
    if isinstance(value, dict):
        return f"{value['median']:.2f} ({value['low']:.2f} to {value['high']:.2f})"
    if isinstance(value, float):
        return f"{value:.2e}" if 0 < abs(value) < 0.01 else f"{value:.2f}"
    return "" if value is None else str(value)


def columns(rows: Rows) -> list[str]:
    """Every column that a row has, in the order of the fullest; "error" is not one."""
    named = dict.fromkeys(c for row in sorted(rows.values(), key=len, reverse=True) for c in row)
    return [c for c in named if c != "error"]


def table(title: str, rows: Rows, first: str = "implementation or tile") -> Any:
    """Rows, fastest first, as a rich table; what could not be timed stands last, with why."""
    from rich.markup import escape
    from rich.table import Table

    shown = columns(rows) or ["error"]
    made = Table(first, *shown, title=title)
    for name in sorted(rows, key=lambda n: median(rows, n)):
        row = rows[name]
        cells = [words(row.get(c)) for c in shown]
        if "error" in row:
            cells = [row["error"], *cells[1:]]
        made.add_row(name, *map(escape, cells))
    return made


def show_all(
    tables: Sequence[tuple[str, Rows]], lines: Sequence[str], ratios: Mapping[str, float]
) -> None:
    """Print tables that have rows, then lines, then ratios."""
    from rich.console import Console

    console = Console()
    for title, rows in tables:
        if rows:
            console.print(table(title, rows))
    for line in lines:
        console.print(line, markup=False, highlight=False)
    for name, ratio in ratios.items():
        console.print(f"{name}: {ratio:.3f}")


def fastest(rows: Rows, wanted: Callable[[str], bool]) -> str | None:
    """The name of the fastest timed row that is wanted; None if there is none."""
    names = [n for n in rows if wanted(n) and first_times(rows[n]) is not None]
    return min(names, key=lambda n: median(rows, n), default=None)
