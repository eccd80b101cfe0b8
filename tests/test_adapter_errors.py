"""Wrong adapters: each failure says where it is written, what the call is, expected and got."""

from __future__ import annotations

import re

import pytest
from test_plugin import tightrope

HEAD = """
import torch
from tightrope import implements

def rope(name, **limits):
    limits = {"inplace": (False,), **limits}
    return implements("rope", name=name, dtype=("float32",), interleaved=(False,),
                      where=("out_dtype=input",), num_kv_heads=(1,), **limits)

def kernel(q, k, block):
    return q.clone(), k.clone()
"""
CALL = (
    r"called as rope\(q, k, cos, sin, positions, \*, interleaved, inplace=False, out_dtype=None\)"
)
# name: (what the body returns, limits, what is told)
FAULTS = {
    "nothing": ("None", "", r"nothing returned None, expected 2: q, k \(in place too"),
    "one": ("q.clone()", "", "one returned one tensor, expected 2: q, k"),
    "three": ("[q.clone()] * 3", "", "three returned 3 tensors, expected 2: q, k"),
    "a-dict": ("{'q': q, 'k': k}", "", "a-dict returned dict, expected 2: q, k"),
    "half": ("q.clone(), None", "", r"half returned \(Tensor, None\), expected 2: q, k"),
    "shape": (
        "q.clone()[..., :1], k.clone()",
        "",
        r"q is float32\[\d+, 1, 1\], expected float32\[",
    ),
    "dtype": ("q.half(), k.clone()", "", r"q is float16\[.*\], expected float32\["),
    "integers": ("q.int(), k.int()", "", "q is a torch.strided tensor of int32 on cpu, expected a"),
    "device": ("q.to('meta'), k", "", "q is a .* tensor of float32 on meta, expected .* on cpu"),
    "alias": ("q.clone(), k[:]", "", r"k shares memory with an input \(k\), but .* not in place"),
    "swapped": ("k[:], q[:]", "", r"q shares memory with an input \(k\), but .* not in place"),
    "copies": ("q.clone(), k.clone()", "inplace=(True,)", "in place, q must be the argument q its"),
}
TOLD_BY_PYTHON = {
    "keyword": ("q, k", "inplace=(True,)", r"declare inplace=\(False,\) in @implements, or accept"),
    "raises": ("1 / 0", "", "ZeroDivisionError: division by zero"),
    "deeper": ("kernel(q, k)", "", r"TypeError: kernel\(\) missing 1 required .* 'block'"),
}


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """Name -> what a run tells of it; name -> the line of its decorator."""
    folder, text = tmp_path_factory.mktemp("faults"), HEAD
    for name, (returned, limits, _) in {**FAULTS, **TOLD_BY_PYTHON}.items():
        keyword = ", inplace=False" if name == "copies" else ""
        text += f"\n@rope('{name}', {limits})\n"
        text += (
            f"def f(q, k, cos, sin, positions, *, interleaved{keyword}):\n    return {returned}\n"
        )
    (folder / "faults.py").write_text(text)
    done = tightrope(
        folder, "run", "--impl=faults", "-k", "matches_oracle", "--examples=2", "--workers=0",
        "--no-shrink",
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    parts = re.split(r"test_matches_oracle does not hold for rope (\S+) \(float32\)", done.stdout)
    assert f"{len(FAULTS) + len(TOLD_BY_PYTHON)} failed" in done.stdout
    told = (part.partition("replay: ")[0] for part in parts[2::2])
    return dict(zip(parts[1::2], told, strict=True))


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_output_is_told_with_the_adapters_place_and_the_call(name, story):
    told = story[name]
    assert re.search(FAULTS[name][2], told), told
    assert re.search(rf"faults\.py:\d+: {CALL} -> q, k", told), told
    assert "case = RopeCase(" in told
    assert "Traceback" not in told


@pytest.mark.parametrize("name", TOLD_BY_PYTHON)
def test_what_python_refuses_is_told_from_the_adapter_on(name, story):
    told = story[name]
    assert re.search(TOLD_BY_PYTHON[name][2], told), told
    assert re.search(r'faults\.py(:\d+: called as rope\(|", line \d+, in f)', told), told
    assert len(told.splitlines()) < 20


def test_a_wrong_value_is_not_blamed_on_the_call(tmp_path):
    from tightrope.budget import Violation
    from tightrope.implementation import Implementation, placed

    impl = Implementation(contract_name="rope", name="x", fn=print, source="faults.py:3")
    assert placed("told", Violation("v", share=2.0, wrong=1), impl) == "told"
    assert placed("told", Violation("v", of_the_law=True), impl) == "told"
    assert placed("told", Violation("v"), impl).startswith("told\nfaults.py:3: called as rope(q, k")
    assert placed("at faults.py:3", Violation("v"), impl) == "at faults.py:3"
    assert placed("told", RuntimeError("v"), impl) == "told"
