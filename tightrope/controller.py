"""The controlling process of a run: gathers results, prints tables, writes the report."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tightrope import blackbox
from tightrope.deaths import death, unfinished
from tightrope.frozen import text
from tightrope.interrupts import interrupt
from tightrope.plugin import STATE
from tightrope.results import REPLAY, SCHEMA, keep
from tightrope.selection import QUARANTINED, expected, skipped
from tightrope.session import patience

REWRITE = 5.0  # seconds between two writes of a growing report
RUN = ("profile", "examples", "max-seconds", "shard", "dtype")  # options that a report tells


class Controller:
    """Registered as a plugin in the process that talks to the user, with xdist or without."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.state = config.stash[STATE]
        self.results = self.state.results
        self.path = config.getoption("--tightrope-report")
        self.written = time.monotonic()
        self.trouble: OSError | None = None
        self.status = "running"
        self.unmatched: list[str] = []
        self.workers: list[tuple[str, str | None]] = []
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, interrupt)  # an end like Ctrl-C's, with a report

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        self.workers.append((node.gateway.id, node.workerinput["testrunuid"]))
        if self.state.end is not None:
            node.workerinput["tightrope_end"] = self.state.end

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        output = getattr(node, "workeroutput", None) or {}
        self.unmatched = output.get("tightrope_unmatched", self.unmatched)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: Any, sched: Any) -> None:
        """A worker died: say what of, and which case it was running."""
        if "[" not in crashitem:  # no law, but a test of the user's
            return
        data = death(_key(crashitem), report.node, patience(self.config))
        self.keep(data)
        lines = [report.longrepr, f"{data['failure']['kind']}: {data['failure']['message']}"]
        if data["failure"]["drawn"]:
            case = data["failure"]["drawn"]["case"]["case"]
            told = keep(data["key"], data)
            lines += [f"  case = {case}", told]
            if told.startswith(REPLAY):  # it is on disk
                blackbox.forget(report.node.gateway.id, report.node.workerinput["testrunuid"])
        report.longrepr = "\n".join(lines)
        report.user_properties = [("tightrope", text(data))]
        expected(self.state.known, data["key"], report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "setup" and report.skipped and "law" in report.keywords:
            why = skipped(report)
            quarantined = why.startswith(QUARANTINED)
            self.results[_key(report.nodeid)] = (
                {"outcome": "quarantined", "reason": why.removeprefix(QUARANTINED)}
                if quarantined
                else {"outcome": "not applicable"}
            )
        if report.when != "call":
            return
        for name, value in report.user_properties:
            if name == "tightrope":
                self.keep(json.loads(str(value)))
        if self.path and time.monotonic() - self.written > REWRITE:
            self.try_to_write()

    def keep(self, data: dict[str, Any]) -> None:
        """One law's result, and whether its failure was known beforehand."""
        why = self.state.known.why(data["key"])
        if why and data["outcome"] == "failed":
            data["known"] = why
        self.results[data["key"]] = data

    def prove_writable(self) -> None:
        """Raise UsageError at the start of a run whose report could not be written at its end."""
        base = self.config.getoption("--tightrope-baseline")
        if self.path and base and Path(self.path).resolve() == Path(base).resolve():
            raise pytest.UsageError(
                f"--tightrope-report={self.path}: is the baseline; expected another file"
            )
        if self.path:
            self.try_to_write()
        if self.trouble:
            raise pytest.UsageError(f"--tightrope-report={self.path}: {self.trouble}")

    def try_to_write(self) -> None:
        """Write the report; a full disk must not end the run, but is told at its end."""
        try:
            self.write()
            self.trouble = None
        except OSError as error:
            self.trouble = error

    def report(self) -> dict[str, Any]:
        from tightrope.environment import environment

        option = self.config.getoption
        run = {name: option(f"--tightrope-{name}") for name in RUN}
        run["shard"] = "/".join(map(str, self.state.part)) if self.state.part else None
        run["dtype"] = " ".join(run["dtype"]) or None
        if self.state.record:
            run["record"] = self.state.record.id
        run |= {"seed": option("hypothesis_seed", None), "select": option("keyword") or None}
        return {
            "schema": SCHEMA, "status": self.status, "run": run, "environment": environment(),
            "seconds": round(time.time() - self.state.started, 1), "results": self.results,
        }  # fmt: skip

    def write(self) -> None:
        blackbox.write_atomically(Path(self.path), text(self.report(), indent=1) + "\n")
        self.written = time.monotonic()

    def changes(self) -> list[Any]:
        """What changed since the baseline (tightrope.baseline.Change); nothing without one."""
        if not self.state.base:
            return []
        from tightrope.baseline import compare

        growth = self.config.getoption("--tightrope-growth")
        return compare(self.state.base, self.report(), growth, self.state.part)

    def stale(self) -> list[str]:
        """Entries of the list of known failures that match nothing here."""
        narrowed = self.config.getoption("--tightrope-dtype")
        return [] if narrowed else self.unmatched or self.state.known.unmatched

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.results:
            from tightrope.tables import shown, summary

            color = terminalreporter.isatty if hasattr(terminalreporter, "isatty") else False
            terminalreporter.section("tightrope")
            lines = summary(self.results, color)
            if self.state.base:
                from tightrope import baseline

                path, changes = self.config.getoption("--tightrope-baseline"), self.changes()
                lines += shown([baseline.table(changes, path)], color)
                lines += baseline.versions(self.state.base, self.report())
            for line in lines:
                terminalreporter.write_line(line)
        if self.state.record:
            terminalreporter.write_line(str(self.state.record))
        for name in self.state.lost:
            terminalreporter.write_line(f"not replayed, no such law or subject here: {name}")
        for told in self.stale():
            terminalreporter.write_line(told)
        if self.path:
            trouble = f" could not be written: {self.trouble}" if self.trouble else ""
            terminalreporter.write_line(f"report: {self.path}{trouble}")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        stopped = session.shouldfail or session.shouldstop or exitstatus in (2, 3)
        self.status = "interrupted" if stopped else "complete"
        if stopped:
            self.keep_unfinished()
            for name, run in self.processes():
                blackbox.forget(name, run)
        if self.path:
            self.try_to_write()
        if session.exitstatus == 0:
            session.exitstatus = self.verdict()

    def pytest_keyboard_interrupt(self) -> None:
        self.keep_unfinished()  # workers may end their law yet, unheard, and take their file away

    def processes(self) -> list[tuple[str, str | None]]:
        """(name, run) of those that run laws, as in the names of their files."""
        return self.workers or [("main", None)]

    def keep_unfinished(self) -> None:
        """What laws had counted that the end of the run cuts off."""
        for name, run in self.processes():
            data = unfinished(name, run)
            if data:
                self.results.setdefault(data["key"], data)

    def verdict(self) -> pytest.ExitCode:
        """The status of a run in which no test failed."""
        ran = [r for r in self.results.values() if r["outcome"] in ("passed", "failed")]
        interpreted = any(r.get("device", "").startswith("Triton interpreter") for r in ran)
        need = self.config.getoption("--tightrope-require-gpu")
        worse = any(change.worse for change in self.changes()) or self.stale()
        if self.trouble or worse:
            return pytest.ExitCode.TESTS_FAILED
        if self.results and not ran:
            return pytest.ExitCode.NO_TESTS_COLLECTED  # out of time, or all n/a
        wrong = need and (interpreted or not ran)
        return pytest.ExitCode.TESTS_FAILED if wrong else pytest.ExitCode.OK


def _key(nodeid: str) -> str:
    path, _, name = nodeid.partition("::")
    return f"{Path(path).stem}::{name}"
