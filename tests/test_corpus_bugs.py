"""Re-created public bugs are rejected, each by the law named for it; their right twins are not.

Every bug first meets the smallest case that gave it away (tests/corpus/bugs.json, written by
`python tests/corpus/record_bugs.py`), then what the derandomized `ci` profile draws.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from test_wrong_kernels import rejected, run

from tightrope.blackbox import write_atomically
from tightrope.subjects import load

HERE = Path(__file__).parent
RECORDS = HERE / "corpus" / "bugs.json"
FILES = sorted((HERE / "corpus").glob("bugs_*.py"))
for path in FILES:
    load(str(path))
BUGS = sys.modules["public_bugs"].BUGS
ADAPTERS = " ".join(f"corpus/{path.name}" for path in FILES)


def each_by_its_law(suffix: str = "") -> str:
    """What -k selects: every bug, or with a suffix every twin, under the bug's law."""
    return " or ".join(f"({bug.law} and -{name}{suffix}-)" for name, bug in BUGS.items())


def replayed(folder, records) -> str:
    """The last line of a replay of these records."""
    site = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    write_atomically(folder / "records.json", json.dumps(records))
    command = [sys.executable, "-m", "tightrope", "replay", str(folder / "records.json")]
    done = subprocess.run(
        [*command, *(f"--impl={path}" for path in FILES)], cwd=folder,
        env={**env, "PYTHONPATH": site}, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    return done.stdout.splitlines()[-1]


def test_every_bug_fails_on_its_smallest_case_and_its_twin_passes_on_it(tmp_path):
    known = json.loads(RECORDS.read_text())
    recorded = {r["implementation"]: r["law"] for r in known["results"].values()}
    assert recorded == {name: bug.law for name, bug in BUGS.items()}
    last = replayed(tmp_path, known)
    assert f"{len(BUGS)} failed" in last
    assert "passed" not in last
    twins = json.dumps(known)
    for name in sorted(BUGS, key=len, reverse=True):
        twins = twins.replace(f"-{name}-", f"-{name}_mended-")
        twins = twins.replace(f'"{name}"', f'"{name}_mended"')
    last = replayed(tmp_path, json.loads(twins))
    assert f"{len(BUGS)} passed" in last
    assert "failed" not in last


def test_every_bug_is_found_by_the_law_named_for_it_and_its_twin_is_not(tmp_path):
    words = ("--profile=ci", "--no-shrink")
    found = run(tmp_path, *words, "-k", each_by_its_law(), module=ADAPTERS).values()
    judged = [r for r in found if r.get("outcome") in ("passed", "failed")]
    assert {r["implementation"] for r in judged} == set(BUGS)
    assert not [f"{r['implementation']}: {r['law']}" for r in judged if not rejected(r)]
    few = (*words, "--examples=2")
    twins = run(tmp_path, *few, "-k", each_by_its_law("_mended"), module=ADAPTERS).values()
    outcomes = {r["implementation"]: r["outcome"] for r in twins if r.get("cases")}
    assert outcomes == {f"{name}_mended": "passed" for name in BUGS}
