"""`tightrope audit rope`: to which position each way of building the table carries.

Limits of 15 ways for three bases and three widths, of every `rope_scaling` for four of them, and
of builders under test; error along the positions; positions that get the same row; and how far
scores move when both positions do, beside what a paper says of that.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np

from tightrope import audit_builders, audit_papers, audit_shift
from tightrope.audit import Progress
from tightrope.audit_angles import of_rope
from tightrope.audit_positions import UNSCANNABLE, Built, bracket, curve, scan
from tightrope.audit_ways import WAYS, Way, angles, frequencies, stored
from tightrope.environment import environment
from tightrope.options import dtype as dtype_name
from tightrope.rope_scaling_keys import TYPES

BASES, DIMS = (10000.0, 500000.0, 1000000.0), (64, 128, 256)
DRAWN = (10000.0, 128)
KINDS = tuple(TYPES)
OF_SCALINGS = ("float64 throughout", "float32 throughout", "float32 inv_freq, float64 product",
               "bfloat16 inv_freq")  # fmt: skip
ROWS = 1 << 13  # of which all pairs are compared
SECONDS = 3.0  # of one builder, base, width and scaling


def audit(options: Any, progress: Progress) -> dict[str, Any]:
    """Everything, as JSON. Raises ValueError for a dtype that no way uses, and for positions past
    what is scanned.
    """
    to = options.max_position
    if to >= UNSCANNABLE:
        raise ValueError(f"--max-position: expected below 2^26 for tables, got {to}")
    ways = _wanted(options.dtype)
    own = audit_builders.builders(options.impl, options.device) if options.impl else []
    found: dict[str, Any] = {
        "audit": "rope", "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment(), "to": to, "limits": [], "scalings": [], "builders": [],
        "curves": {}, "collisions": [], "shift": [],
    }  # fmt: skip
    steps = list(_steps(ways, own, to, found))
    for done, (name, step) in enumerate(steps):
        progress(name, done / len(steps))
        step()
    progress("done", 1.0)
    return found


def _wanted(dtypes: list[str]) -> list[Way]:
    names = [d if d == "tf32" else dtype_name(d) for d in dtypes]
    ways = [w for w in WAYS if not names or any(w.uses(n) for n in names)]
    if not ways:
        raise ValueError(f"--dtype: no way to build a table uses {', '.join(names)}")
    return ways


def _steps(ways: list[Way], own: list[Any], to: int, found: dict[str, Any]) -> Iterator[Any]:
    """(name, what adds to `found`)."""
    for base in BASES:
        for dim in DIMS:
            yield (
                f"base {base:g}, rotary_dim {dim}",
                lambda b=base, d=dim: found["limits"].extend(
                    limits(way, d, b, None, to) for way in ways
                ),
            )
    base, dim = DRAWN
    for kind in KINDS:
        yield (
            f"rope_scaling {kind}",
            lambda k=kind: found["scalings"].extend(
                limits(way, dim, base, k, to) for way in ways if way.name in OF_SCALINGS
            ),
        )
    yield (
        "curves",
        lambda: found["curves"].update(
            {way.name: curve(made(way, dim, base, None), to) for way in ways}
        ),
    )
    yield (
        "collisions",
        lambda: found["collisions"].extend(collision(made(way, dim, base, None)) for way in ways),
    )
    for impl in own:
        for b, d, at in audit_builders.asked_of(impl, BASES, DIMS, KINDS):
            if at.name == "default" or (b, d) == DRAWN:
                yield (
                    f"{impl.name}, {at.name}, {b:g}, {d}",
                    lambda i=impl, b=b, d=d, at=at: _own(found, i, b, d, at, to),
                )
    for chain in audit_shift.CHAINS:
        yield (
            f"shift: {chain.name}",
            lambda c=chain: found["shift"].append(audit_shift.violations(c)),
        )
    yield "papers", lambda: found.update(paper=audit_papers.shifted_attention())


def made(way: Way, dim: int, base: float, kind: str | None) -> Built:
    exact = audit_builders.scaled(kind, dim, base).exact if kind else of_rope(dim, base)
    return Built(way=way, inv_freq=frequencies(way, exact, dim, base), exact=exact)


def limits(way: Way, dim: int, base: float, kind: str | None, to: int) -> dict[str, Any]:
    """One row: way, base, width, scaling, limits."""
    built = made(way, dim, base, kind)
    found = bracket(built) if way.angle == way.inv_freq == "float64" else scan(built, to)
    return {"way": way.name, "base": base, "rotary_dim": dim, "rope_scaling": kind, **found}


def collision(built: Built) -> dict[str, Any]:
    """The first position below ROWS whose row is an earlier one's; then, whether 2^k and 2^k + 1
    share theirs, k up to 30.
    """
    positions = np.arange(ROWS)
    seen: dict[bytes, int] = {}
    first = None
    for n, row in enumerate(_rows(built, positions)):
        if (earlier := seen.setdefault(row.tobytes(), n)) != n:
            first = (earlier, n)
            break
    if first is None:
        for k in range(13, 31):
            a, b = _rows(built, np.array([2**k, 2**k + 1]))
            if a.tobytes() == b.tobytes():
                first = (2**k, 2**k + 1)
                break
    return {"way": built.way.name, "pair": first, "all_pairs_below": ROWS}


def _rows(built: Built, positions: np.ndarray) -> np.ndarray:
    angle = angles(built.way, built.inv_freq, positions[:, None])
    with np.errstate(invalid="ignore"):
        both = [stored(built.way, f(angle)) for f in (np.cos, np.sin)]
    return np.concatenate(both, axis=1) + 0.0


def _own(found: dict[str, Any], impl: Any, base: float, dim: int, at: Any, to: int) -> None:
    row = {"way": impl.name, "base": base, "rotary_dim": dim, "rope_scaling": at.name}
    found["builders"].append(row | audit_builders.limits(impl, dim, base, at, to, SECONDS))
    if at.name == "default" and (base, dim) == DRAWN:
        found["curves"][impl.name] = audit_builders.curve(impl, dim, base, at, to)
