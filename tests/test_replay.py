"""Replay runs the recorded cases, all of them, and no other."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from test_on_a_gpu import WILD
from test_plugin import adapter, run, tightrope

# of a run on an H200, its one failure kept: a store far outside, told as an illegal access there
ON_AN_H200 = Path(__file__).parent / "corpus" / "h200_wild.json"
COUNT = "open('calls', 'a').write(f'{tuple(q.shape)} {tuple(cos.shape)}\\n')"
WRONG = f"{COUNT}; q.shape[0] >= 3 and k.mul_(0)"


def recorded(tmp_path):
    done = run(tmp_path, "-k", "matches_oracle", "--examples=60")
    assert done.returncode == 1, done.stdout
    (tmp_path / "calls").unlink()
    path = re.search(r"replay: tightrope replay (\S+)", done.stdout).group(1)
    return path, json.loads((tmp_path / path).read_text())


def calls(tmp_path):
    return (tmp_path / "calls").read_text().splitlines()


def test_one_recorded_case_is_one_call_of_that_case(tmp_path):
    adapter(tmp_path, extra=WRONG)
    path, data = recorded(tmp_path)
    case = next(iter(data["results"].values()))["failure"]["drawn"]["case"]["case"]
    again = tightrope(tmp_path, "replay", path)
    assert again.returncode == 1
    assert "1 cases" in again.stdout
    shape = (case["tokens"], case["num_heads"], case["head_dim"])
    assert calls(tmp_path) == [f"{shape} {(case['table_rows'], case['rotary_dim'] // 2)}"]


def test_a_case_that_no_search_would_find_is_replayed(tmp_path):
    adapter(tmp_path, extra=WRONG)
    _, data = recorded(tmp_path)
    result = next(iter(data["results"].values()))
    result["failure"]["drawn"]["case"]["case"] |= {"tokens": 29, "head_dim": 34, "rotary_dim": 10}
    (tmp_path / "edited.json").write_text(json.dumps(data))
    adapter(tmp_path, extra=COUNT)
    again = tightrope(tmp_path, "replay", "edited.json")
    assert again.returncode == 0, again.stdout
    assert "1 cases; laws: 1 passed" in again.stdout
    assert [c.split(" (")[0] for c in calls(tmp_path)] == [
        str((29, result["failure"]["drawn"]["case"]["case"]["num_heads"], 34))
    ]


@pytest.mark.parametrize("mended", [False, True])
def test_what_failed_on_a_gpu_fails_on_the_interpreter_until_it_is_mended(tmp_path, mended):
    (result,) = json.loads(ON_AN_H200.read_text())["results"].values()
    assert result["failure"]["kind"] == "DeviceLost"
    launch = "wild[(1,)](q)"
    assert launch in WILD
    (tmp_path / "ring_wild.py").write_text(WILD.replace(launch, "pass") if mended else WILD)
    shutil.copy(ON_AN_H200, tmp_path / "report.json")
    done = tightrope(tmp_path, "replay", "report.json", "--workers=1")
    assert done.returncode == (0 if mended else 1), done.stdout + done.stderr
    if mended:
        assert "1 cases; laws: 1 passed" in done.stdout
        return
    path = re.search(r"replay: tightrope replay (\S+)", done.stdout).group(1)
    ((key, again),) = json.loads((tmp_path / path).read_text())["results"].items()
    assert key == result["key"]
    assert again["failure"]["message"] == "the process died of SIGSEGV"
    assert again["failure"]["drawn"] == result["failure"]["drawn"]
