"""`tightrope audit rope|attention|pope|device`: how far each precision carries, in numbers.

What is common to all four: the command, progress, JSON, tables on the terminal and one HTML page.
What is measured is said in `tightrope.audit_<subject>`; page and tables are functions of the JSON.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from tightrope.blackbox import write_atomically

SUBJECTS = ("rope", "attention", "pope", "device")
Progress = Callable[[str, float], None]
Result = Mapping[str, Any]
FLAT = re.compile(r"\[\n([^\[\]{}\"]*)\]")


def add_command(verbs: Any) -> None:
    """The verb `audit` of a parser."""
    about = "how far each precision carries: positions, stages of attention, the device's functions"
    audit = verbs.add_parser("audit", help=about, description=about.capitalize() + ".")
    audit.set_defaults(do=do_audit)
    audit.add_argument("subject", choices=SUBJECTS, help="what to audit")
    audit.add_argument(
        "--impl", action="append", default=[], metavar="WHAT",
        help="rope: your own builder of tables (contract rope_table), as in `tightrope run`",
    )  # fmt: skip
    audit.add_argument(
        "--dtype", action="append", default=[], metavar="DTYPE",
        help="rope: only ways that use it; attention, pope: dtype of q, k, v; repeatable",
    )  # fmt: skip
    audit.add_argument(
        "--max-position", type=int, default=1 << 20, metavar="N",
        help="rope, pope: how far positions are scanned (default 2^20)",
    )  # fmt: skip
    audit.add_argument("--json", metavar="FILE", help="write everything; device: add to FILE")
    audit.add_argument("--html", metavar="FILE", help="write one page with pictures")
    audit.add_argument("--pictures", metavar="FOLDER", help="write each picture as SVG, two themes")
    audit.add_argument(
        "--from", dest="source", metavar="FILE", help="measure nothing, show an earlier --json"
    )
    audit.add_argument(
        "--probe", action="append", default=[], metavar="NAME", help="device: only these"
    )
    audit.add_argument(
        "--max-seconds", type=float, metavar="N", help="device: begin no probe after N seconds"
    )
    audit.add_argument("--device", choices=("cuda", "cpu"), help="where kernels and builders run")


def do_audit(options: argparse.Namespace) -> int:
    """Measure, or read; then show. 1 if a probe of a device failed, else 0.

    Raises ValueError for an option that the subject lacks, OSError for a file that cannot be
    written.
    """
    _check(options)
    module = import_module(f"tightrope.audit_{options.subject}")
    drawn = options.html or options.pictures
    page = import_module("tightrope.audit_page") if drawn else None
    if page:
        page.check()  # not after a minute of measuring
    if options.source:
        found: Result = _read(options.source, options.subject)
    else:
        with Bar(options.subject) as progress:
            found = module.audit(options, progress)
    show = import_module("tightrope.audit_tables").show
    try:
        if options.json and not options.source:
            keep(found, options.json)
    finally:  # what was measured is seen even where the disk is full
        show(found)
    if page and options.html:
        write_atomically(Path(options.html), page.page(found))
    if page and options.pictures:
        for name, text in page.files(found).items():
            write_atomically(Path(options.pictures) / name, text)
    failed = [r for records in found.get("records", {}).values() for r in records if "error" in r]
    return 1 if failed else 0


def keep(found: Result, path: str) -> None:
    """Write a result as JSON, lists of numbers on one line, the old or the new file whole."""
    text = json.dumps(found, indent=1)
    text = FLAT.sub(lambda list_: "[" + " ".join(list_[1].split()) + "]", text)
    write_atomically(Path(path), text + "\n")


ONLY = {
    "probe": ("device",), "max_seconds": ("device",), "impl": ("rope",),
    "dtype": ("rope", "attention", "pope"), "device": ("device", "rope"),
}  # fmt: skip


def _check(options: argparse.Namespace) -> None:
    for name, subjects in ONLY.items():
        if getattr(options, name) and options.subject not in subjects:
            word = name.replace("_", "-")
            raise ValueError(
                f"--{word}: expected with {', '.join(subjects)}, got {options.subject}"
            )
    if options.max_position < 1 or options.max_position > 1 << 30:
        raise ValueError(f"--max-position: expected 1 to 2^30, got {options.max_position}")


def _read(path: str, subject: str) -> Result:
    try:
        found: Result = json.loads(Path(path).read_text())
        actual = found["audit"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"--from: expected the --json of an audit, got {path}: {error!r}"
        ) from error
    if actual != subject:
        raise ValueError(f"--from: expected an audit of {subject}, got one of {actual}: {path}")
    return found


class Bar:
    """A bar on standard error where it is a terminal; a line a step elsewhere."""

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
        self._bar = Progress(*columns, console=Console(stderr=True))
        self._task = self._bar.add_task(title, total=1.0)
        self._live = sys.stderr.isatty()

    def __enter__(self) -> Progress:
        if self._live:
            self._bar.start()
        return self._step

    def _step(self, name: str, share: float) -> None:
        if self._live:
            self._bar.update(self._task, description=name, completed=share)
        else:
            print(f"{share:4.0%} {name}", file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._bar.stop()
