"""`tightrope report`: a report, or those of a run's shards, as Markdown, HTML page or JSON."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tightrope import page
from tightrope.page import Cell, Code, Fold, Section, Table, Text
from tightrope.profiles import GROWTH, growth

STEP_SUMMARY = 1000 << 10  # bytes; GitHub drops a step's summary of more than 1024 KiB
FAILURES = "Failures"
READ = "result, cases, share of informative ones, worst share of the budget"


def verb(verbs: Any) -> None:
    """Add the command to the command line's."""
    about = "a report, or those of a run's shards, as Markdown, HTML or one JSON"
    parser = verbs.add_parser("report", help=about, description=about.capitalize() + ".")
    parser.add_argument("files", nargs="+", metavar="REPORT.json", help="one, or a run's shards")
    parser.add_argument("--format", choices=tuple(WRITERS), default="markdown")
    parser.add_argument("--output", metavar="FILE", help="write there (default: standard output)")
    parser.add_argument("--baseline", metavar="FILE", help="show what changed since that report")
    parser.add_argument("--growth", type=growth, default=GROWTH, metavar="F")
    parser.set_defaults(do=do_report)


def do_report(options: argparse.Namespace) -> int:
    from tightrope.blackbox import write_atomically

    try:
        written = _written(options)
    except (AttributeError, LookupError, TypeError) as error:  # JSON, but not as a run writes it
        files, trouble = ", ".join(options.files), f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{files}: expected reports as `run` writes them, got {trouble}"
        ) from error
    if options.output:
        write_atomically(Path(options.output), written)
    else:
        sys.stdout.write(written)
    return 0


def _written(options: argparse.Namespace) -> str:
    from tightrope.report import load, together

    report = together([load(file) for file in options.files])
    changes = None
    if options.baseline:
        from tightrope.baseline import compare, read
        from tightrope.shard import shard

        one = report.get("run", {}).get("shard") if len(options.files) == 1 else None
        part = shard(one) if one else None
        changes = compare(read(options.baseline), report, options.growth, part)
    return WRITERS[options.format](report, options.files[0], changes)


def markdown(report: Mapping[str, Any], path: str, changes: list[Any] | None = None) -> str:
    """For a step's summary on GitHub, where the last failures are left out if it is too long.

    path: where the report is, for the commands that replay.
    """
    told = list(_failures(report, path))
    template = page.environment().get_template("report.md.jinja")
    while True:
        written = template.render(
            **_summary(report), changes=changes, failures=told,
            left_out=len(_failures(report, path)) - len(told),
        )  # fmt: skip
        if len(written.encode()) <= STEP_SUMMARY or not told:
            return written
        told = told[: len(told) * 3 // 4]


def html(report: Mapping[str, Any], path: str, changes: list[Any] | None = None) -> str:
    """One self-contained page."""
    summary = _summary(report)
    sections = []
    if changes is not None:
        rows = [[Cell(c.what, "bad" if c.worse else "dim"), c.where, c.was, c.now] for c in changes]
        sections.append(Section("Changes", [Table(("change", "where", "was", "is"), rows)]))
    for name, impls, rows in summary["matrices"]:
        cells = [[Cell(law), *(_cell(parts) for parts in row)] for law, row in rows]
        sections.append(Section(name, [Table(("law", *impls), cells, READ)]))
    folds = [
        Fold(f["key"], [Code(f["story"]), Text("Replay:"), Code(f["replay"])])
        for f in _failures(report, path)
    ]
    sections.append(Section(FAILURES, folds or [Text("None.")]))
    worst = [
        Fold(f"{w['share']}  {w['where']}", [Code(f"{w['case']}\n\n{w['terms']}")])
        for w in summary["worst"]
    ]
    sections.append(Section("Largest shares of the budget, of laws that hold", worst))
    sections.append(Section("Notes", [Text(note) for note in summary["notes"]]))
    return page.render("tightrope", sections, lead=summary["headline"], facts=summary["facts"])


def _cell(parts: list[tuple[str, str]]) -> Cell:
    kind = next((kind for kind, _ in parts if kind), "")
    link = FAILURES if kind == "bad" else ""
    return Cell(" ".join(text for _, text in parts), kind, link=link)


def _summary(report: Mapping[str, Any]) -> dict[str, Any]:
    """What both formats show."""
    from tightrope import report as data
    from tightrope.tables import cross, law_words, notes, pieces

    matrices = []
    for name, results in data.by_contract(report["results"].values()).items():
        impls, cells = cross(results)
        rows = [(law_words(law), [pieces(cells[law][i]) for i in impls]) for law in cells]
        matrices.append((name, impls, rows))
    worst = [
        {"share": f"{share:.3f}", "where": f"{key} {output}",
         "case": data.case_text(found["drawn"]), "terms": data.terms_text(
            found.get("terms", {}), report["results"][key].get("record"))}
        for share, key, output, found in data.tightest(report)
    ]  # fmt: skip
    return {
        "headline": data.headline(report), "facts": data.facts(report), "matrices": matrices,
        "worst": worst, "notes": notes(report["results"])[1:],
    }  # fmt: skip


def _failures(report: Mapping[str, Any], path: str) -> list[dict[str, str]]:
    """New failures first, then known ones."""
    from tightrope import report as data

    found = sorted(data.failures(report).items(), key=lambda item: bool(item[1].get("known")))
    return [
        {
            "key": key + (f" ({r['known']})" if r.get("known") else ""),
            "story": data.story(r),
            "replay": data.replay_command(path, key),
        }
        for key, r in found
    ]


def merged(report: Mapping[str, Any], path: str, changes: list[Any] | None = None) -> str:
    """The report as a run writes it: of several shards, one baseline."""
    from tightrope.frozen import text

    return text(report, indent=1) + "\n"


WRITERS = {"markdown": markdown, "html": html, "json": merged}
