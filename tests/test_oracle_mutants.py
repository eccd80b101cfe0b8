"""Breaking one oracle is noticed by its own tests: a few edits here, all that were tried in
docs/measurements (`python tests/record_oracle_mutants.py FILE`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from oracle_mutants import LAYERS, TESTS, mutants

from tightrope.contract import names

HERE = Path(__file__).parent
# ring_attention's three layers are those of attention; the others' own tests come with them
GRADIENTS = ("pope_attention_backward", "attention_varlen_backward", "ring_attention_backward")
ELSEWHERE = {"ring_attention", *GRADIENTS}


def test_every_contract_has_three_layers_to_edit():
    assert set(names()) - ELSEWHERE == set(LAYERS) == set(TESTS)
    found = {(m.contract, m.layer) for m in mutants()}
    assert found == {(c, layer) for c in LAYERS for layer in ("float64", "arb", "mpmath")}


def test_one_edit_of_every_contract_is_noticed(tmp_path):
    site = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    command = [sys.executable, str(HERE / "record_oracle_mutants.py"), str(tmp_path / "f"), "few"]
    done = subprocess.run(
        command, env={**env, "PYTHONPATH": site}, cwd=tmp_path, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((tmp_path / "f").read_text())
    assert record["edits"] == len(LAYERS)
    assert record["not noticed"] == []
