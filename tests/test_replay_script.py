"""The stand-alone script of a failure: red with the kernel that failed, green with a mended one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from test_plugin import ADAPTER

from tightrope import blackbox
from tightrope.arithmetic import Device
from tightrope.budget import Violation
from tightrope.cli import main
from tightrope.compare import budgets
from tightrope.contract import contract
from tightrope.device import current, prepare
from tightrope.formats import stored
from tightrope.frozen import freeze, text
from tightrope.implementation import _REGISTERED
from tightrope.law import check_case
from tightrope.oracles.attention import AttentionCase
from tightrope.oracles.rope import RopeCase
from tightrope.replay_script import device_of, right, write
from tightrope.subjects import under_test

ROPE = RopeCase(tokens=3, num_heads=2, head_dim=16, rotary_dim=8, layout_q="strided", seed=1)
ATTENTION = AttentionCase(
    batch=2, num_heads=4, num_kv_heads=2, seqlen_q=5, seqlen_k=7, causal=True, dtype="bfloat16",
    layout_v="view of k", seed=1,
)  # fmt: skip
FOREIGN = """
import torch
from tightrope import Arithmetic, implements
from tightrope.adapt import heads_first, seq_first

@implements("attention", name="foreign", returns=("out",), dtype=("bfloat16",),
            arithmetic=Arithmetic())
def attention(q, k, v, *, softmax_scale=None, causal, window_size=(None, None)):
    q, k, v = (heads_first(x) for x in map(seq_first, (q, k, v)))
    assert v.stride() == k.stride() and v.data_ptr() == k.data_ptr()
    t = q.float() @ k.repeat_interleave(2, 1).float().mT / 4
    t = t.masked_fill(torch.ones_like(t, dtype=torch.bool).triu(DIAGONAL), -torch.inf)
    return (torch.softmax(t, -1) @ v.repeat_interleave(2, 1).float()).to(q.dtype)
"""
ACME = ADAPTER.replace('("float32",)', '("float32", "float16")').replace("EXTRA", "pass")
ACME = ACME.replace('where=("out_dtype=input", "contiguous")', 'where=("out_dtype=input",)')
KINDS = {
    "rope": (ACME, ("SIGN", "-1", "1"), ROPE),
    "attention": (FOREIGN, ("DIAGONAL", "2", "1"), ATTENTION),
}


@pytest.fixture(autouse=True)
def _own_registry(tmp_path, monkeypatch):
    monkeypatch.setenv("TIGHTROPE_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(blackbox, "_descriptor", None)
    prepare()
    yield
    for key in [k for k, i in _REGISTERED.items() if str(tmp_path) in i.source]:
        del _REGISTERED[key]


def kernel(path, name, wrong):
    source, (word, bad, good), _ = KINDS[name]
    path.write_text(source.replace(word, bad if wrong else good))
    return path


def failure(path, name):
    """A report of what `test_matches_oracle` finds on one case of a wrong kernel."""
    case = KINDS[name][2]
    (impl,) = under_test([str(path)])
    inputs = impl.contract.inputs(case)
    with pytest.raises(Violation) as found:
        check_case(impl, case, inputs, impl(case, inputs))
    return {
        "law": "test_matches_oracle", "contract": name, "implementation": impl.name,
        "module": impl.module, "source": impl.source, "dtype": case.dtype, "outcome": "failed",
        "device": current().name,
        "failure": {
            "kind": "Violation", "message": str(found.value), "drawn": {"case": freeze(case)},
            "detail": found.value.detail,
        },
    }  # fmt: skip


def recorded(folder, *names):
    """A report with a failure of each kernel; their files' names are unlike any other test's."""
    results = {
        f"test_oracle::test_matches_oracle[{name}]": failure(
            kernel(folder / f"wrong_{name}_{folder.name}.py", name, True), name
        )
        for name in names
    }
    (folder / "report.json").write_text(text({"schema": 1, "results": results}))
    return folder / "report.json"


def reproduce(path, *words):
    """Run the script, and see that it loads nothing of tightrope, installed or not."""
    command = [sys.executable, "-X", "importtime", path.name, "--device=cpu", *words]
    done = subprocess.run(
        command, cwd=path.parent, capture_output=True, text=True, timeout=100, check=False
    )
    assert "numpy" in done.stderr
    assert not re.search(r"\|\s*tightrope", done.stderr), done.stderr
    return done


@pytest.mark.parametrize("name", KINDS)
def test_it_is_red_with_the_wrong_kernel_and_green_with_the_right_one(name, tmp_path):
    report = recorded(tmp_path, name)
    (path,) = write(report, "", tmp_path / "bug")
    red = reproduce(path)
    assert red.returncode == 1, red.stderr[-2000:]
    (result,) = json.loads(report.read_text())["results"].values()
    detail = result["failure"]["detail"]
    at = f"{detail['output']}{detail['index']} = {detail['actual']!r} "
    for part in (f"WRONG: {at}", f"exact value {detail['exact']}", repr(detail["bound"]),
                 f"{detail['wrong']} of {detail['size']} elements are wrong"):  # fmt: skip
        assert part in red.stdout, part
    assert type(KINDS[name][2]).__name__ in path.read_text().split('"""')[1]
    mended = kernel(tmp_path / "mended.py", name, False)
    green = reproduce(path, str(mended))
    assert green.returncode == 0, green.stdout + green.stderr[-2000:]
    assert "elements are right" in green.stdout


def test_several_failures_are_several_scripts_and_one_can_be_picked(tmp_path, capsys):
    report = recorded(tmp_path, *KINDS)
    assert main(["replay", str(report), f"--script={tmp_path / 'all'}"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in told] == ["python", "python"]
    assert len(list((tmp_path / "all").glob("*/inputs.npz"))) == 2
    assert len(list((tmp_path / "all").glob("*/adapt.py"))) == 1  # only one adapter needs it
    words = ["replay", str(report), f"--script={tmp_path / 'one'}", "--only=[rope]"]
    assert main(words) == 0
    assert sorted(p.name for p in (tmp_path / "one").iterdir()) == ["inputs.npz", "reproduce.py"]
    assert main([*words, "--only=nothing"]) == 4
    assert "records no failure whose name contains" in capsys.readouterr().err


@pytest.mark.parametrize("promise", [True, False])
def test_what_counts_as_right_is_what_the_budget_accepts(promise):
    """On every bfloat16 near the exact value, on either side of both ends."""
    (impl,) = under_test(["tightrope.impls.rope_torch:torch"])
    impl = impl if promise else replace(impl, arithmetic=None)
    case = replace(ROPE, dtype="bfloat16")
    (budget, _) = budgets(impl, case, contract("rope").inputs(case)).values()
    parts = right(budget)
    seen = set()
    for steps in range(-3, 4):
        around = budget.expected + steps * budget.format.ulp(budget.expected)
        out = stored(around, "bfloat16")
        accepted = budget.inside(out, 1.0) & budget.replayed(out)
        wide = out.astype(np.float64)
        assert np.array_equal(accepted, (parts["low"] <= wide) & (wide <= parts["high"]))
        seen |= set(accepted.ravel().tolist())
    assert seen == {False, True}


def test_a_promise_is_judged_on_the_device_that_was_recorded():
    assert device_of({"device": current().name}, {}) == current()
    h200 = device_of({"device": "NVIDIA H200"}, {"capability": "9.0"})
    assert h200 == Device("cuda", "NVIDIA H200", (9, 0))
    with pytest.raises(ValueError, match="does not say what NVIDIA H200 is capable of"):
        device_of({"device": "NVIDIA H200"}, {})
