"""Detection power: which laws kill which mutants, after how many cases.

Laws run in this process as the plugin runs them, on the same strategies and judged by the same
ledger, but unshrunk, and drawn alike in every run. Killed is a mutant whose wrong values or stores
a law tells (Violation, MemoryFault); another exception is told apart: it says that a mutant does
not run, or is refused, and is no detection.
"""

from __future__ import annotations

import pkgutil
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from tightrope.mutants import Mutant, forget, made
from tightrope.power_found import Found, Trial

EXAMPLES = 100  # cases of a law, as under the profile `ci`
DEEP = 20  # times as many of the main law, for what all laws let pass
MAIN = "test_matches_oracle"
WRONG = ("Violation", "MemoryFault")
Kills = Mapping[str, Mapping[str, Any]]


@cache
def laws() -> dict[str, Any]:
    """Name -> law, all that the suite has."""
    package = import_module("tightrope.properties")
    modules = [import_module(f"{package.__name__}.{m.name}")
               for m in pkgutil.iter_modules(package.__path__)]  # fmt: skip
    tests = [x for module in modules for x in vars(module).values() if callable(x)]
    return {t.tightrope_law.name: t.tightrope_law for t in tests if hasattr(t, "tightrope_law")}


def pairs(impls: Sequence[Any], dtypes: Sequence[str] = ()) -> list[tuple[Any, Any]]:
    """(law, implementation narrowed to it and one dtype), the main law first."""
    from tightrope.subjects import subjects

    order = sorted(laws().values(), key=lambda law: law.name != MAIN)
    return [
        (law, narrowed)
        for law in order
        for _, narrowed in subjects(law, impls, dtypes, "cpu")
        if narrowed is not None
    ]


def ordered(found: list[tuple[Any, Any]], known: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """The pair of the last known kill first, then its law, then as they come."""
    last = (known.get("law"), known.get("implementation"), known.get("dtype"))

    def rank(pair: tuple[Any, Any]) -> int:
        law, impl = pair
        if (law.name, impl.name, dtype(impl)) == last:
            return 0
        return 1 if law.name == last[0] else 2

    return sorted(found, key=rank)


def dtype(impl: Any) -> str:
    """Of an implementation that is narrowed to one."""
    return str(next(iter(impl.limits["dtype"])))


def trial(law: Any, impl: Any, examples: int, seed: int = 0, end: float | None = None) -> Trial:
    """Run a law until a case fails, or so many cases. seed: another one draws other cases."""
    from hypothesis.errors import Flaky

    from tightrope import ledger

    book = ledger.Ledger(
        key=f"{law.name}[{impl.id}]", axes=impl.contract.axes, end=end, deadline=end
    )
    place = (law.name, impl.name, dtype(impl))
    with opened(book):
        try:
            _search(law, impl, examples, seed)()
        except (ledger.OutOfTime, Flaky) as error:
            told = type(error).__name__
            return Trial(*place, "raised" if told.startswith("Flaky") else "not run", book.cases)
        except Exception as error:
            return _failed(place, book, error)
    return Trial(*place, "passed" if book.cases else "not run", book.cases)


def _failed(place: tuple[str, str, str], book: Any, error: Exception) -> Trial:
    detail = getattr(error, "detail", {})
    wrong = type(error).__name__ in WRONG and not detail.get("of_the_law")
    shares = [share for share, _ in book.worst.values()]
    told = (str(error).splitlines() or [""])[0]
    return Trial(
        *place, "killed" if wrong else "raised", book.cases, max(shares, default=None),
        f"{type(error).__name__}: {told}"[:300], detail.get("diagnosis", ""),
    )  # fmt: skip


@contextmanager
def opened(book: Any) -> Iterator[None]:
    """A law's ledger, open as the plugin opens it."""
    from tightrope import blackbox, ledger

    blackbox.begin()
    token = ledger._open.set(book)
    try:
        yield
    finally:
        ledger._open.reset(token)


def _search(law: Any, impl: Any, examples: int, seed: int) -> Callable[[], None]:
    """Hypothesis over the law's cases: generated only, the same in every run."""
    import hypothesis as h
    from hypothesis import strategies as st

    kept = h.settings(
        max_examples=examples, database=None, deadline=None, phases=[h.Phase.generate],
        suppress_health_check=list(h.HealthCheck), report_multiple_bugs=False, print_blob=False,
        verbosity=h.Verbosity.quiet,
    )  # fmt: skip

    def cases(data: Any) -> None:
        law.run(impl, lambda chosen, label: data.draw(chosen, label=label))

    number = zlib.crc32(f"{law.name} {impl.contract_name} {dtype(impl)} {seed}".encode())
    found: Callable[[], None] = h.seed(number)(kept(h.given(data=st.data())(cases)))
    return found


def hunted(
    mutant: Mutant, folder: Path, known: Kills, examples: int = EXAMPLES, matrix: bool = False,
    seed: int = 0, end: float | None = None,
) -> Found:  # fmt: skip
    """Make a mutant and run laws until one kills it, last the main law with `DEEP` times as many
    cases (if it is the last known kill, at once); with `matrix` all of them, once.

    A mutant that is listed as equivalent is not run. One that needs a GPU is, where there is one.
    Of a known hole the main law alone is asked again whether it has closed.
    Raises DoesNotApply.
    """
    from tightrope.device import current

    began = time.monotonic()
    if mutant.equivalent:
        return Found(mutant.id, mutant.family, "equivalent", (), 0.0, mutant.equivalent)
    if mutant.needs and current().kind == "cpu":
        return Found(mutant.id, mutant.family, "elsewhere", (), 0.0, mutant.needs)
    trials: list[Trial] = []
    found = ordered(pairs(made(mutant, folder), mutant.dtypes), known.get(mutant.id, {}))
    if mutant.hole and not matrix:
        found = [(law, impl) for law, impl in found if law.name == MAIN]
    rounds = _rounds(found, examples, seed, bool(matrix or mutant.hole), mutant.id in known)
    try:
        for law, impl, many, draws in rounds:
            if end is not None and time.time() > end:
                break
            trials.append(trial(law, impl, many, draws, end))
            if trials[-1].outcome == "killed" and not matrix:
                break
    finally:
        forget(mutant)
    outcome, seconds = _outcome(trials, end), round(time.monotonic() - began, 2)
    known_hole = bool(mutant.hole) and outcome == "survived"
    return Found(
        mutant.id, mutant.family, "hole" if known_hole else outcome, tuple(trials), seconds,
        mutant.hole or "" if known_hole else "",
    )  # fmt: skip


def _rounds(
    found: list[tuple[Any, Any]], examples: int, seed: int, once: bool, again: bool
) -> list[tuple[Any, Any, int, int]]:
    """(law, implementation, cases, seed) in their order; unless `once`, the main law deeply too.

    again: the first pair is that of a known kill, and is searched deeply before others are tried.
    """
    rounds = [(law, impl, examples, seed) for law, impl in found]
    deep = [(law, i, DEEP * examples, ~seed) for law, i in found if law.name == MAIN]
    if once or not deep:
        return rounds
    if again and rounds[0][:2] == deep[0][:2]:
        return [rounds[0], deep[0], *rounds[1:], *deep[1:]]
    return rounds + deep


def _outcome(trials: Sequence[Trial], end: float | None) -> str:
    outcomes = {t.outcome for t in trials}
    if "killed" in outcomes:
        return "killed"
    if end is not None and time.time() > end:
        return "not run"
    return "broken" if "raised" in outcomes else "survived"
