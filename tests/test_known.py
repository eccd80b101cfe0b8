"""Known failures: strict in both directions, and quarantine that shows."""

from __future__ import annotations

import json
import re

import pytest
from test_plugin import adapter, run

from tightrope.known import Known, read
from tightrope.oracles.rope import RopeCase

ENTRY = """
[[known]]
pattern = "{}"
reason = "the sign of sin"
issue = "acme#7"
"""
ORACLE = "test_oracle::test_matches_oracle[rope-acme-*]"
WORDS = ("-k", "matches_oracle or halving", "--examples=3")


def listed(tmp_path, *patterns, more=""):
    (tmp_path / "known.toml").write_text("".join(ENTRY.format(p) + more for p in patterns))
    return "--known=known.toml"


def test_a_known_failure_is_shown_and_does_not_fail_the_run(tmp_path):
    adapter(tmp_path, sign="-1")
    of_another_dtype = "test_oracle::test_matches_oracle[rope-acme-float16]"
    known = listed(tmp_path, ORACLE, of_another_dtype)
    done = run(tmp_path, *WORDS, known, "--dtype=float32", "--report=r.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 xfailed" in done.stdout
    assert re.search(r"matches oracle\s+│ known: float32", done.stdout)
    result = json.loads((tmp_path / "r.json").read_text())["results"][
        ORACLE.replace("*", "float32")
    ]
    assert (result["outcome"], result["known"]) == ("failed", "known: the sign of sin (acme#7)")


def test_one_that_holds_and_one_that_matches_nothing_are_errors(tmp_path):
    adapter(tmp_path)
    nothing = "test_oracle::test_matches_oracle[rope-acne-*]"
    done = run(tmp_path, *WORDS, "--workers=1", listed(tmp_path, ORACLE, nothing))
    assert done.returncode == 1
    assert re.search(
        r"known.toml, entry 1: .* is known to fail, and holds: take it out", done.stdout
    )
    assert f"known.toml, entry 2: {nothing!r} matches no law here" in done.stdout


def test_a_law_in_quarantine_is_not_run_but_counted_and_shown(tmp_path):
    adapter(tmp_path, extra="import os; os._exit(3)")
    known = listed(tmp_path, "*[rope-acme-float32]", more="quarantine = true\n")
    done = run(tmp_path, *WORDS, known, "--report=r.json")
    assert done.returncode == 5, done.stdout  # of nothing that ran, nothing is proved
    assert f"quarantined, not run: {ORACLE.replace('*', 'float32')}: the sign of sin" in done.stdout
    assert "2 quarantined" in done.stdout
    outcomes = [r["outcome"] for r in json.loads((tmp_path / "r.json").read_text())["results"].values()]  # noqa: E501  # fmt: skip
    assert outcomes == ["quarantined"] * 2


@pytest.mark.parametrize("field", ["head_dm = 192", 'head_dim = "192"'])
def test_a_case_in_quarantine_that_no_case_is_like_is_an_error(tmp_path, field):
    adapter(tmp_path)
    more = f"quarantine = true\ncase = {{ {field} }}\n"
    done = run(
        tmp_path, "-k", "matches_oracle", "--examples=2", listed(tmp_path, ORACLE, more=more)
    )
    assert done.returncode == 1, done.stdout
    assert "no case of rope has head_d" in done.stdout


def test_cases_in_quarantine_are_not_run_and_an_entry_without_a_law_alone_is_an_error(tmp_path):
    adapter(tmp_path, extra="import os; cos.dtype is torch.float16 and os._exit(3)")
    more = 'quarantine = true\ncase = { table_dtype = "float16" }\n'
    done = run(
        tmp_path, "-k", "matches_oracle", "--examples=30", listed(tmp_path, ORACLE, "x", more=more),
        "--report=r.json",
    )  # fmt: skip
    assert done.returncode == 1, done.stdout
    assert "1 passed" in done.stdout
    assert "known.toml, entry 2: 'x' matches no law here" in done.stdout
    assert re.search(r"quarantined, not run: [1-9]\d* cases of test_oracle::", done.stdout)
    result = next(iter(json.loads((tmp_path / "r.json").read_text())["results"].values()))
    assert "float16" not in result["covered"]["table_dtype"]
    assert sum(result["covered"]["table_dtype"].values()) == result["cases"] == 30


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[known]\n", "is not TOML"),
        ("[known]\na = 1\n", r"expected \[\[known\]\] entries only"),
        ("other = 1\n", "entries only, got other"),
        (ENTRY.format("x") + "note = 'x'\n", "entry 1: expected pattern, .*, got note"),
        (ENTRY.format(" "), "entry 1: pattern: expected some text"),
        (ENTRY.format("x") + ENTRY.format("y").replace("acme#7", ""), "entry 2: issue: expected"),
        (ENTRY.format("x") + "quarantine = 1\n", "expected quarantine = true or false"),
        (ENTRY.format("x") + "case = { tokens = 1 }\n", "expected beside quarantine = true only"),
        ("known = [1]\n", "entry 1: expected a table, got 1"),
    ],
)
def test_what_is_no_list_of_known_failures_is_refused(tmp_path, text, message):
    (tmp_path / "known.toml").write_text(text)
    with pytest.raises(ValueError, match=message):
        read(str(tmp_path / "known.toml"))


@pytest.mark.parametrize(
    ("word", "told"),
    [("--known=nowhere.toml", "nowhere.toml"), ("--shard=3/2", "--tightrope-shard")],
)
def test_a_missing_list_and_no_shard_are_wrong_usage(tmp_path, word, told):
    done = run(tmp_path, word)
    assert done.returncode == 4
    assert told in done.stdout + done.stderr


def test_only_the_asterisk_is_special(tmp_path):
    listed(tmp_path, "a::b[rope-x.y-*]")
    (entry,) = read(str(tmp_path / "known.toml"))
    assert entry.matches("a::b[rope-x.y-float16]")
    for other in ("a::b[rope-xzy-float16]", "a::b[rope-x.y-float16]s", "a::br", "a::b"):
        assert not entry.matches(other)
    known = Known((entry,), frozenset({"c"}))
    assert known.why("c") == "fails in the baseline too"
    assert known.why("d") is None


def test_quarantine_compares_fields_of_the_case(tmp_path):
    listed(tmp_path, "x", more="quarantine = true\ncase = { tokens = 3, inplace = false }\n")
    (entry,) = read(str(tmp_path / "known.toml"))
    assert entry.holds(RopeCase(tokens=3))
    assert not entry.holds(RopeCase(tokens=3, inplace=True))
    assert not entry.holds(RopeCase(tokens=4))
