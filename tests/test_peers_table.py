"""Edge cases of other people's kernels, what is told of each, and the page that shows it."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace

import pytest
import torch

from tightrope import edges
from tightrope.device import prepare
from tightrope.edge_cases import EDGES, LARGE, cases
from tightrope.edges import behaviour, probe_apart
from tightrope.implementation import Implementation
from tightrope.oracles.rope import RopeCase
from tightrope.peers_table import page, table
from tightrope.subjects import peers, under_test

CASE = RopeCase(tokens=2, num_heads=2, head_dim=16, rotary_dim=16, dtype="float32", seed=1)


@pytest.fixture(autouse=True)
def _prepared():
    prepare()


def test_peers_are_a_set_that_can_be_narrowed():
    reasons = peers()
    assert {"tightrope.impls.peer_torch", "tightrope.impls.peer_fla"} <= set(reasons)
    assert "flash" in (reasons["tightrope.impls.peer_flash_attn"] or "flash-attn is installed")
    found = under_test(["peers"])
    assert {i.module for i in found} == {m for m in reasons if any(i.module == m for i in found)}
    assert all(".peer_" in i.module for i in found)
    assert {i.name for i in under_test(["peers:torch-math"])} == {"torch-math"}
    with pytest.raises(LookupError, match=r"peers has no implementation 'nobody'; known: .*torch"):
        under_test(["peers:nobody"])


def test_every_edge_is_a_case_of_every_peer_and_one_is_plain():
    asked = set()
    for impl in (i for i in under_test(["peers"]) if i.contract_name in EDGES):
        found = dict(cases(impl))
        assert set(found) >= {"nothing special", *EDGES[impl.contract_name]} - {LARGE}
        assert len(set(map(repr, found.values()))) >= len(found) - 3  # not asked: None
        for case in found.values():
            if case is not None and impl.contract_name not in asked:
                impl.contract.inputs(case)
        asked.add(impl.contract_name)
        if "bottom_right" in impl.where:
            shown = [c for c in found.values() if c is not None]
            assert all(c.q_offset == c.seqlen_k - c.seqlen_q for c in shown)
    assert {"attention", "pope_attention", "rope"} >= asked - {"rope_table"} >= {"attention"}


def turned(q, k, cos, sin, positions, scale=1.0):
    c, s = cos[positions][:, None], sin[positions][:, None]
    outs = []
    for x in (q, k):
        a, b = x.chunk(2, -1)
        outs.append(torch.cat((a * c - b * s, b * c + a * s), -1) * scale)
    return outs


def outside(*tensors, interleaved):
    out = turned(*tensors)
    torch.as_strided(out[0].clone(), (1,), (1,), 40).fill_(1.0)
    return out


@pytest.mark.parametrize(
    ("kernel", "told"),
    [
        (lambda *t, interleaved: turned(*t), "right"),
        (lambda *t, interleaved: turned(*t, scale=2.0), "wrong: q["),
        (lambda *t, interleaved: turned(*t, scale=torch.nan), "wrong: q[0, 0, 0] = nan"),
        (lambda *t, interleaved: turned(*t)[:1], "wrong: x returned one tensor"),
        (lambda *t, interleaved: [x.half() for x in turned(*t)], "wrong: q is float16[2, 2, 16]"),
        (lambda *t, interleaved: t[:2], "memory: q shares memory with an input (q)"),
        (lambda *t, interleaved: 1 / 0, "refused: ZeroDivisionError: division by zero"),
        (
            lambda *t, **_: (_ for _ in ()).throw(TypeError("unexpected keyword argument 'x'")),
            "no option 'x'",
        ),
        (outside, "memory: guard band before input q was overwritten"),
    ],
)
def test_what_a_call_does_is_told_in_a_line(kernel, told):
    impl = Implementation(contract_name="rope", name="x", fn=kernel)
    found = behaviour(impl, CASE)
    assert found.startswith(told)
    assert "\n" not in found


def test_a_process_that_dies_or_hangs_keeps_what_it_had_found(tmp_path, monkeypatch):
    path = tmp_path / "fragile.py"
    path.write_text(
        "import os\nfrom tightrope import implements\n"
        "@implements('rope', name='fragile', inplace=(False,))\n"
        "def f(q, k, cos, sin, positions, *, interleaved):\n"
        "    return (q.clone(), k.clone()) if len(q) else os._exit(3)\n"
    )
    records = probe_apart(f"{path}:fragile")
    assert [r["edge"] for r in records] == ["nothing special", "after that"]
    assert records[-1]["behaviour"] == "died: the process ended with status 3"

    def late(*_, **__):
        raise subprocess.TimeoutExpired("x", 1, json.dumps(records[0]).encode() + b'\n{"contr')

    monkeypatch.setattr(edges.subprocess, "run", late)
    assert probe_apart("fragile")[:-1] == records[:1]
    assert "had not ended after" in probe_apart("fragile")[-1]["behaviour"]


def test_a_table_keeps_its_columns_whatever_is_in_a_cell():
    assert table(["a", "b"], [["x|y", "two\nlines"]]) == (
        "| a | b |\n| --- | --- |\n| x\\|y | two lines |\n"
    )


def test_the_page_shows_laws_edges_failures_and_what_is_absent():
    case = replace(CASE, tokens=3)
    law = {
        "law": "test_halving_is_exact", "contract": "rope", "implementation": "acme",
        "dtype": "float16", "cases": 7, "device": "a device", "outcome": "passed",
    }  # fmt: skip
    failure = {"message": "q[0] = 2", "drawn": {"case": {"case": vars(case)}}, "kind": "Violation"}
    report = {"results": {
        "a": law, "b": {**law, "implementation": "b", "outcome": "failed", "failure": failure},
        "c": {"outcome": "not applicable"},
    }}  # fmt: skip
    edge = {"contract": "rope", "implementation": "acme", "edge": "no token", "behaviour": "right"}
    told = "refused: ValueError: no"
    found = {
        "date": "2026-01-02", "environment": {"packages": {"torch": "1", "triton": "2"}},
        "missing": {"tightrope.impls.peer_x": "x: not here", "tightrope.impls.peer_y": None},
        "edges": [edge, {**edge, "edge": "one", "behaviour": told},
                  {**edge, "edge": "one", "implementation": "b", "behaviour": told}],
    }  # fmt: skip
    text = page(report, found)
    for part in (
        "a run of 2026-01-02 on a device (torch 1,\nTriton 2)",
        "| law | acme | b |", "| halving is exact | ok 7 | FAIL float16 |",
        "| edge case | acme | b |", "| no token | right |  |",
        "| one | refused [1] | refused [1] |", "1. refused: ValueError: no\n",
        "## The 1 failures", "### halving is exact: b (float16)",
        repr(case), "q[0] = 2", "- `peer_x`: x: not here",
    ):  # fmt: skip
        assert part in text, text
    assert "peer_y" not in text
