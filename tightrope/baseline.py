"""A run held against an earlier one: what newly fails, spends more, or is no longer covered.

Like is compared with like. Cases differ between runs, so a law first runs the case on which the
baseline spent most of its budget, for each output, and shares are compared on that case. Worst
shares of whole runs are compared where both drew the same cases, as derandomized ones do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tightrope import ledger
from tightrope.frozen import freeze, text, thaw
from tightrope.narrowed import lost_by
from tightrope.record import of_report
from tightrope.report import RAN, Report, complete, facts, load
from tightrope.shard import inside

DEATHS = ("Crash", "Hang", "DeviceLost", "MemoryLimit")  # worse than a wrong value
CHANCE = 1e-9  # that a value covered as before is missing from a run by luck


@dataclass(frozen=True)
class Change:
    """One thing that changed. worse: whether it fails the run. Texts `was` and `now` say how."""

    what: str
    where: str
    was: str
    now: str
    worse: bool


def read(path: str) -> dict[str, Any]:
    """A report to be held against. Raises OSError, or ValueError for one of an unfinished run."""
    report = load(path)
    if not complete(report):
        raise ValueError(f"{path} is of a run that was interrupted: expected a complete one")
    if not any(r["outcome"] in RAN for r in report["results"].values()):
        raise ValueError(f"{path} records no law that ran")
    return report


def run_again(law: Any, impl: Any, was: Mapping[str, Any], book: ledger.Ledger) -> None:
    """Run the cases on which the baseline spent most; `book.again` gets their shares.

    A case in quarantine, outside of the implementation's limits, or not of this version's law is
    left out. Raises what the law raises: what it demands does not hold there any more.
    """
    cases: dict[str, tuple[Any, list[str]]] = {
        text(w["drawn"]): (w["drawn"], []) for w in was.get("worst", {}).values()
    }
    for output, worst in was.get("worst", {}).items():
        cases[text(worst["drawn"])][1].append(output)
    for recorded, outputs in cases.values():
        drawn = _thawed(law, impl, recorded)
        if drawn is None or any(entry.holds(drawn["case"]) for entry in book.quarantine):
            continue
        own = ledger.Ledger(key=book.key, home=book.home)
        token = ledger._open.set(own)
        try:
            law.run(impl, lambda _, label, drawn=drawn: drawn[label])
        except BaseException:
            book.failing = drawn
            raise
        finally:
            ledger._open.reset(token)
        book.again |= {o: own.worst[o][0] for o in outputs if o in own.worst}


def _thawed(law: Any, impl: Any, recorded: Mapping[str, Any]) -> dict[str, Any] | None:
    try:
        drawn = {label: thaw(value, impl.contract) for label, value in recorded.items()}
    except TypeError:  # a case of another version
        return None
    allowed, case = impl.allowed(), drawn.get("case")
    if set(drawn) != {"case", *law.drawn} or freeze(case) != recorded["case"]:
        return None
    fits = all(allowed.allows(name, getattr(case, name)) for name in impl.limits)
    return drawn if fits else None


def compare(base: Report, now: Report, growth: float, part: Any = None) -> list[Change]:
    """All changes, what fails the run first.

    growth: factor that a share may grow by. part: the shard that ran (tightrope.shard), of which
    alone the baseline is compared.
    """
    olds = {k: r for k, r in base["results"].items() if inside(k, part)}
    news, found = now["results"], []
    under = of_report(base), of_report(now)
    if under[0] != under[1]:
        old, new = (f"record {r}" if r else "no record" for r in under)
        found.append(Change("other record", "constants of the device", old, new, True))
    for key, was in olds.items():
        found += _law(key, was, news.get(key, {"outcome": "gone"}), growth)
    for key, result in news.items():
        if olds.get(key, {}).get("outcome") not in RAN and result["outcome"] in RAN:
            fails = result["outcome"] == "failed"
            what = "newly fails" if fails else "new"
            found.append(Change(what, key, "not there", _told(result), fails and not known(result)))
    held = [{k for k, r in side.items() if r["outcome"] == "passed"} for side in (olds, news)]
    both = sorted(held[0] & held[1])
    found += _uncovered([olds[k] for k in both], [news[k] for k in both])
    return sorted(found, key=lambda c: (not c.worse, c.what, c.where))


def known(result: Mapping[str, Any]) -> bool:
    return bool(result.get("known"))


def _told(result: Mapping[str, Any]) -> str:
    if result["outcome"] == "failed":
        return str(result["failure"]["kind"])
    return str(result["outcome"])


def _law(key: str, was: Mapping[str, Any], now: Mapping[str, Any], growth: float) -> list[Change]:
    """Changes of one law on one implementation and dtype."""
    if was["outcome"] not in RAN:
        return []
    if now["outcome"] not in RAN:
        what = "gone" if now["outcome"] == "gone" else "not run"
        return [Change(what, key, _told(was), _told(now), True)]
    if was.get("device") and now.get("device") and was["device"] != now["device"]:
        return [Change("other device", key, was["device"], now["device"], True)]
    if now["outcome"] == "failed":
        if was["outcome"] == "failed":
            worse = _kind(now) in DEATHS and _kind(was) not in DEATHS
            told = "fails worse" if worse else "still fails"
            return [Change(told, key, _told(was), _told(now), worse)]
        return [Change("newly fails", key, _told(was), _told(now), not known(now))]
    if was["outcome"] == "failed":
        return [Change("mended", key, _told(was), _told(now), False)]
    return [
        *_narrowed(key, was, now), *_cases(key, was, now, growth), *_shares(key, was, now, growth)
    ]  # fmt: skip


def _narrowed(key: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """Limits that leave out what the baseline's allowed, whatever was drawn."""
    return [
        Change("narrower limits", f"{key} {axis}", "allowed", lost, True)
        for axis, lost in lost_by(was, now)
    ]


def _kind(result: Mapping[str, Any]) -> str:
    return str((result.get("failure") or {}).get("kind", ""))


def _lost(old: list[Any], new: list[Any]) -> str:
    """What limits no longer allow: values, as text, or a range, of which both are the ends."""
    if all(isinstance(end, int) for end in (*old, *new)) and old and new:
        return "" if new[0] <= old[0] and old[1] <= new[1] else f"only {new[0]} to {new[1]}"
    gone = [v for v in old if v not in set(new)]
    return f"without {', '.join(gone[:4])}{', ...' if len(gone) > 4 else ''}" if gone else ""


def _cases(key: str, was: Mapping[str, Any], now: Mapping[str, Any], growth: float) -> list[Change]:
    """Fewer cases; where the clock ended a law they say how fast it was, so a factor is left."""
    timed = was.get("out_of_time") or now.get("out_of_time")
    if now["cases"] * (growth if timed else 1) < was["cases"]:
        return [Change("fewer cases", key, str(was["cases"]), str(now["cases"]), True)]
    return []


def _shares(
    key: str, was: Mapping[str, Any], now: Mapping[str, Any], growth: float
) -> list[Change]:
    """Shares on the baseline's worst case, or of whole runs that drew the same cases."""
    same = was.get("draws") is not None and was.get("draws") == now.get("draws")
    found = []
    for output, worst in was.get("worst", {}).items():
        old, new = float(worst["share"]), now.get("again", {}).get(output)
        if same and output in now.get("worst", {}):
            new = max(float(now["worst"][output]["share"]), float(new or 0.0))
        if new is None:
            found.append(Change("not comparable", f"{key} {output}", f"{old:.3g}", "-", False))
        elif float(new) > growth * old:
            change = f"{old:.3g}", f"{float(new):.3g}"
            found.append(Change("share grew", f"{key} {output}", *change, True))
        elif float(new) * growth < old:
            change = f"{old:.3g}", f"{float(new):.3g}"
            found.append(Change("share fell", f"{key} {output}", *change, False))
    return found


def _uncovered(olds: list[Any], news: list[Any]) -> list[Change]:
    """Values that an implementation was run on and now is not, beyond what chance can do.

    olds, news: results of the same laws, which hold in both runs.

    If both runs draw alike, all c cases with a value fall into the first of them with a chance of
    at most (n / (n + m)) ** c, n and m being the numbers of cases of the two.
    """
    found = []
    before, after = _seen(olds), _seen(news)
    for (contract, impl, axis), values in before.items():
        counts = after.get((contract, impl, axis), {})
        n, m = sum(values.values()), sum(counts.values())
        for value, count in values.items():
            if m and value not in counts and (n / (n + m)) ** count < CHANCE:
                where = f"{contract} {impl}: {axis}={value}"
                found.append(Change("no longer covered", where, f"{count} cases", "none", True))
    return found


def _seen(results: list[Any]) -> dict[tuple[str, str, str], dict[str, int]]:
    """(contract, implementation, axis) -> value -> cases."""
    found: dict[tuple[str, str, str], dict[str, int]] = {}
    for r in results:
        for axis, values in r.get("covered", {}).items():
            total = found.setdefault((r["contract"], r["implementation"], axis), {})
            for value, count in values.items():
                total[value] = total.get(value, 0) + count
    return found


def versions(base: Report, now: Report) -> list[str]:
    """What the two runs do not share: a line each."""
    old, new = facts(base), facts(now)
    return [
        f"{name}: {old.get(name, '-')} -> {new.get(name, '-')}"
        for name in dict.fromkeys([*old, *new])
        if name not in ("seconds",) and old.get(name) != new.get(name)
    ]


def table(changes: list[Change], base: str) -> Any:
    """A rich table of what changed, or a line if nothing did; what fails the run is red."""
    if not changes:
        return f"against the baseline {base}: nothing changed"
    from rich.markup import escape
    from rich.table import Table

    made = Table(title=f"against the baseline {escape(base)}", title_justify="left")
    for column in ("change", "where", "was", "is"):
        made.add_column(column, overflow="fold")
    for c in changes:
        style = "bold red" if c.worse else "dim"
        made.add_row(f"[{style}]{c.what}[/{style}]", *map(escape, (c.where, c.was, c.now)))
    return made
