"""Wrong rotations and wrong tables are rejected, each by a named law, by the derandomized `ci`
profile; the right rotation passes 500 random cases of each dtype.

The laws run as `tightrope run --impl=tests/wrong_rope.py --profile=ci` runs them, unshrunk.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LAWS = "matches_oracle or writes_its_outputs or in_place"  # the laws that are named for the kills


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wrong")
    return run(folder, "--profile=ci", "--no-shrink", "-k", f"not right and ({LAWS})")


def run(folder, *words, module="wrong_rope.py"):
    report = folder / "report.json"
    site = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": site, "TIGHTROPE_STATE": str(folder / "state")}
    env = {k: v for k, v in env.items() if not k.startswith("PYTEST_")}
    command = [
        sys.executable,
        "-m",
        "tightrope",
        "run",
        f"--impl={HERE / module}",
        f"--report={report}",
        *words,
    ]
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=3000, check=False
    )
    assert done.returncode in (0, 1), done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(report.read_text())["results"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_wrong_kernel_is_rejected_by_a_named_law(results, dtype):
    wrong = {r["implementation"] for r in results.values() if "implementation" in r}
    assert len(wrong) == 18
    found = [r for r in results.values() if r["outcome"] == "failed" and r["dtype"] == dtype]
    killers = {
        name: sorted(r["law"] for r in found if r["implementation"] == name)
        for name in wrong
    }  # fmt: skip
    survivors = [name for name, laws in killers.items() if not laws]
    assert not survivors, killers


def test_the_right_twin_passes_500_random_cases_of_each_dtype(tmp_path):
    results = run(tmp_path, "--examples=500", "-k", "right and matches_oracle")
    mine = [r for r in results.values() if r.get("implementation") == "right"]
    assert [r["outcome"] for r in mine] == ["passed", "passed"]
    assert all(r["cases"] == 500 for r in mine)


def test_every_wrong_table_is_rejected_and_the_right_one_is_not(tmp_path):
    words = ("--profile=ci", "--no-shrink", "-k", "matches_oracle")
    results = run(tmp_path, *words, module="wrong_rope_table.py")
    found = {r["implementation"]: r["outcome"] for r in results.values() if "implementation" in r}
    assert len(found) == 15
    assert found.pop("right") == "passed"
    assert set(found.values()) == {"failed"}, found
