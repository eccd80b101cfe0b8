"""What an audit found, as tables: the same on the terminal and on its page.

A table is (title, columns, rows of texts); functions of the JSON alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

Result = Mapping[str, Any]
WIDTH = 180


class Table(NamedTuple):
    """title, headings, rows; note: one sentence that stands under it."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str = ""


def tables(found: Result) -> list[Table]:
    """Of any audit."""
    make: Callable[[Result], list[Table]] = import_module(
        f"tightrope.audit_{found['audit']}_view"
    ).tables
    return make(found)


def show(found: Result) -> None:
    """Print them."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table as Grid

    console = Console()
    if not console.is_terminal:  # a file has no width, and 80 columns break every number
        console = Console(width=WIDTH)
    for title, columns, rows, note in tables(found):
        grid = Grid(*map(escape, columns), title=escape(title), title_justify="left")
        for row in rows:
            grid.add_row(*map(escape, row))
        console.print(grid)
        if note:
            console.print(note, markup=False, highlight=False)


def number(x: float | None, digits: int = 3) -> str:
    """A number for a table; "-" for none."""
    if x is None:
        return "-"
    return f"{x:,}" if isinstance(x, int) else f"{x:.{digits}g}"
