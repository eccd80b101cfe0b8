"""A pytest plugin (`-p counted_pairs`) that notes each (case, law) pair that held.

A line a pair in $TIGHTROPE_PAIRS/PID: the pair's hash, the rows of its largest first output, and
contract, law and implementation. A pair is all that was drawn, whoever was under test.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

ENOUGH = 16  # output rows of a pair that counts
_rows: ContextVar[int] = ContextVar("rows", default=0)


def pytest_configure(config: Any) -> None:
    """Wrap what runs a law and what calls a kernel, once in a process."""
    from tightrope.implementation import Implementation
    from tightrope.law import Law

    if not hasattr(Law.run, "counted"):
        folder = Path(os.environ["TIGHTROPE_PAIRS"])
        Implementation.__call__ = _seen(Implementation.__call__)  # type: ignore[method-assign]
        Law.run = _noted(Law.run, folder / str(os.getpid()))  # type: ignore[method-assign]


def _seen(call: Any) -> Any:
    def seen(impl: Any, *args: Any, **changes: Any) -> Any:
        found = call(impl, *args, **changes)
        first = found[impl.outputs[0]]
        wide = first.shape[-1] if first.ndim > 1 else 1
        _rows.set(max(_rows.get(), first.size // max(wide, 1)))
        return found

    return seen


def _noted(run: Any, path: Path) -> Any:
    def noted(law: Any, impl: Any, draw: Any) -> None:
        drawn: list[str] = []

        def kept(strategy: Any, label: str) -> Any:
            value = draw(strategy, label)
            drawn.append(f"{label}={value!r}")
            return value

        _rows.set(0)
        run(law, impl, kept)
        pair = hashlib.blake2b(f"{law.name} {drawn}".encode(), digest_size=12).hexdigest()
        told = f"{pair} {_rows.get()} {impl.contract_name} {law.name} {impl.name}\n"
        with path.open("a") as file:
            file.write(told)

    noted.counted = True  # type: ignore[attr-defined]
    return noted


def lines(folder: Path) -> Iterator[list[str]]:
    """What all processes wrote, split; half a line of a killed one is left out."""
    for path in sorted(folder.iterdir()):
        for line in path.read_text().splitlines():
            words = line.split()
            if len(words) == 5:
                yield words


def counts(folder: Path) -> dict[str, Any]:
    """Distinct pairs with rows enough, in all and by contract, law and implementation."""
    pairs: set[str] = set()
    seen: set[tuple[str, str]] = set()
    few, by = 0, {name: Counter() for name in ("contract", "law", "implementation")}
    for pair, rows, contract, law, impl in lines(folder):
        subject = f"{contract} {impl}"
        if (pair, subject) in seen:
            continue
        seen.add((pair, subject))
        if int(rows) < ENOUGH:
            few += 1
            continue
        by["implementation"][subject] += 1
        if pair not in pairs:
            pairs.add(pair)
            by["contract"][contract] += 1
            by["law"][law] += 1
    told = {name: dict(sorted(counter.items())) for name, counter in by.items()}
    return {"pairs": len(pairs), "calls with fewer rows": few, **told}
