"""A run held against an earlier one: each way of getting worse fails it, and luck does not."""

from __future__ import annotations

import copy
import json

import pytest
from test_plugin import ADAPTER, adapter, run

from tightrope.baseline import compare, read

KEY = "test_oracle::test_matches_oracle[rope-acme-float16]"


def result(outcome="passed", share=0.25, cases=100, **more):
    found = {
        "outcome": outcome, "law": "test_matches_oracle", "contract": "rope",
        "implementation": "acme", "dtype": "float16", "cases": cases, "device": "a GPU",
        "worst": {"q": {"share": share, "drawn": {}}}, "draws": "0a", "again": {"q": share},
        "covered": {"data": {"normal": cases}},
    }  # fmt: skip
    if outcome == "failed":
        found["failure"] = {"kind": "Violation", "message": "", "drawn": {}, "detail": {}}
    return found | more


CRASH = {"kind": "Crash", "message": "", "drawn": {}, "detail": {}}
BOTH, ONE = {"data": ["normal", "few_bits"]}, {"data": ["normal"]}
WIDE, FEW = {"tokens": [1, 4096]}, {"tokens": [1, 4095]}


def report(**results):
    return {"schema": 1, "status": "complete", "results": results}


def changed(was, now, growth=2.0, part=None):
    return [(c.what, c.worse) for c in compare(report(**was), report(**now), growth, part)]


@pytest.mark.parametrize(
    ("was", "now", "what"),
    [
        ({}, {"outcome": "failed"}, ("newly fails", True)),
        ({"outcome": "not run"}, {"outcome": "failed"}, ("newly fails", True)),
        ({}, {"outcome": "failed", "known": "known: x (y)"}, ("newly fails", False)),
        ({"outcome": "failed"}, {"outcome": "failed"}, ("still fails", False)),
        ({"outcome": "failed"}, {}, ("mended", False)),
        ({}, {"outcome": "not run"}, ("not run", True)),
        ({}, {"outcome": "quarantined"}, ("not run", True)),
        ({}, {"outcome": "not applicable"}, ("not run", True)),
        ({}, {"cases": 99}, ("fewer cases", True)),
        ({}, {"cases": 49, "out_of_time": True}, ("fewer cases", True)),
        ({}, {"device": "another"}, ("other device", True)),
        ({}, {"share": 0.6}, ("share grew", True)),
        ({"share": 0.0}, {"share": 0.1}, ("share grew", True)),
        ({}, {"share": 0.6, "draws": "0b"}, ("share grew", True)),  # on the baseline's case
        ({}, {"share": 0.1}, ("share fell", False)),
        ({}, {"share": 0.6, "draws": "0b", "again": {}}, ("not comparable", False)),
        ({"covered": {"data": {"normal": 60, "subnormal": 40}}}, {}, ("no longer covered", True)),
        ({"outcome": "failed"}, {"outcome": "failed", "failure": CRASH}, ("fails worse", True)),
        ({"limits": BOTH, "where": []}, {"limits": ONE, "where": []}, ("narrower limits", True)),
        ({"limits": WIDE, "where": []}, {"limits": FEW, "where": []}, ("narrower limits", True)),
        ({"limits": {}, "where": []}, {"limits": {}, "where": ["x"]}, ("narrower limits", True)),
    ],
)
def test_what_changed_is_told_and_what_is_worse_fails(was, now, what):
    assert changed({KEY: result(**was)}, {KEY: result(**now)}) == [what]


@pytest.mark.parametrize(
    "now",
    [
        {}, {"share": 0.5}, {"share": 0.125}, {"cases": 101}, {"cases": 50, "out_of_time": True},
        {"share": 0.9, "draws": "0b", "again": {"q": 0.25}},  # other cases: not like with like
    ],
)  # fmt: skip
def test_what_is_no_change_is_none(now):
    assert changed({KEY: result()}, {KEY: result(**now)}) == []


def test_a_law_that_is_gone_fails_and_a_new_one_does_not_unless_it_fails():
    assert changed({KEY: result()}, {}) == [("gone", True)]
    assert changed({}, {KEY: result()}) == [("new", False)]
    assert changed({}, {KEY: result("failed")}) == [("newly fails", True)]
    assert changed({KEY: {"outcome": "not applicable"}}, {}) == []


def test_only_the_shard_that_ran_is_compared():
    laws = {f"a::b[rope-x-{n}]": result() for n in range(8)}
    gone = [len(changed(laws, {}, part=(i, 2))) for i in (1, 2)]
    assert sum(gone) == 8
    assert all(gone)


def test_a_rare_value_may_be_missing_by_luck():
    was = {"covered": {"data": {"normal": 71, "subnormal": 29}}}  # 2 ** -29 is above 1e-9
    assert changed({KEY: result(**was)}, {KEY: result()}) == []
    was["covered"]["data"] = {"normal": 70, "subnormal": 30}
    assert changed({KEY: result(**was)}, {KEY: result()}) == [("no longer covered", True)]


def test_the_factor_counts():
    assert changed({KEY: result()}, {KEY: result(share=0.6)}, growth=3.0) == []


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda r: r.update(status="interrupted"), "of a run that was interrupted"),
        (lambda r: r.update(schema=0), "schema 0 instead of 1"),
        (lambda r: r.update(results={}), "no law that ran"),
        (lambda r: r["results"][KEY].pop("outcome"), "is not a tightrope report"),
    ],
)
def test_what_is_no_baseline_is_refused(tmp_path, edit, message):
    base = report(**{KEY: result()})
    edit(base)
    (tmp_path / "base.json").write_text(json.dumps(base))
    with pytest.raises(ValueError, match=message):
        read(str(tmp_path / "base.json"))


FINE = ADAPTER.replace(".float()", ".double()")  # rounds once: float32 spends more of the budget


def test_a_run_against_its_baseline(tmp_path):
    """Green with other seeds, red where a share grew under 1; what failed before is no news."""
    path, words = tmp_path / "acme_adapter.py", ("-k", "matches_oracle or halving")
    path.write_text(FINE.replace("SIGN", "1").replace("EXTRA", "pass"))
    assert run(tmp_path, *words, "--report=base.json", "--seed=1").returncode == 0
    same = run(
        tmp_path, *words, "--baseline=base.json", "--seed=2", "--workers=1", "--report=2.json"
    )
    assert same.returncode == 0, same.stdout
    assert "against the baseline base.json: nothing changed" in same.stdout
    adapter(tmp_path)
    grown = run(tmp_path, *words, "--baseline=base.json", "--seed=2", "--report=again.json")
    assert grown.returncode == 1, grown.stdout
    assert "2 passed" in grown.stdout
    assert "share grew" in grown.stdout
    base, second, again = (
        json.loads((tmp_path / f"{n}.json").read_text()) for n in ("base", "2", "again")
    )
    for key, r in again["results"].items():  # a seed is the same cases, on a worker too
        if r["outcome"] == "passed":
            assert r["draws"] == second["results"][key]["draws"] != base["results"][key]["draws"]
    failing = copy.deepcopy(base)
    oracle = failing["results"][KEY.replace("16", "32")]
    oracle |= {"outcome": "failed", "failure": result("failed")["failure"]}
    (tmp_path / "failing.json").write_text(json.dumps(failing))
    adapter(tmp_path, sign="-1")
    old = run(tmp_path, *words, "--baseline=failing.json")
    assert old.returncode == 0, old.stdout
    assert "still fails" in old.stdout
    assert "1 xfailed" in old.stdout
    kept = (tmp_path / "base.json").read_text()
    over = run(tmp_path, *words, "--baseline=base.json", "--report=base.json", "--workers=1")
    assert over.returncode == 4, over.stdout
    assert "is the baseline; expected another file" in over.stdout + over.stderr
    assert (tmp_path / "base.json").read_text() == kept


def test_on_ci_a_seed_counts_and_without_one_the_cases_are_fixed(tmp_path):
    """Hypothesis derandomizes on CI; whoever names a seed there wants that seed's cases."""
    adapter(tmp_path)

    def draws(*words):
        done = run(tmp_path, "-k", "halving", "--report=r.json", *words, CI="true")
        assert done.returncode == 0, done.stdout
        return [
            r["draws"] for r in json.loads((tmp_path / "r.json").read_text())["results"].values()
        ]

    first = draws("--seed=1")
    assert first == draws("--seed=1")
    assert not set(first) & set(draws("--seed=2"))
    assert draws() == draws()
    assert draws("--profile=nightly") != draws("--profile=nightly")
