"""How detection power is shown: progress and tables on a terminal, a heat map in a file."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tightrope.bench_picture import check

COLUMNS = ("killed", "survived", "broken", "hole", "equivalent", "elsewhere", "not run")
TOLD = ("survived", "broken", "hole", "not run")


def progress(mutants: Sequence[Any], found: Sequence[Any]) -> Iterator[Any]:
    """The mutants one by one, with a bar on the terminal's stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=len(mutants))
        for mutant in mutants:
            alive = sum(each.outcome in ("survived", "broken") for each in found)
            bar.update(task, description=f"{alive} alive  {mutant.id}")
            yield mutant
            bar.advance(task)


def kernel(mutant: str) -> str:
    """The part of a mutant's id that names its kernel."""
    return mutant.partition(":")[0]


def show(found: Sequence[Any]) -> None:
    """Two tables: outcomes a kernel, and every mutant that was not killed, with the reason."""
    from rich.console import Console
    from rich.table import Table

    out = Console()
    table = Table("kernel", *COLUMNS, box=None, caption="cases: until the kill, median and most")
    table.add_column("cases", no_wrap=True)
    for column in table.columns[:1]:
        column.no_wrap = True
    for name in dict.fromkeys(kernel(each.mutant) for each in found):
        mine = [each for each in found if kernel(each.mutant) == name]
        cases = [each.kill.cases for each in mine if each.kill]
        counts = [str(sum(each.outcome == c for each in mine)) for c in COLUMNS]
        spent = f"{statistics.median(cases):g}, {max(cases)}" if cases else "-"
        table.add_row(name, *counts, spent)
    out.print(table)
    for each in found:
        if each.outcome != "killed":
            raised = next((t.told for t in each.trials if t.outcome == "raised"), "")
            style = "bold red" if each.outcome in TOLD else "dim"
            why = each.why or raised or f"{len(each.trials)} laws and dtypes found nothing"
            out.print(f"{each.outcome}: {each.mutant}: {why}", style=style, highlight=False)


def save(data: Mapping[str, Any], path: str) -> None:
    """Draw a heat map: of laws and mutants after `--matrix`, else of families and kernels.

    Raises as `bench_picture.check`.
    """
    check(path)
    from matplotlib.figure import Figure

    rows, columns, cells = (matrix if data["run"]["matrix"] else families)(data)
    width, height = 4 + 0.22 * len(columns), 3 + 0.25 * len(rows)
    figure = Figure(figsize=(min(width, 60), min(height, 40)), layout="constrained")
    draw(figure, rows, columns, cells)
    figure.savefig(path, dpi=150)


Cells = dict[tuple[str, str], float]


def matrix(data: Mapping[str, Any]) -> tuple[list[str], list[str], Cells]:
    """(laws, mutants, cells): cases until the first kill, infinite where a law found nothing."""
    cells: Cells = {}
    for each in data["mutants"]:
        for t in each["trials"]:
            place = t["law"], each["mutant"]
            cases = t["cases"] if t["outcome"] == "killed" else float("inf")
            cells[place] = min(cases, cells.get(place, float("inf")))
    mutants = [each["mutant"] for each in data["mutants"] if each["trials"]]
    return sorted({law for law, _ in cells}), mutants, cells


def families(data: Mapping[str, Any]) -> tuple[list[str], list[str], Cells]:
    """(families, kernels, cells): median of cases until the kill, infinite if one survived."""
    seen: dict[tuple[str, str], list[float]] = {}
    for each in data["mutants"]:
        if each["trials"]:
            cases = each["kill"]["cases"] if each["kill"] else float("inf")
            seen.setdefault((each["family"], kernel(each["mutant"])), []).append(cases)
    cells = {
        place: max(cases) if float("inf") in cases else statistics.median(cases)
        for place, cases in seen.items()
    }
    return sorted({f for f, _ in cells}), list(dict.fromkeys(k for _, k in cells)), cells


def draw(figure: Any, rows: Sequence[str], columns: Sequence[str], cells: Cells) -> None:
    """Colour: cases until the kill, log scale; grey: found nothing; white: does not apply."""
    import numpy as np
    from matplotlib.colors import LogNorm

    values = np.full((len(rows), len(columns)), np.nan)
    for (row, column), cases in cells.items():
        values[rows.index(row), columns.index(column)] = cases
    axes = figure.subplots()
    axes.imshow(
        np.where(np.isinf(values), 1.0, np.nan), cmap="Greys", vmin=0, vmax=3, aspect="auto"
    )
    finite = np.where(np.isfinite(values), np.maximum(values, 1), np.nan)
    image = axes.imshow(finite, cmap="viridis_r", norm=LogNorm(1, 100), aspect="auto")
    axes.set_xticks(range(len(columns)), columns, rotation=90, fontsize=6)
    axes.set_yticks(range(len(rows)), rows, fontsize=7)
    figure.colorbar(image, ax=axes, label="cases until the kill (grey: none in all cases)")
