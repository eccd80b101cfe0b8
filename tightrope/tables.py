"""The end of a run as tables: law x implementation, and what was covered."""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from tightrope.contract import contract
from tightrope.limits import describe
from tightrope.report import by_contract

Results = Mapping[str, Mapping[str, Any]]


def summary(results: Results, color: bool) -> list[str]:
    """Lines to print: one matrix a contract, then the grid of what was and was not covered."""
    found: list[Any] = []
    for name, mine in by_contract(results.values()).items():
        found += [matrix(name, mine), grid(name, mine)]
    return shown([*found, *notes(results)], color)


def shown(things: Iterable[Any], color: bool) -> list[str]:
    """What rich prints of tables and plain lines."""
    from rich.console import Console

    buffer = io.StringIO()
    console = Console(
        file=buffer, width=120, force_terminal=color, no_color=not color, highlight=False
    )
    for thing in things:
        console.print(thing, markup=not isinstance(thing, str))
    return buffer.getvalue().splitlines()


STYLES = {"good": "green", "bad": "bold red", "warn": "yellow", "dim": "dim"}
Cells = Mapping[str, Mapping[str, list[Mapping[str, Any]]]]


def matrix(name: str, results: list[Mapping[str, Any]]) -> Any:
    """Law x implementation: result, cases, informative share, worst share of the budget."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        title=f"{name}: result, cases, informative, worst share of budget", title_justify="left"
    )
    table.add_column("law", overflow="fold")
    impls, cells = cross(results)
    for impl in impls:
        table.add_column(escape(impl) + ("*" if _stranger(results, impl) else ""))
    for law in cells:
        table.add_row(law_words(law), *(cell(cells[law][i]) for i in impls))
    return table


def cross(results: Iterable[Mapping[str, Any]]) -> tuple[list[str], Cells]:
    """Implementations in order, and law -> implementation -> results, all dtypes of it."""
    cells: dict[str, dict[str, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    impls: dict[str, None] = {}
    for r in results:
        cells[r["law"]][r["implementation"]].append(r)
        impls[r["implementation"]] = None
    return list(impls), cells


def law_words(law: str) -> str:
    return law.removeprefix("test_").replace("_", " ")


def _stranger(results: Iterable[Mapping[str, Any]], impl: str) -> bool:
    return any(r.get("stranger") for r in results if r["implementation"] == impl)


def cell(results: list[Mapping[str, Any]]) -> str:
    """One cell in rich's markup."""
    styled = ((STYLES.get(kind), text) for kind, text in pieces(results))
    return " ".join(f"[{style}]{text}[/{style}]" if style else text for style, text in styled)


UNFINISHED = "unfinished"


def pieces(results: list[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(kind, text) pieces of a cell, all dtypes of one law on one implementation.

    kind: good, bad, warn, dim or nothing.
    """
    if not results:
        return [("dim", "n/a")]
    failed = [r for r in results if r["outcome"] == "failed"]
    known = [r["dtype"] for r in failed if r.get("known")]
    told = [("warn", f"known: {', '.join(known)}")] if known else []
    if len(known) < len(failed):
        named = [kinds(r) for r in failed if not r.get("known")]
        return [("bad", "FAIL"), ("", ", ".join(named)), *told]
    held = [r for r in results if r["outcome"] not in ("failed", UNFINISHED)]
    cut = [f"{r['dtype']} ({r['cases']})" for r in results if r["outcome"] == UNFINISHED]
    told += [("warn", f"unfinished: {', '.join(cut)}")] if cut else []
    if not any(r["cases"] for r in held):
        return told or [("warn", "not run")]
    judged = [(r.get("informative", 0), r.get("uninformative", 0)) for r in held]
    informative, uninformative = sum(a for a, _ in judged), sum(b for _, b in judged)
    shares = [float(w["share"]) for r in held for w in r.get("worst", {}).values()]
    text = f"{sum(r['cases'] for r in held)}"
    if informative + uninformative:
        text += f" {informative / (informative + uninformative):.0%}"
    if shares:
        text += f" {max(shares):.2f}"
    missed = [r["dtype"] for r in held if not r["cases"]]
    told += [("warn", f"not run: {', '.join(missed)}")] if missed else []
    return [("good", "ok"), ("", text), *told]


def kinds(result: Mapping[str, Any]) -> str:
    """A failed result's dtype, and what ended it if that was no wrong value."""
    kind = result.get("failure", {}).get("kind", "")
    return result["dtype"] + (f" ({kind})" if kind in ENDED else "")


ENDED = ("Crash", "DeviceLost", "Hang", "MemoryLimit", "GlobalState")


def grid(name: str, results: list[Mapping[str, Any]]) -> Any:
    """For each axis of the contract's cases: what each implementation was and was not run on."""
    from rich.markup import escape
    from rich.table import Table

    spec = contract(name)
    table = Table(title=f"{name}: covered (cases) / not covered", title_justify="left")
    table.add_column("axis")
    impls = list(dict.fromkeys(r["implementation"] for r in results))
    for impl in impls:
        table.add_column(escape(impl), overflow="fold")
    for axis in spec.axes:
        table.add_row(
            axis,
            *(
                _coverage(spec, axis, [r for r in results if r["implementation"] == i])
                for i in impls
            ),
        )
    return table


def _coverage(spec: Any, axis: str, results: list[Mapping[str, Any]]) -> str:
    seen: Counter[str] = Counter()
    for r in results:
        seen.update(r.get("covered", {}).get(axis, {}))
    domain = spec.domain.get(axis, ())
    if isinstance(domain, range):
        values = sorted(int(v) for v in seen)
        return (
            f"{values[0]}..{values[-1]} ({len(values)} values) of {describe(domain)}"
            if values
            else "-"
        )
    missing = [str(v) for v in domain if str(v) not in seen]
    text = " ".join(f"{v}:{n}" for v, n in sorted(seen.items(), key=lambda item: item[0]))
    return text + (f" [yellow]not: {', '.join(missing)}[/yellow]" if missing else "")


def not_applicable(results: Results) -> list[str]:
    """A line for each contract and implementation: laws that its limits or outputs leave out.

    Such results carry their key alone, LAWS::LAW[CONTRACT-IMPLEMENTATION-DTYPE].
    """
    left: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    ran = {(r["law"], r["contract"], r["implementation"]) for r in results.values() if "law" in r}
    for key, r in results.items():
        if r["outcome"] == "not applicable":
            law, _, subject = key.rpartition("::")[2].removesuffix("]").partition("[")
            name, _, rest = subject.partition("-")
            impl, _, dtype = rest.rpartition("-")
            left[name, impl][law].append(dtype)
    lines = []
    for (name, impl), laws in left.items():
        words = [
            law_words(law) + (f" ({', '.join(dtypes)})" if (law, name, impl) in ran else "")
            for law, dtypes in laws.items()
        ]
        lines.append(f"{name}: not applicable to {impl}: {', '.join(words)}")
    return lines


def quarantined(results: Results) -> list[str]:
    """A line for each law, and for each law's cases, that is kept from running."""
    lines = []
    for key, r in results.items():
        if r["outcome"] == "quarantined":
            lines.append(f"quarantined, not run: {key}: {r['reason']}")
        elif r.get("quarantined"):
            lines.append(f"quarantined, not run: {r['quarantined']} cases of {key}")
    return lines


def notes(results: Results) -> list[str]:
    """What a reader must know to read the tables."""
    counts = Counter(r["outcome"] for r in results.values())
    cases = sum(r.get("cases", 0) for r in results.values())
    compiles = max((r.get("compiles", 0) for r in results.values()), default=0)
    lines = [
        f"{cases} cases; laws: " + ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items()))
        + (f"; at most {compiles} kernels compiled in one process" if compiles else "")
    ]  # fmt: skip
    lines += not_applicable(results)
    lines += quarantined(results)
    if any(r.get("stranger") for r in results.values()):
        lines.append(
            "* promises no arithmetic: held to the worst case of an honest float32 kernel only"
        )
    if any(r.get("out_of_time") for r in results.values()):
        lines.append(
            "some laws stopped when their share of --max-seconds was spent (0 lifts the limit)"
        )
    if any(str(r.get("device", "")).startswith("Triton interpreter") for r in results.values()):
        from tightrope.environment import INTERPRETED

        lines.append(INTERPRETED)
    return lines
