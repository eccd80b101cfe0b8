"""What `tightrope power` found of each mutant, as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Trial:
    """One law on one implementation of a mutant, in one dtype.

    outcome: killed, passed, raised (an exception that is no verdict), not run (no time, no case).
    cases: until the kill, or all. share: of the budget on the last case judged, if the law has one.
    """

    law: str
    implementation: str
    dtype: str
    outcome: str
    cases: int
    share: float | None = None
    told: str = ""
    diagnosis: str = ""

    @property
    def place(self) -> tuple[str, str, str]:
        return self.law, self.implementation, self.dtype


@dataclass(frozen=True)
class Found:
    """What became of a mutant: killed, survived, equivalent, elsewhere (needs a GPU), broken, not
    run for want of time, or hole: it survived, and what the suite lacks is known.
    """

    mutant: str
    family: str
    outcome: str
    trials: tuple[Trial, ...]
    seconds: float
    why: str = ""

    @property
    def kill(self) -> Trial | None:
        return next((t for t in self.trials if t.outcome == "killed"), None)

    def data(self) -> dict[str, Any]:
        return {**asdict(self), "kill": asdict(self.kill) if self.kill else None}


def merged(parts: Iterable[Iterable[Mapping[str, Any]]]) -> list[Found]:
    """What `Found.data` of several runs tells, the last run of a mutant that came to an end."""
    found: dict[str, Found] = {}
    for each in (each for part in parts for each in part):
        if each["mutant"] in found and each["outcome"] == "not run":
            continue
        fields = {k: v for k, v in each.items() if k != "kill"}
        trials = tuple(Trial(**t) for t in each["trials"])
        found[each["mutant"]] = Found(**{**fields, "trials": trials})
    return list(found.values())


def counted(found: Iterable[Found]) -> dict[str, int]:
    """Outcome -> mutants."""
    counts = dict.fromkeys(
        ("killed", "survived", "broken", "hole", "equivalent", "elsewhere", "not run"), 0
    )  # fmt: skip
    for each in found:
        counts[each.outcome] += 1
    return counts


def kills(found: Iterable[Found]) -> dict[str, dict[str, Any]]:
    """What a later run begins with: mutant -> the law, implementation and dtype that killed it."""
    return {
        each.mutant: {k: asdict(each.kill)[k] for k in ("law", "implementation", "dtype", "cases")}
        for each in sorted(found, key=lambda each: each.mutant)
        if each.kill
    }
