"""The suite finds mutants: one of every family of every kernel here, all of them in a recorded run.

tests/corpus/kills.json has the law that killed each mutant last. It is tried first; if it lets the
mutant pass, all others are.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tightrope import cli, mutants, power, power_command, power_found
from tightrope.device import prepare
from tightrope.mutants import Mutant, every

CORPUS = Path(__file__).parent / "corpus" / "kills.json"
KILLABLE = [m for m in every() if not m.equivalent and not m.needs and not m.hole]
CHEAP = "query_scale:shift_dropped"
QUICK = 12  # cases; a mutant that takes more is left to the recorded run
# Every mutant of a ring starts processes of its own: so many families are enough here.
FAMILIES = {"ring_attention": 4, "ring_attention_backward": 3}


def representatives(kernel, known):
    """Of each family of a kernel the first mutant that died within QUICK cases, or the soonest."""
    families: dict[str, list[Mutant]] = {}
    for mutant in KILLABLE:
        if mutant.kernel == kernel:
            families.setdefault(mutant.family, []).append(mutant)
    cases = {m.id: known.get(m.id, {}).get("cases", 0) for m in KILLABLE}
    return [
        next((m for m in mine if cases[m.id] <= QUICK), min(mine, key=lambda m: cases[m.id]))
        for mine in families.values()
    ][: FAMILIES.get(kernel)]


@pytest.mark.parametrize("kernel", sorted({m.kernel for m in KILLABLE}))
def test_a_mutant_of_every_family_dies(kernel, tmp_path):
    prepare()
    known = power_command.read_kills(str(CORPUS))
    found = [power.hunted(m, tmp_path, known) for m in representatives(kernel, known)]
    assert {each.mutant: each.outcome for each in found if each.outcome != "killed"} == {}


@pytest.mark.parametrize("mutant", [m for m in every() if m.equivalent], ids=lambda m: m.id)
def test_what_is_called_equivalent_passes_the_main_law(mutant, tmp_path):
    prepare()
    found = power.pairs(mutants.made(mutant, tmp_path), mutant.dtypes)
    main = [(law, impl) for law, impl in found if law.name == power.MAIN]
    assert {power.trial(law, impl, examples=6).outcome for law, impl in main} == {"passed"}


def test_a_recorded_kill_stands_for_every_mutant_that_can_die_here():
    assert set(power_command.read_kills(str(CORPUS))) == {m.id for m in KILLABLE}


def test_laws_are_tried_in_the_order_of_the_last_kill(tmp_path):
    prepare()
    known = {CHEAP: {"law": "test_same_call_twice_is_bitwise_equal"}}
    mutant = next(m for m in KILLABLE if m.id == CHEAP)
    trials = power.hunted(mutant, tmp_path, known, examples=2).trials
    assert [(t.law, t.outcome) for t in trials] == [
        ("test_same_call_twice_is_bitwise_equal", "passed"),
        ("test_matches_oracle", "killed"),
    ]


def unchanged(monkeypatch):
    """Instead of all mutants, one that is its kernel."""
    line = "from __future__ import annotations"
    mutant = Mutant("query_scale", "nothing", "none", line, line)
    monkeypatch.setattr("tightrope.mutants.chosen", lambda words: [mutant])


def test_a_survivor_is_told_and_fails_the_command(monkeypatch, capsys):
    unchanged(monkeypatch)
    assert cli.main(["power", "--examples=2"]) == 1
    assert "survived: query_scale:nothing" in capsys.readouterr().out


def test_the_command_writes_what_it_found(tmp_path, capsys):
    result, picture, kills = (str(tmp_path / n) for n in ("power.json", "power.png", "kills.json"))
    words = [f"--mutant={CHEAP}", f"--json={result}", f"--picture={picture}"]
    assert cli.main(["power", *words, f"--keep-kills={kills}"]) == 0
    found = json.loads(Path(result).read_text())
    assert found["counts"]["killed"] == 1
    assert found["mutants"][0]["kill"]["law"] == power.MAIN
    assert json.loads(Path(kills).read_text())[CHEAP]["dtype"] == "float32"
    assert Path(picture).stat().st_size > 1000


def test_shards_have_every_mutant_once_and_merge_to_the_whole(tmp_path, capsys):
    names = [str(tmp_path / f"{i}.json") for i in (1, 2, 3)]
    words = ["--mutant=query_scale:last", "--mutant=query_scale:one_too", "--examples=2"]
    for i, name in enumerate(names, 1):
        assert cli.main(["power", *words, f"--shard={i}/3", f"--json={name}"]) == 0
    parts = [json.loads(Path(name).read_text())["mutants"] for name in names]
    ran = [m["mutant"] for part in parts for m in part]
    assert sorted(ran) == ["query_scale:last_unwritten", "query_scale:one_too_many"]
    whole = str(tmp_path / "whole.json")
    merged = [f"--merge={name}" for name in names]
    assert cli.main(["power", *merged, f"--json={whole}"]) == 0
    found = json.loads(Path(whole).read_text())
    assert found["counts"]["killed"] == 2
    assert [m["mutant"] for m in found["mutants"]] == ran
    assert [part["run"]["shard"] for part in found["parts"]] == [[1, 3], [2, 3], [3, 3]]


def test_a_run_that_came_to_no_end_replaces_none():
    none = {"mutant": "a:b", "family": "none", "outcome": "not run", "trials": [], "seconds": 0.0,
            "why": "", "kill": None}  # fmt: skip
    done = {**none, "outcome": "survived"}
    for parts in ([[none], [done]], [[done], [none]]):
        assert [f.outcome for f in power_found.merged(parts)] == ["survived"]


def test_an_interrupted_run_keeps_what_it_found(monkeypatch, tmp_path):
    result = tmp_path / "power.json"
    hunted, calls = power.hunted, []

    def once(*args):
        calls.append(args)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return hunted(*args)

    monkeypatch.setattr(power, "hunted", once)
    assert cli.main(["power", "--mutant=query_scale:shift", f"--json={result}"]) == 2
    assert json.loads(result.read_text())["counts"]["killed"] == 1


@pytest.mark.parametrize(
    "words",
    [
        "--mutant=no_such",
        "--picture=x.txt",
        "--kills=no_such.json",
        "--merge=no_such.json",
    ],
)
def test_wrong_usage_is_refused_before_anything_runs(words, capsys):
    assert cli.main(["power", words]) == 4
    assert "tightrope: " in capsys.readouterr().err
