"""Reports as Markdown and HTML: what a reader must find, whole, safe and within GitHub's limits."""

from __future__ import annotations

import json
import re
import shlex

import pytest
import yaml
from test_baseline import result
from test_page import EVIL, read
from test_plugin import ROOT

from tightrope.baseline import Change
from tightrope.cli import _parser, _split, main
from tightrope.report import facts, headline, load, tightest, together
from tightrope.report_writer import STEP_SUMMARY, html, markdown
from tightrope.results import failure_file

STORY = "q[0] = 1.5 (float16), exact value 1\n  6.1e-08  products | rounded to `float32`"
DRAWN = {"case": {"case": {"tokens": 3, "dtype": "float16"}}, "cuts": [1, 2]}


def failed(message=STORY, **more):
    failure = {"kind": "Violation", "message": message, "drawn": DRAWN, "detail": {}}
    return result("failed", failure=failure, **more)


def report(count=1, **more):
    results = {
        "a::test_norm[rope-acme-float16]": result(
            law="test_norm", informative=90, uninformative=10,
            worst={"q": {"share": 0.75, "drawn": DRAWN, "terms": {"sum rounded": 1e-7}}},
        ),
        "a::test_n[rope-acme-float16]": {"outcome": "not applicable"},
        "a::test_q[rope-acme-float16]": {"outcome": "quarantined", "reason": "hangs (acme#1)"},
        "a::test_k[rope-other-float32]": failed(
            law="test_k", implementation="other", dtype="float32", known="known: x (y)"
        ),
    }  # fmt: skip
    for n in range(count):
        results[f"a::test_matches_oracle_{n}[rope-acme-float16]"] = failed(
            law=f"test_matches_oracle_{n}"
        )
    environment = {"python": "3.11", "platform": "Linux", "packages": {"torch": "2.13", "x": None}}
    found = {"schema": 1, "status": "complete", "environment": environment, "seconds": 3,
             "run": {"profile": "ci", "seed": None}, "results": results}  # fmt: skip
    return found | more


def rows(text):
    """Cells of each row of each table of GitHub's Markdown."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]


def outside_fences(text):
    return re.sub(r"^(`{3,})text\n.*?^\1$", "", text, flags=re.S | re.M)


def test_both_formats_hold_what_a_reader_looks_for():
    for written in (markdown(report(), "r.json"), html(report(), "r.json")):
        for part in (
            "300 cases", "1 not applicable", "rope", "acme", "other", "matches oracle 0",
            "test_matches_oracle_0[rope-acme-float16]", "tokens=3, dtype=", "cuts: [1, 2]",
            "exact value 1", "products | rounded", "tightrope replay r.json --only=",
            "0.750", "hangs", "torch 2.13", "profile ci",
        ):  # fmt: skip
            assert part in written.replace("\\", "").replace("&#39;", "'"), part
    assert "sum rounded" in html(report(), "r.json")


def test_tables_of_markdown_are_whole_and_fences_closed():
    evil = report(environment={"python": EVIL, "platform": "a|b", "packages": {}})
    evil["results"]["a::x[rope-acme-float32]"] = failed(f"```\n{EVIL}", implementation="a|`*")
    changes = [Change("share grew", "k | x", "0.1", "0.9", True)]
    text = outside_fences(markdown(evil, "r.json", changes))
    assert not re.search(r"(?<!\\)<(?!/?(details|summary)>)", text)
    width = 0
    for row in rows(text):
        if set("".join(row)) <= set("-"):
            assert len(row) == width
        width = len(row)
    assert ["**share grew**", "k \\| x", "0.1", "0.9"] in [
        [c.strip() for c in r] for r in rows(text)
    ]
    assert "```" not in text


def test_a_summary_fits_githubs_limit_and_says_what_it_left_out():
    long = report(count=400)
    for r in long["results"].values():
        if r["outcome"] == "failed":
            r["failure"] = {**r["failure"], "message": "ä" * 3000}
    text = markdown(long, "r.json")
    assert STEP_SUMMARY // 2 < len(text.encode()) <= STEP_SUMMARY
    shown = text.count("<details><summary>a::")
    assert f"{401 - shown} more failures are in the report" in text


def test_the_page_is_well_formed_and_shows_changes():
    evil = report()
    evil["results"]["a::x[rope-acme-float32]"] = failed(EVIL, implementation=EVIL)
    page = html(evil, "r.json", [Change("gone", EVIL, "passed", "gone", True)])
    texts = read(page).texts
    assert ("code", f"case: tokens=3, dtype='float16'\ncuts: [1, 2]\n\nViolation: {EVIL}") in texts
    assert ("td", EVIL) in texts
    assert "<script" not in page
    assert '<td class="bad"><a href="#failures">FAIL float16</a>' in page


def test_new_failures_come_before_known_ones():
    keys = re.findall(r"<summary>(a::[^\s<]+)", markdown(report(), "r.json"))
    assert keys == ["a::test_matches_oracle_0[rope-acme-float16]", "a::test_k[rope-other-float32]"]


def test_the_largest_share_of_a_law_that_holds_comes_first():
    two = report()
    two["results"]["b::x[rope-acme-float16]"] = result(share="inf")
    assert tightest(two)[0][:2] == (float("inf"), "b::x[rope-acme-float16]")
    assert len(tightest(two, 1)) == 1


def test_an_interrupted_run_says_so():
    part = report(status="interrupted")
    assert "the run was interrupted" in headline(part)
    assert together([report(results={}), part])["status"] == "interrupted"
    assert facts(part)["run"] == "profile ci"


def test_the_command_writes_files_and_to_the_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.json").write_text(json.dumps(report()))
    (tmp_path / "b.json").write_text(json.dumps(report(count=0)))
    assert main(["report", "r.json", "--baseline=b.json"]) == 0
    assert "| **newly fails** |" in capsys.readouterr().out
    assert main(["report", "r.json", "--format=html", "--output=out/r.html"]) == 0
    read((tmp_path / "out/r.html").read_text())
    assert main(["report", "r.json", "--format=json", "--output=one.json"]) == 0
    assert load("one.json") == load("r.json")
    assert main(["report", "r.json", "r.json"]) == 4  # not two shards of one run
    assert main(["report", "nowhere.json"]) == 4
    assert main(["report", "r.json", "--format=pdf"]) == 4


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 2, "results": {}}',
                                  '{"schema": 1, "results": {"a": 1}}'])  # fmt: skip
def test_what_is_no_report_is_refused(tmp_path, text):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(ValueError, match="is not a tightrope report"):
        load(tmp_path / "r.json")


def commands(node):
    """Every string of a YAML tree that runs tightrope."""
    if isinstance(node, str):
        yield from re.findall(r"tightrope ((?:run|report) [^>|&]*)", node)
    elif isinstance(node, dict | list):
        for child in node.values() if isinstance(node, dict) else node:
            yield from commands(child)


def test_the_commands_of_the_recipes_are_understood():
    found = []
    for path in sorted((ROOT / "docs/ci").glob("*.yml")):
        text = path.read_text().replace("${{ matrix.shard }}", "1")
        found += commands(yaml.safe_load(text))
    assert len(found) == 8
    for command in found:
        ours, _ = _split(shlex.split(command))
        _parser().parse_args(ours)


@pytest.mark.parametrize("form", ["markdown", "html"])
@pytest.mark.parametrize(
    ("spoil", "trouble"),
    [
        (lambda data: next(iter(data["results"].values())).pop("law"), "KeyError: 'law'"),
        (lambda data: data.update(run=None), "AttributeError"),
        (lambda data: data.update(seconds="1"), "TypeError"),
    ],
)
def test_json_that_is_no_whole_report_is_refused_by_name(tmp_path, capsys, form, spoil, trouble):
    data, file = report(), tmp_path / "odd.json"
    spoil(data)
    file.write_text(json.dumps(data))
    assert main(["report", str(file), f"--format={form}"]) == 4
    told = capsys.readouterr().err
    assert f"{file}: expected reports as `run` writes them, got {trouble}" in told


def test_names_that_differ_in_punctuation_have_failure_files_of_their_own():
    assert failure_file("a::b[x-y]") != failure_file("a::b[x/y]")
