"""`tightrope list`: contracts, implementations, what they support and what they promise."""

from __future__ import annotations

from collections.abc import Sequence

from tightrope.arithmetic import Arithmetic
from tightrope.contract import contract, names
from tightrope.implementation import Implementation
from tightrope.limits import describe


def listing(impls: Sequence[Implementation]) -> None:
    """Print a table a contract: implementation, limits, arithmetic, where it is defined."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    for name in names():
        spec = contract(name)
        console.print(f"[bold]{name}[/bold]{spec.signature.removeprefix(name)}", highlight=False)
        table = Table()
        for column in ("implementation", "limits", "arithmetic", "source"):
            table.add_column(column, overflow="fold")
        for impl in impls:
            if impl.contract_name == name:
                limits = [f"{k}: {describe(v)}" for k, v in impl.limits.items()] + list(impl.where)
                words = (impl.name, "\n".join(limits) or "none", promise(impl), impl.source)
                table.add_row(*map(escape, words))
        console.print(table)
        fields = "; ".join(f"{k}: {describe(v)}" for k, v in spec.domain.items())
        console.print(f"limits may narrow {fields}", highlight=False)
        for relation, meaning in spec.relations.items():
            console.print(f"  where={relation!r}: {meaning}", highlight=False)


def promise(impl: Implementation) -> str:
    """An implementation's arithmetic in words."""
    if impl.arithmetic is None:
        return "not declared: held to an honest float32 kernel"
    if isinstance(impl.arithmetic, Arithmetic):
        return "\n".join(f"{k}: {v}" for k, v in impl.arithmetic.items())
    return "depends on case and device"
