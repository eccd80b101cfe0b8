"""Measure what isolation and reporting cost: `python tests/record_overhead.py FILE`.

The same derandomized cases of one bundled kernel run twice: as `tightrope run` does it (a worker
process, each case on disk before its launch, a report), and in one process without case file,
report and watched settings. User and system time of all processes, interleaved repeats; start-up is
what a run of one law takes, and is told apart. About five minutes on an idle core.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from tightrope.blackbox import write_atomically
from tightrope.environment import environment
from tightrope.frozen import text

REPEATS = 5
FEW, MANY = 2, 150  # examples a law: their difference is cases alone
LAWS = "matches_oracle or split or halving or norm or same_call"
BARE = """
import contextlib
from tightrope import blackbox, device
blackbox.record = blackbox.clear = blackbox.about = lambda *_, **__: None
device.kept = lambda _: contextlib.nullcontext()
device.prove_within = lambda: None
"""


def command(examples: int, isolated: bool, folder: Path) -> list[str]:
    words = [
        sys.executable, "-m", "pytest", "-p", "tightrope.plugin", "--pyargs",
        "tightrope.properties", "-q", "-p", "no:cacheprovider", "-k", f"({LAWS}) and bfloat16",
        "--tightrope-impl=tightrope.impls.rope:triton", "--tightrope-profile=ci",
        f"--tightrope-examples={examples}",
    ]  # fmt: skip
    if isolated:
        report = folder / "report.json"
        more = ["-n1", "--timeout=600", "--timeout-method=thread", "--tightrope-memory-limit=8"]
        return [*words, *more, f"--tightrope-report={report}"]
    return [*words, "-p", "bare", "-p", "no:timeout", "-p", "no:xdist"]


def seconds(examples: int, isolated: bool, folder: Path) -> float:
    """User and system time of one run and its children."""
    environ = {**os.environ, "TIGHTROPE_DEVICE": "cpu", "TIGHTROPE_STATE": str(folder / "state")}
    environ["PYTHONPATH"] = os.pathsep.join([str(folder), environ.get("PYTHONPATH", "")])
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = command(examples, isolated, folder)
    done = subprocess.run(
        words, env=environ, cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(folder: Path) -> dict[str, list[float]]:
    """Interleaved repeats: variant and examples -> seconds."""
    (folder / "bare.py").write_text(BARE)
    found: dict[str, list[float]] = {}
    for turn in range(REPEATS):
        for isolated in (turn % 2 == 0, turn % 2 == 1):
            for examples in (FEW, MANY):
                name = f"{'isolated' if isolated else 'bare'} {examples}"
                found.setdefault(name, []).append(round(seconds(examples, isolated, folder), 3))
                print(name, found[name][-1], flush=True)
    return found


def main(path: str) -> None:
    began = time.time()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder))
    medians = {name: statistics.median(times) for name, times in found.items()}
    cases = {v: medians[f"{v} {MANY}"] - medians[f"{v} {FEW}"] for v in ("bare", "isolated")}
    record = {
        "date": datetime.now(UTC).date().isoformat(), "environment": environment(),
        "laws": LAWS, "examples": [FEW, MANY], "seconds": found, "medians": medians,
        "overhead_of_cases": cases["isolated"] / cases["bare"] - 1,
        "overhead_of_whole_run": medians[f"isolated {MANY}"] / medians[f"bare {MANY}"] - 1,
        "took": round(time.time() - began),
    }  # fmt: skip
    write_atomically(Path(path), text(record, indent=1) + "\n")
    print(f"cases {record['overhead_of_cases']:.1%}, whole {record['overhead_of_whole_run']:.1%}")


if __name__ == "__main__":
    main(sys.argv[1])
