"""`tightrope doctor`: what this machine can and cannot prove, and what is missing."""

from __future__ import annotations

import importlib
import pkgutil


def examine() -> int:
    """Print versions, device, the interpreter's limits and optional peers; 1 if nothing can run."""
    from rich.console import Console
    from rich.table import Table

    from tightrope.environment import environment

    console, status = Console(), 0
    try:
        from tightrope.device import prepare

        device = prepare()
    except (ImportError, RuntimeError) as error:
        console.print(f"[red]no kernel can run here:[/red] {error}")
        return 1
    found = environment()
    table = Table(title="environment", title_justify="left", show_header=False)
    table.add_row("python", f"{found['python']} on {found['platform']}, {found['cores']} cores")
    for package, version in found["packages"].items():
        table.add_row(package, version or "[red]missing[/red]")
        status |= version is None
    table.add_row(
        "device",
        f"{device.name}"
        + (f", sm_{''.join(map(str, device.capability))}" if device.capability else ""),
    )
    for name, value in found.get("device", {}).items():
        table.add_row(f"  {name}", str(value))
    console.print(table)
    if device.interpreted:
        _interpreter(console)
    _peers(console)
    return int(status)


def _interpreter(console: object) -> None:
    from rich.console import Console

    from tightrope.interpreter import NOT_FAITHFUL

    assert isinstance(console, Console)
    console.print(
        "Triton's interpreter runs kernels here, rounding as compiled code does. It does not show:"
    )
    for limit in NOT_FAITHFUL:
        console.print(f"  - {limit}", highlight=False)


def _peers(console: object) -> None:
    from rich.console import Console

    from tightrope.subjects import BUNDLED

    assert isinstance(console, Console)
    for found in pkgutil.iter_modules(importlib.import_module(BUNDLED).__path__):
        missing = getattr(importlib.import_module(f"{BUNDLED}.{found.name}"), "MISSING", None)
        if missing:
            console.print(f"{found.name} is off: {missing}", highlight=False)
