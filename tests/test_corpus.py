"""The regression store: the smallest case that gave each wrong rotation away, as JSON.

Every wrong kernel must still fail on its case, and every bundled kernel must pass on all of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tightrope.contract import contract
from tightrope.device import prepare
from tightrope.implementation import bundled
from tightrope.law import check_case
from tightrope.results import thaw
from tightrope.subjects import BUNDLED, under_test

HERE = Path(__file__).parent
CORPUS = HERE / "corpus" / "rope.json"
RECORDS = json.loads(CORPUS.read_text())["results"]


def test_every_wrong_kernel_still_fails_on_its_case(tmp_path):
    site = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": site}
    env = {k: v for k, v in env.items() if not k.startswith("PYTEST_")}
    wrong = f"--impl={HERE / 'wrong_rope.py'}"
    command = [sys.executable, "-m", "tightrope", "replay", str(CORPUS), wrong]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 1, done.stdout
    assert f"{len(RECORDS)} failed" in done.stdout
    assert "passed" not in done.stdout.splitlines()[-1]


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_every_bundled_kernel_passes_on_it(name):
    prepare()
    record = RECORDS[name]
    spec = contract(record["contract"])
    case = thaw(record["failure"]["drawn"]["case"], spec)
    fields = spec.to_json(case)
    checked = 0
    for impl in under_test([BUNDLED]):
        limits = impl.allowed() if impl.contract_name == spec.name else None
        if limits and all(limits.allows(f, fields[f]) for f in limits.given if f in fields):
            inputs = spec.inputs(case)
            check_case(impl, case, inputs, impl(case, inputs))
            checked += 1
    assert checked >= 2


def test_the_case_of_a_compilers_fault_passes():
    """On the GPU machine where it was met it fails again with a tile of 64 rows and 32 keys."""
    prepare()
    record = json.loads((HERE / "corpus" / "pope_attention.json").read_text())
    spec = contract(record["contract"])
    case = spec.from_json(record["case"])
    impl, inputs = bundled(spec.name, "triton"), spec.inputs(case)
    check_case(impl, case, inputs, impl(case, inputs))
