"""What one law has drawn, spent and found. The plugin opens a ledger around each test."""

from __future__ import annotations

import hashlib
import math
import time
import unittest
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from tightrope.formats import Array

SHRINKING = 10.0  # seconds to shrink a failure, at least, under --max-seconds
UNINFORMATIVE_SHARE = 0.05  # of a law's judged cases; more of them is a failure


class OutOfTime(unittest.SkipTest):
    """This law's share of --max-seconds is spent. A kind of skip: Hypothesis lets these through."""


@dataclass
class Ledger:
    """cases: how many were run. empty: of these, without an element to judge.

    informative / uninformative: cases whose budget rejects / accepts a null model.
    worst: output -> (share, drawn). terms: output -> the budget of that element, term by term.
    covered: field -> value -> how many cases. again: output -> share on the case on which a
    baseline spent most. quarantine: entries (tightrope.known) whose cases are not run.
    """

    key: str = ""  # of the test, see tightrope.plugin.key
    home: str = ""  # the file or module that a replay collects the law from
    axes: tuple[str, ...] = ()
    deadline: float | None = None  # seconds since the epoch, as `end`
    end: float | None = None
    drawn: dict[str, Any] = field(default_factory=dict)
    cases: int = 0
    empty: int = 0
    informative: int = 0
    uninformative: int = 0
    settled: int = 0
    worst: dict[str, tuple[float, dict[str, Any]]] = field(default_factory=dict)
    terms: dict[str, Mapping[str, float]] = field(default_factory=dict)
    covered: dict[str, Counter[str]] = field(default_factory=dict)
    again: dict[str, float] = field(default_factory=dict)
    quarantine: Sequence[Any] = ()
    quarantined: int = 0
    failing: dict[str, Any] | None = None  # what was drawn when the law failed last
    failures: set[str] = field(default_factory=set)  # all that was drawn when it failed, as text
    shrink_until: float = math.inf
    out_of_time: bool = False
    diagnosis: str = ""
    record: str = ""  # id of the device's record that budgets took constants from
    draws: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=8))

    def begin(self, drawn: dict[str, Any]) -> None:
        """Count one case and the values of its fields; Hypothesis is told of one in quarantine."""
        case = drawn.get("case")
        if any(entry.holds(case) for entry in self.quarantine):
            from hypothesis import reject

            self.quarantined += 1
            reject()
        self.drawn = drawn
        self.cases += 1
        self.draws.update(repr(drawn).encode())
        for axis in self.axes:
            self.covered.setdefault(axis, Counter())[str(getattr(case, axis))] += 1

    def counts(self) -> dict[str, int]:
        """What was counted until now, as in a result."""
        names = ("cases", "empty", "informative", "uninformative", "settled", "quarantined")
        return {name: getattr(self, name) for name in names}

    def spend(
        self, output: str, share: float, terms: Callable[[], Mapping[str, float]] | None = None
    ) -> None:
        """Note an output's share of its budget, and whose the budget is if none spent more yet."""
        if share > self.worst.get(output, (-1.0, {}))[0]:
            self.worst[output] = (share, self.drawn)
            self.terms[output] = terms() if terms else {}

    def fail(self) -> None:
        """What is drawn fails the law; under a deadline the time to shrink starts to run."""
        if self.failing is None and self.deadline is not None:
            self.shrink_until = max(self.deadline, time.time() + SHRINKING)
        self.failing = self.drawn
        self.failures.add(repr(self.drawn))

    def told(self) -> bool:
        """Whether a failure of what is drawn may be what is told: the first one, and any again."""
        return self.failing is None or repr(self.drawn) in self.failures

    def tired(self, drawn: dict[str, Any]) -> bool:
        """Whether shrinking has had its time; what failed before must still be seen to fail."""
        return time.time() > self.shrink_until and repr(drawn) not in self.failures

    def time_is_up(self) -> bool:
        """Whether to stop here; never while a failure is shrunk.

        The first case is allowed beyond the law's own `deadline`, but not beyond the run's `end`.
        """
        limit = self.deadline if self.cases else self.end
        if limit is None or self.failing is not None:
            return False
        self.out_of_time = time.time() > limit
        return self.out_of_time

    def too_uninformative(self) -> bool:
        """Whether more than 5 % are, by four standard deviations: a run is a sample."""
        judged, allowed = self.informative + self.uninformative, UNINFORMATIVE_SHARE
        spread = 4 * (judged * allowed * (1 - allowed)) ** 0.5
        return judged > 1 and self.uninformative > allowed * judged + spread


_open: ContextVar[Ledger | None] = ContextVar("tightrope_ledger", default=None)


def opened() -> Ledger:
    """The ledger of the running law; outside of a law, one that nobody reads."""
    return _open.get() or Ledger()


def spend(output: str, share: float) -> None:
    opened().spend(output, share)


def weigh(budgets: Mapping[str, Any], nulls: Mapping[str, Mapping[str, Array]]) -> bool:
    """Record whether this case can tell a right kernel from one that does nothing useful.

    budgets: output -> Budget. nulls: model -> output -> array. A case without elements is empty.
    """
    ledger = opened()
    if all(b.expected.size == 0 for b in budgets.values()):
        ledger.empty += 1
        return True
    fooled = any(
        all(budget.accepts(outputs[name]) for name, budget in budgets.items())
        for outputs in nulls.values()
    )
    if fooled:
        ledger.uninformative += 1
    else:
        ledger.informative += 1
    return not fooled


def uninformative_law(book: Ledger) -> None:
    """Raise Violation: too many of a law's cases could not have failed."""
    from tightrope.budget import Violation

    raise Violation(
        f"{book.uninformative} of {book.informative + book.uninformative} cases are uninformative: "
        "their budget would also accept a model that does nothing useful "
        f"(allowed: {UNINFORMATIVE_SHARE:.0%})",
        of_the_law=True,
    )


def unsteady(error: BaseException) -> Exception:
    """The Violation that a case which failed, and then did not, is told as."""
    from tightrope.budget import Violation

    causes = getattr(error, "exceptions", (error,))
    return Violation(
        "The same case failed and, run again, passed: the kernel does not repeat itself (a race, "
        f"memory that nobody wrote, state kept between calls). It failed with:\n{causes[0]}"
    )
