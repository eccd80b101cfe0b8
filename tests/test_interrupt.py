"""Whatever ends a run leaves a report that can be read, with all that was found until then."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_core_attacks_runs import ENVIRONMENT
from test_plugin import adapter, run

from tightrope.baseline import read
from tightrope.report import complete, load
from tightrope.report_writer import markdown

SLOW = "import time; time.sleep(0.1)"


def started(tmp_path, workers):
    """A run that takes its time, once a law has begun."""
    adapter(tmp_path, extra=SLOW)
    command = [
        sys.executable, "-m", "tightrope", "run", "--impl=acme_adapter", f"--workers={workers}",
        "--examples=6", "--report=report.json",
    ]  # fmt: skip
    # a job in the background ignores SIGINT, and so would the child that inherits it
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen(
            command, cwd=tmp_path, env=ENVIRONMENT, stdout=out,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
    wait(lambda: running(tmp_path), process)
    return process


def running(tmp_path):
    return [p for p in tmp_path.glob(".tightrope/running-*") if p.stat().st_size]


def law_of(tmp_path):
    """The law that runs, or that ran last."""
    return json.loads(running(tmp_path)[0].read_text() or "{}").get("key")


def wait(ready, process, seconds=120):
    until = time.time() + seconds
    while time.time() < until and process.poll() is None and not ready():
        time.sleep(0.05)
    assert ready()


@pytest.mark.parametrize(("workers", "sent"), [(0, signal.SIGTERM), (1, signal.SIGINT)])
def test_a_signal_ends_the_run_with_a_report(tmp_path, workers, sent):
    process = started(tmp_path, workers)
    first = law_of(tmp_path)
    wait(lambda: law_of(tmp_path) != first, process)
    time.sleep(0.5)  # for the first law's report to reach the controller
    process.send_signal(sent)
    assert process.wait(60) == 2
    report = load(tmp_path / "report.json")
    assert report["status"] == "interrupted"
    assert not complete(report)
    assert any(r["outcome"] == "passed" for r in report["results"].values())
    cut = [r for r in report["results"].values() if r["outcome"] == "unfinished"]
    assert len(cut) == 1
    assert 0 <= cut[0]["cases"] < 6
    assert cut[0]["law"] in cut[0]["key"]
    assert f"unfinished: {cut[0]['dtype']} ({cut[0]['cases']})" in markdown(report, "report.json")
    assert not running(tmp_path)
    with pytest.raises(ValueError, match="interrupted"):
        read(str(tmp_path / "report.json"))


DEAF = """import os, signal, time
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
    except BaseException:
        pass"""


def test_a_signal_that_a_kernel_swallows_ends_the_run_all_the_same(tmp_path):
    adapter(tmp_path, extra=DEAF)
    done = run(tmp_path, "-k", "matches_oracle or halving", "--report=report.json")
    assert done.returncode == 2, done.stdout
    assert load(tmp_path / "report.json")["status"] == "interrupted"


def test_a_worker_that_is_killed_loses_its_own_case_only_and_tells_it(tmp_path):
    process = started(tmp_path, 1)
    (file,) = running(tmp_path)
    case = json.loads(file.read_text())
    os.kill(worker_of(process.pid, file), signal.SIGKILL)
    assert process.wait(200) == 1
    report = load(tmp_path / "report.json")
    assert report["status"] == "complete"
    failed = {k: r for k, r in report["results"].items() if r["outcome"] == "failed"}
    assert [r["failure"]["kind"] for r in failed.values()] == ["Crash"]
    assert "SIGKILL" in next(iter(failed.values()))["failure"]["message"]
    assert set(failed) == {case["key"]}
    ran = [r for r in report["results"].values() if r["outcome"] == "passed"]
    assert len(ran) == 14  # of 15 laws that apply to it


def worker_of(controller, file):
    """The process that holds a worker's record open."""
    for folder in Path("/proc").glob("[0-9]*/fd"):
        try:
            if str(file) in {os.readlink(link) for link in folder.iterdir()}:
                pid = int(folder.parent.name)
                assert pid != controller
                return pid
        except OSError:  # another's, or gone by now
            continue
    raise LookupError(file)
