"""What `tightrope bench` measured, as few tables: rows are kernels, columns are shapes.

Everything here is a function of the result alone, the JSON that `--json` writes: so the notebook
docs/kernel_comparison.ipynb shows the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tightrope.bench import Row, table
from tightrope.bench_rows import GRAPH, timed

WIDTH = 160  # of eight shapes beside the longest name
Result = Mapping[str, Any]


def names(found: Result) -> list[str]:
    """Every row of any shape, in the order of its first appearance."""
    shapes = found["shapes"].values()
    return list(dict.fromkeys(name for here in shapes for name in here["rows"]))


def microseconds(row: Row) -> float | None:
    """Median time of one call in a graph; None if there is none."""
    return float(row[GRAPH]["median"]) if timed(row) else None


def number(key: str) -> Callable[[Row], float | None]:
    """What a row says under that key; None if it says nothing."""

    def of(row: Row) -> float | None:
        value = row.get(key)
        return None if value is None else float(value)

    return of


def figures(found: Result) -> dict[str, tuple[str, Callable[[Row], float | None]]]:
    """Title of each table -> the format of a number, and what of a row it shows."""
    yardstick = f"over {found['yardstick']}"
    return {
        "Runtime, microseconds (median, CUDA graph)": (".1f", microseconds),
        f"Runtime {yardstick}": (".2f", number(yardstick)),
        "Runtime over flash": (".2f", number("over flash")),
        "Peak memory of one forward, MiB": (".2f", number("extra MiB")),
        "The same over the bytes of out and lse": (".2f", number("extra memory")),
        "Largest error against float64": (".1e", number("max error")),
    }


def grid(found: Result, value: Callable[[Row], float | None]) -> dict[str, list[float | None]]:
    """Name -> one value a shape, None where there is none."""
    shapes = found["shapes"].values()
    return {n: [value(here["rows"].get(n, {})) for here in shapes] for n in names(found)}


def reasons(found: Result) -> dict[str, list[str]]:
    """`name: reason` -> the shapes for which a row has no time because of it."""
    said: dict[str, list[str]] = {}
    for shape, here in found["shapes"].items():
        for name, row in here["rows"].items():
            why = row.get("error") or row.get(GRAPH)
            if isinstance(why, str):
                said.setdefault(f"{name}: {why}", []).append(shape)
    return said


def cells(found: Result) -> dict[str, dict[str, list[str]]]:
    """Title -> row -> a text a shape, "-" where nothing was measured; no row of nothing else."""
    made: dict[str, dict[str, list[str]]] = {}
    for title, (form, value) in figures(found).items():
        rows = {
            name: ["-" if v is None else format(v, form) for v in values]
            for name, values in grid(found, value).items()
            if any(v is not None for v in values)
        }
        if rows:
            made[title] = rows
    return made


def tables(found: Result) -> list[Any]:
    """As rich tables, one a figure."""
    from rich.table import Table

    made = []
    for title, rows in cells(found).items():
        grown = Table("", title=title, title_justify="left")
        for shape in found["shapes"]:
            grown.add_column(shape, justify="right", no_wrap=True)
        for name, texts in rows.items():
            grown.add_row(name, *texts)
        made.append(grown)
    return made


class Markdown(str):
    """Text that a notebook shows as Markdown."""

    def _repr_markdown_(self) -> str:
        return str(self)


def markdown(found: Result) -> Markdown:
    """The same tables for a notebook."""
    lines: list[str] = []
    for title, rows in cells(found).items():
        lines += [f"### {title}", ""]
        lines.append("| | " + " | ".join(found["shapes"]) + " |")
        lines.append("|---|" + "---:|" * len(found["shapes"]))
        lines += [f"| {name} | " + " | ".join(texts) + " |" for name, texts in rows.items()]
        lines.append("")
    return Markdown("\n".join(lines))


def legend(found: Result) -> list[str]:
    """What each row is, how it was measured, and why some rows have no times."""
    every = list(found["shapes"])
    shown = [f"{name}: {found['legend'][name]}" for name in names(found) if name in found["legend"]]
    how = [f"{what}: {said}" for what, said in found["method"].items()]
    why = [
        f"{what} ({'every shape' if shapes == every else ', '.join(shapes)})"
        for what, shapes in reasons(found).items()
    ]
    return [*shown, *how, *why]


def show(found: Result) -> None:
    """Print the tables and what explains them, as wide as all shapes need."""
    from rich.console import Console

    console = Console(width=max(Console().width, WIDTH))
    for made in tables(found):
        console.print(made)
    for shape, here in found["shapes"].items():
        if here.get("sweep"):
            console.print(table(f"{shape}, tiles", here["sweep"]))
    for line in legend(found):
        console.print(line, markup=False, highlight=False)
