"""What an implementation does to its process ends as a result of its own, and the run goes on."""

from __future__ import annotations

import json
import os
import random
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch
from misbehaving import ADAPTER
from test_core_attacks import _own_state, check, rotated  # noqa: F401
from test_plugin import tightrope

from tightrope.arena import MemoryFault
from tightrope.budget import Violation
from tightrope.device import run
from tightrope.fatal import DeviceLost, fatal
from tightrope.implementation import Implementation
from tightrope.memory_limit import MemoryLimit, fair, gibibytes
from tightrope.oracles.rope import CONTRACT, RopeCase
from tightrope.surroundings import GlobalState, kept

KNOWN = """
[[known]]
pattern = "*[rope-segfaults-*]"
reason = "reads address 0"
issue = "acme#9"
"""


def test_each_ends_as_its_own_result_and_the_run_goes_on(tmp_path):
    (tmp_path / "bad.py").write_text(ADAPTER)
    (tmp_path / "known.toml").write_text(KNOWN)
    done = tightrope(
        tmp_path, "run", "--impl=bad", "--examples=4", "--workers=2", "--memory-limit=1.5",
        "--report=r.json", "--known=known.toml", "-k", "matches_oracle",
        "--", "--junitxml=junit.xml",
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["status"] == "complete"
    assert not list(tmp_path.glob("running-*"))
    ended = {
        r["implementation"]: r.get("failure", {}).get("kind") for r in report["results"].values()
    }
    assert ended == {
        "right": None, "prints": None, "segfaults": "Crash",
        "leaks": "MemoryLimit", "asks": "MemoryLimit", "exits": "SystemExit",
        "interrupts": "Violation", "forks": None, "says_what_utf_8_cannot": "RuntimeError",
    }  # fmt: skip
    for r in report["results"].values():  # its case is known, and can be replayed
        assert r["outcome"] == "passed" or r["failure"]["drawn"]["case"]["case"]["tokens"] >= 1
    assert "5 failed, 3 passed, 1 xfailed" in done.stdout
    crash = report["results"]["test_oracle::test_matches_oracle[rope-segfaults-float32]"]
    assert crash["failure"]["message"] == "the process died of SIGSEGV"
    assert crash["known"] == "known: reads address 0 (acme#9)"
    junit = ET.parse(tmp_path / "junit.xml").getroot()
    told = [
        json.loads(p.get("value")) for p in junit.iter("property") if p.get("name") == "tightrope"
    ]
    alive = {"right", "prints", "exits", "interrupts", "forks", "says_what_utf_8_cannot"}
    assert {r["implementation"] for r in told} == alive
    broken = [e.text for e in junit.iter("error")]  # pytest writes no properties of a dead worker
    assert sum("replay: tightrope replay" in text for text in broken) == 2


def test_a_hang_that_lets_no_other_thread_run_is_a_hang_too(tmp_path):
    (tmp_path / "bad.py").write_text(
        ADAPTER.split("@kernel")[0] + "@kernel\ndef holds():\n    ctypes.PyDLL(None).sleep(1000)\n"
    )
    done = tightrope(
        tmp_path, "run", "--impl=bad", "--examples=1", "--workers=1", "--report=r.json",
        "-k", "matches_oracle", "--", "--timeout=2",
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    (result,) = json.loads((tmp_path / "r.json").read_text())["results"].values()
    assert result["failure"]["kind"] == "Hang"


STATES = {
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "default device": lambda: torch.set_default_device("meta"),
    "deterministic algorithms": lambda: torch.use_deterministic_algorithms(True),
    "recording of gradients": lambda: torch.set_grad_enabled(False),
    "precision of float32 products": lambda: torch.set_float32_matmul_precision("medium"),
    "number of threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "seed": lambda: torch.manual_seed(20261130),
    "handling of floating-point errors": lambda: np.seterr(over="raise"),
    "working directory": lambda: os.chdir("/"),
    "draws of a random generator: random": random.random,
    "draws of a random generator: numpy.random": np.random.standard_normal,
    "draws of a random generator: torch": lambda: torch.rand(1),
}


@pytest.mark.parametrize("name", STATES)
def test_what_a_kernel_changes_for_the_process_is_told_and_put_back(name):
    def changing(*tensors):
        outputs = rotated(*tensors)
        STATES[name]()
        return outputs

    with kept("the test"):  # not itself a change
        with pytest.raises(
            GlobalState, match=f"attack changed.*(?:torch's|NumPy's|the) {name}(?: |$)"
        ):
            check(changing)
        check(rotated)


def test_a_kernel_that_puts_back_what_it_changed_is_right():
    def tidy(*tensors):
        with torch.no_grad():
            return rotated(*tensors)

    check(tidy)


def test_state_is_put_back_after_an_error_which_is_told_itself():
    def failing(*_):
        torch.set_default_dtype(torch.float64)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        check(failing)
    assert torch.get_default_dtype() is torch.float32


@pytest.mark.parametrize(
    ("kernel", "kind", "told"),
    [
        (lambda q, k, *t: (q[..., 1:].clone(), k.clone()), Violation, "q is float16"),
        (lambda q, k, *t: (q, rotated(q, k, *t)[1]), MemoryFault, "shares memory with an input"),
        (
            lambda q, k, c, *t: (*rotated(q, k, c, *t), c.add_(1))[:2],
            MemoryFault,
            "cos was changed",
        ),
    ],
)
def test_garbage_is_told_apart(kernel, kind, told):
    with pytest.raises(kind, match=told):
        check(kernel)


def twice(kernel, others):
    """Two calls on cases of the same shapes, and so in the same memory, other numbers in both."""
    impl = Implementation(contract_name="rope", name="x", fn=lambda *t, **_: kernel(*t))
    for seed in (1, 2):
        case = RopeCase(tokens=3, head_dim=16, dtype="float32", seed=seed)
        inputs = CONTRACT.inputs(case)
        outputs = run(impl, case, inputs)
        right = run(Implementation(contract_name="rope", name="y", fn=lambda *t, **_: others(*t)),
                    case, inputs)  # fmt: skip
        if seed == 2:
            return outputs["q"].tobytes() == right["q"].tobytes()


def by_address(make):
    """`make`, called once for each address of its argument."""
    kept_for = {}

    def cached(x):
        return kept_for.setdefault((x.data_ptr(), x.shape), make(x))

    return cached


def test_what_is_kept_by_address_is_out_of_date_at_the_next_call():
    doubled = by_address(lambda x: torch.cat([x, x]))

    def stale(q, k, cos, sin, positions):
        return rotated(q, k, doubled(cos)[: len(cos)], sin, positions)

    assert twice(rotated, rotated)
    assert not twice(stale, rotated)


def test_the_result_of_an_earlier_call_is_told_as_such():
    results = {}

    def stale(q, *rest):
        if q.shape not in results:
            results[q.shape] = rotated(q, *rest)
        return results[q.shape]

    with pytest.raises(MemoryFault, match="q lies in the memory of an earlier call's result"):
        twice(stale, rotated)


def test_an_output_outside_the_arena_does_not_change_behind_our_back():
    out = [torch.cat([torch.zeros(3, 1, 16)]) for _ in range(2)]

    def reusing(*tensors):
        return [o.copy_(y) for o, y in zip(out, rotated(*tensors), strict=True)]

    impl = Implementation(contract_name="rope", name="x", fn=lambda *t, **_: reusing(*t))
    case = RopeCase(tokens=3, head_dim=16, dtype="float32")
    first = run(impl, case, CONTRACT.inputs(case))["q"]
    before = first.copy()
    other = RopeCase(tokens=3, head_dim=16, dtype="float32", seed=9)
    run(impl, other, CONTRACT.inputs(other))
    assert first.tobytes() == before.tobytes()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("CUDA error: device-side assert triggered\nmore"), DeviceLost),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), MemoryLimit),
        (MemoryError(), MemoryLimit),
        (ValueError("head_dim: expected 64, got 65"), type(None)),
    ],
)
def test_errors_that_a_process_does_not_survive(error, kind):
    end = fatal(error)
    assert type(end) is kind
    assert end is None or "\n" not in str(end)


def test_the_memory_of_a_machine_is_shared_by_its_workers():
    assert fair(2) < fair(1)
    assert fair(10**6) == 1.0
    with pytest.raises(ValueError, match="-1"):
        gibibytes("-1")
