"""Which laws of a run are run, by shard and quarantine, and which failures are no news."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tightrope.known import Known
from tightrope.session import State, key
from tightrope.shard import inside

QUARANTINED = "quarantined: "


def is_law(item: pytest.Item) -> bool:
    return getattr(getattr(item, "function", None), "tightrope_law", None) is not None


def choose(state: State, items: list[pytest.Item]) -> list[pytest.Item]:
    """The items of this shard; laws in quarantine are marked to be skipped, with their reason.

    Known failures are looked up among all laws that apply: a shard is no reason to match nothing.
    """
    laws = [i for i in items if is_law(i) and not i.get_closest_marker("skip")]
    state.known.meet(map(key, laws))
    state.known.unmatched += sorted({told for i in laws for told in _like_no_case(state.known, i)})
    for item in laws:
        entry = state.known.quarantined(key(item))
        if entry:
            item.add_marker(pytest.mark.skip(reason=f"{QUARANTINED}{entry}"))
    return [i for i in items if not is_law(i) or inside(key(i), state.part)]


def _like_no_case(known: Known, item: Any) -> list[str]:
    """What entries ask of a law's cases that none of its contract's has."""
    spec = item.callspec.params["impl"].contract
    return [
        f"{entry.place}: case: no case of {spec.name} has {name} = {value!r}"
        for entry in known.cases(key(item))
        for name, value in entry.case.items()
        if value not in spec.domain.get(name, ())
    ]


def expected(known: Known, name: str, report: pytest.TestReport) -> None:
    """Turn a failure that is known into an expected one, and a known failure's success into one."""
    why, entry = known.why(name), known.failure(name)
    if report.failed and why:
        report.outcome, report.wasxfail = "skipped", why
    elif report.passed and entry and _outcome(report) == "passed":
        report.outcome = "failed"
        report.longrepr = f"{entry.place}: {name} is known to fail, and holds: take it out"


def _outcome(report: pytest.TestReport) -> str:
    data: dict[str, Any] = json.loads(dict(report.user_properties).get("tightrope", "{}"))  # type: ignore[arg-type]
    return str(data.get("outcome", ""))


def skipped(report: pytest.TestReport) -> str:
    """Why a law was skipped."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return ""
