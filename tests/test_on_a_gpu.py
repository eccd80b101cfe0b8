"""What only a GPU can show: the interpreter's bits are the GPU's, and a lost device is survived."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tightrope.contract import contract
from tightrope.fatal import STICKY
from tightrope.subjects import under_test

ROOT = Path(__file__).parent.parent
gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="compares a GPU with the interpreter"
)
PARTNERS = {"rope": "tightrope.impls.rope:triton", "rope_table": "tightrope.impls.rope_table:exact"}
CASES = {"rope": 400, "rope_table": 100}

WILD = """
import torch, triton, triton.language as tl
from tightrope import implements
from tightrope.impls.rope_torch import rope

@triton.jit
def wild(x):
    tl.store(x + (1 << 44), 1.0)

@implements("rope", name="wild", dtype=("float32",), inplace=(False,), where=("out_dtype=input",))
def adapter(q, k, cos, sin, positions, *, interleaved):
    if q.shape[0] >= 3:
        wild[(1,)](q)
    return rope(q, k, cos, sin, positions, interleaved=interleaved)
"""


def cases(name, count):
    """The first derandomized cases of a contract: the same in every process."""
    from hypothesis import HealthCheck, given, settings

    spec, found = contract(name), []

    patient = {"deadline": None, "suppress_health_check": list(HealthCheck)}

    @settings(max_examples=count, derandomize=True, database=None, **patient)
    @given(spec.cases(spec.limits({"size": ("small",)} if "size" in spec.domain else {})))
    def collect(case):
        found.append(case)

    collect()
    return found


def bits(name, chosen):
    """Outputs of the bundled kernel as bytes, one entry a case."""
    impl = under_test([PARTNERS[name]])[0]
    found = [impl(case) for case in chosen]
    return [b"".join(np.ascontiguousarray(o[n]).tobytes() for n in sorted(o)) for o in found]


def main(name, folder):
    """The interpreter's side, in a process of its own."""
    from tightrope.device import prepare

    prepare("cpu")
    spec = contract(name)
    chosen = [spec.from_json(c) for c in json.loads((Path(folder) / "cases.json").read_text())]
    np.save(
        Path(folder) / "bits.npy", np.array(bits(name, chosen), dtype=object), allow_pickle=True
    )


@gpu
@pytest.mark.parametrize("name", ["rope", "rope_table"])
def test_the_interpreter_and_the_gpu_agree_bit_for_bit(name, tmp_path):
    chosen = cases(name, CASES[name])
    spec = contract(name)
    (tmp_path / "cases.json").write_text(json.dumps([spec.to_json(c) for c in chosen]))
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r}); "
        f"import test_on_a_gpu as t; t.main({name!r}, {str(tmp_path)!r})"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        env={**env, "TIGHTROPE_DEVICE": "cpu"},
        check=True,
        timeout=280,
    )
    theirs = np.load(tmp_path / "bits.npy", allow_pickle=True)
    ours = bits(name, chosen)
    different = [c for c, a, b in zip(chosen, ours, theirs, strict=True) if a != b]
    assert not different, f"{len(different)} of {len(chosen)} cases differ: {different[0]}"
    if name == "rope":
        assert {c.dtype for c in chosen} == {"float16", "bfloat16", "float32", "float64"}


@gpu
def test_an_illegal_access_is_told_with_its_case_and_the_worker_is_replaced(tmp_path):
    (tmp_path / "wild_adapter.py").write_text(WILD)
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    env["PYTHONPATH"] = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
    command = [
        sys.executable,
        "-m",
        "tightrope",
        "run",
        "--impl=wild_adapter",
        "--workers=1",
        "--require-gpu",
    ]
    words = ["--examples=60", "-k", "matches_oracle or halving"]
    done = subprocess.run(
        [*command, *words],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 1, done.stdout[-2000:]
    assert STICKY.search(done.stdout), done.stdout[-4000:]
    assert re.search(r"case = \{'tokens': ([3-9]|\d\d)", done.stdout)
    assert done.stdout.count("crashed while running") == 2  # the second law had a fresh worker
