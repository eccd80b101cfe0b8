"""Right kernels at the ends of what they may do are not rejected, and pairs are counted once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from counted_pairs import ENOUGH, counts
from test_wrong_kernels import run

HERE = Path(__file__).parent
STRESSED = "stressed_rope.py stressed_attention.py stressed_pope.py"


def test_kernels_whose_every_rounding_is_pushed_pass_and_spend_their_budget(tmp_path):
    words = ("--examples=4", "--seed=3", "--no-shrink", "-k", "matches_oracle and stressed_outward")
    found = run(tmp_path, *words, module=STRESSED)
    mine = [r for r in found.values() if r.get("cases")]
    assert {r["outcome"] for r in mine} == {"passed"}
    worst = {name: max(r["worst"].get(name, {"share": 0})["share"] for r in mine)
             for name in ("q", "out", "dq")}  # fmt: skip
    assert worst["q"] > 0.9
    assert min(worst.values()) > 0.05


def test_a_pair_counts_once_and_only_with_rows_enough(tmp_path):
    lines = [
        f"aa {ENOUGH} rope law triton",
        f"aa {ENOUGH} rope law triton",  # drawn twice
        f"aa {ENOUGH} rope law gptj",  # of another kernel: no new pair
        f"bb {ENOUGH - 1} rope law triton",
        f"cc {ENOUGH + 1} attention other triton",
        "dd 99 rope",  # a process was killed while it wrote
    ]
    (tmp_path / "1").write_text("\n".join(lines[:3]) + "\n")
    (tmp_path / "2").write_text("\n".join(lines[3:]))
    found = counts(tmp_path)
    assert found["pairs"] == 2
    assert found["calls with fewer rows"] == 1
    assert found["contract"] == {"attention": 1, "rope": 1}
    assert found["implementation"] == {"attention triton": 1, "rope gptj": 1, "rope triton": 1}


def test_laws_that_hold_are_noted_and_laws_that_do_not_are_alarms(tmp_path):
    site = os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    env |= {"PYTHONPATH": site, "TIGHTROPE_PAIRS": str(tmp_path / "pairs")}
    (tmp_path / "pairs").mkdir()
    command = [
        sys.executable, "-m", "tightrope", "run", f"--impl={HERE / 'wrong_rope.py'}:right",
        f"--impl={HERE / 'wrong_rope.py'}:sin_sign", "--device=cpu", "--workers=0", "--seed=1",
        "--examples=20", "--max-seconds=0", "--no-shrink", "-k", "matches_oracle and float16",
        f"--report={tmp_path / 'report.json'}", "--", "-p", "counted_pairs",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, check=False)
    assert done.returncode == 1
    found = counts(tmp_path / "pairs")
    assert 0 < found["pairs"] <= 20
    assert set(found["implementation"]) == {"rope right"}
    results = json.loads((tmp_path / "report.json").read_text())["results"].values()
    assert {r["implementation"]: r["outcome"] for r in results if r.get("cases")} == {
        "right": "passed", "sin_sign": "failed",
    }  # fmt: skip
