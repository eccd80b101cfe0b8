"""Reports as data: reading them, putting shards together, and what their tables say."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tightrope.record import of_report
from tightrope.results import SCHEMA

Report = Mapping[str, Any]
RAN = ("passed", "failed")


def load(path: str | Path) -> dict[str, Any]:
    """A report as it was written. Raises OSError, or ValueError for what is none."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']!r} instead of {SCHEMA}")
        for result in data["results"].values():
            result["outcome"]
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a tightrope report: {error}") from error
    found: dict[str, Any] = data
    return found


def complete(report: Report) -> bool:
    """Whether its run came to its end; a report without a status is of a run that did."""
    return bool(report.get("status", "complete") == "complete")


def together(reports: Sequence[Report]) -> dict[str, Any]:
    """One report of several that ran different laws, as shards do.

    Versions and device are the first one's. Raises ValueError for a law that two of them ran, and
    for budgets made under several records of a device.
    """
    under = {of_report(r) for r in reports}
    if len(under) > 1:
        raise ValueError(f"expected reports under one record of a device, got {under}")
    results: dict[str, Any] = {}
    for report in reports:
        for key, result in report["results"].items():
            if result["outcome"] in RAN and results.get(key, {}).get("outcome") in RAN:
                raise ValueError(f"{key} was run by two of the reports")
            if key not in results or result["outcome"] in RAN:
                results[key] = result
    seconds = sum(r.get("seconds", 0) for r in reports)
    status = "complete" if all(map(complete, reports)) else "interrupted"
    whole = {**reports[0], "seconds": seconds, "status": status, "results": results}
    if len(reports) > 1:
        whole["run"] = {**whole.get("run", {}), "shard": None}
    return whole


def new_failures(report: Report) -> dict[str, Any]:
    """key -> result of the failures that were not expected."""
    return {k: r for k, r in failures(report).items() if not r.get("known")}


def failures(report: Report) -> dict[str, Any]:
    return {k: r for k, r in report["results"].items() if r["outcome"] == "failed"}


def headline(report: Report) -> str:
    """One sentence: what the run found."""
    results = report["results"].values()
    counts = Counter(r["outcome"] for r in results)
    known = len(failures(report)) - len(new_failures(report))
    told = ", ".join(
        f"{n} {kind}" + (f" ({known} known)" if kind == "failed" and known else "")
        for kind, n in sorted(counts.items())
    )
    ended = "" if complete(report) else "; the run was interrupted"
    return f"{sum(r.get('cases', 0) for r in results)} cases; laws: {told or 'none'}{ended}"


def facts(report: Report) -> dict[str, str]:
    """What the report stands on: device, versions, options of the run."""
    found = report.get("environment", {})
    device = found.get("device", {})
    names = {r["device"] for r in report["results"].values() if r.get("device")}
    facts = {
        "device": ", ".join(sorted(names)),
        "CUDA, driver": " ".join(str(device[k]) for k in ("cuda", "driver") if device.get(k)),
        "run": ", ".join(f"{k} {v}" for k, v in report.get("run", {}).items() if v is not None),
        "seconds": f"{report.get('seconds', 0):g}",
        "python": f"{found.get('python', '')}, {found.get('platform', '')}",
        "packages": " ".join(f"{k} {v}" for k, v in found.get("packages", {}).items() if v),
    }
    return {name: value for name, value in facts.items() if value}


def tightest(report: Report, count: int = 10) -> list[tuple[float, str, str, Mapping[str, Any]]]:
    """(share, key, output, what was drawn and its budget) of laws that hold, largest first."""
    found = [
        (float(w["share"]), key, output, w)
        for key, r in report["results"].items() if r["outcome"] == "passed"
        for output, w in r.get("worst", {}).items()
    ]  # fmt: skip
    return sorted(found, key=lambda f: (-f[0], f[1], f[2]))[:count]


def case_text(drawn: Mapping[str, Any]) -> str:
    """What was drawn, one line a value; a case as its fields."""
    lines = []
    for label, value in drawn.items():
        if isinstance(value, Mapping) and set(value) == {"case"}:
            value = ", ".join(f"{k}={v!r}" for k, v in value["case"].items())
        lines.append(f"{label}: {value}")
    return "\n".join(lines)


def terms_text(terms: Mapping[str, float], record: str | None = None) -> str:
    """A budget, term by term, as a failure prints it. record: whose constants it has."""
    lines = [f"  {float(bound):.3e}  {term}" for term, bound in terms.items()]
    return "\n".join([*lines, f"  constants of record {record}"] if record else lines)


def replay_command(path: str, key: str) -> str:
    return f"tightrope replay {shlex.quote(path)} --only={shlex.quote(key)}"


def story(result: Mapping[str, Any]) -> str:
    """A failure as text: what was drawn, and the finding with its budget."""
    failure = result["failure"]
    return f"{case_text(failure.get('drawn', {}))}\n\n{failure['kind']}: {failure['message']}"


def by_contract(results: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """contract -> its results that ran or might have; what is not applicable names none."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for result in results:
        if "contract" in result:
            found.setdefault(result["contract"], []).append(result)
    return found
