"""The controlling process of a run: gathers results, prints tables, writes the report."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tightrope import blackbox
from tightrope.frozen import text
from tightrope.plugin import STATE
from tightrope.results import SCHEMA, keep

REWRITE = 5.0  # seconds between two writes of a growing report


class Controller:
    """Registered as a plugin in the process that talks to the user, with xdist or without."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.state = config.stash[STATE]
        self.results = self.state.results
        self.path = config.getoption("--tightrope-report")
        self.written = time.monotonic()
        self.trouble: OSError | None = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        if self.state.end is not None:
            node.workerinput["tightrope_end"] = self.state.end

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: Any, sched: Any) -> None:
        """A worker died: say which case it was running."""
        node = report.node
        case = blackbox.last(node.gateway.id, node.workerinput["testrunuid"])
        if case is None:
            return
        key = case.get("key") or _key(crashitem)
        message = case.get("error") or "the process died"
        data = {
            "key": key, "home": case.get("home", ""), "law": case.get("law", ""),
            "contract": case["contract"], "implementation": case["implementation"],
            "module": case["module"], "source": case["source"],
            "dtype": case["case"].get("dtype", ""), "outcome": "failed", "cases": 1,
            "failure": {
                "kind": "Crash", "message": message, "detail": {},
                "drawn": case.get("drawn", {"case": {"case": case["case"]}}),
            },
        }  # fmt: skip
        self.results[key] = data
        told = f"{message}\n  case = {case['case']}\n{keep(key, data)}"
        report.longrepr = f"{report.longrepr}\n{told}"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "setup" and report.skipped and "law" in report.keywords:
            self.results[_key(report.nodeid)] = {"outcome": "not applicable"}
        if report.when != "call":
            return
        for name, value in report.user_properties:
            if name == "tightrope":
                data = json.loads(str(value))
                self.results[data["key"]] = data
        if self.path and time.monotonic() - self.written > REWRITE:
            self.try_to_write()

    def prove_writable(self) -> None:
        """Raise UsageError at the start of a run whose report could not be written at its end."""
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

    def write(self) -> None:
        from tightrope.environment import environment

        report = {
            "schema": SCHEMA,
            "environment": environment(),
            "seconds": round(time.time() - self.state.started, 1),
            "results": self.results,
        }
        blackbox.write_atomically(Path(self.path), text(report, indent=1) + "\n")
        self.written = time.monotonic()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.results:
            from tightrope.tables import summary

            terminalreporter.section("tightrope")
            for line in summary(
                self.results,
                terminalreporter.isatty if hasattr(terminalreporter, "isatty") else False,
            ):
                terminalreporter.write_line(line)
        for name in self.state.lost:
            terminalreporter.write_line(f"not replayed, no such law or subject here: {name}")
        if self.path:
            trouble = f" could not be written: {self.trouble}" if self.trouble else ""
            terminalreporter.write_line(f"report: {self.path}{trouble}")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.path:
            self.try_to_write()
        ran = [r for r in self.results.values() if r["outcome"] in ("passed", "failed")]
        if session.exitstatus == 0 and self.trouble:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        elif session.exitstatus == 0 and self.results and not ran:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED  # out of time, or all n/a
        interpreted = any(r.get("device", "").startswith("Triton interpreter") for r in ran)
        need = self.config.getoption("--tightrope-require-gpu")
        if need and session.exitstatus == 0 and (interpreted or not ran):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _key(nodeid: str) -> str:
    path, _, name = nodeid.partition("::")
    return f"{Path(path).stem}::{name}"
