"""`tightrope list`: contracts, implementations, what they support and what they promise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tightrope.arithmetic import Arithmetic
from tightrope.contract import contract, names
from tightrope.implementation import Implementation
from tightrope.limits import describe


def listing(impls: Sequence[Implementation]) -> None:
    """Print a table a contract: implementation, limits, arithmetic, and below it their places."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    for name in names():
        spec = contract(name)
        console.print(f"[bold]{name}[/bold]{spec.signature.removeprefix(name)}", highlight=False)
        table = Table()
        for column in ("implementation", "limits", "arithmetic"):
            table.add_column(column, overflow="fold")
        mine = [impl for impl in impls if impl.contract_name == name]
        for impl in mine:
            limits = [f"{k}: {describe(v)}" for k, v in impl.limits.items()] + list(impl.where)
            table.add_row(*map(escape, (impl.name, "\n".join(limits) or "none", promise(impl))))
        console.print(table)
        for impl in mine:  # a line of its own, however long, can be copied
            console.print(f"{impl.name}: {place(impl)}", markup=False, highlight=False,
                          soft_wrap=True)  # fmt: skip
        fields = "; ".join(f"{k}: {describe(v)}" for k, v in spec.domain.items())
        console.print(f"limits may narrow {fields}", highlight=False)
        for relation, meaning in spec.relations.items():
            console.print(f"  where={relation!r}: {meaning}", highlight=False)


def place(impl: Implementation) -> str:
    """FILE:LINE of the decorator; relative to the working directory if it is below it."""
    file, _, line = impl.source.rpartition(":")
    path = Path(file)
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{line}"


def promise(impl: Implementation) -> str:
    """An implementation's arithmetic in words."""
    if impl.arithmetic is None:
        return "not declared: held to an honest float32 kernel"
    if isinstance(impl.arithmetic, Arithmetic):
        return "\n".join(f"{k}: {v}" for k, v in impl.arithmetic.items())
    return "depends on case and device"
