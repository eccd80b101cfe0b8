"""The plugin from outside: what users see when they run, fail, replay, crash, run out of time."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import preloaded
import pytest

ROOT = Path(__file__).parent.parent
ADAPTER = """
import torch
from tightrope import implements

@implements("rope", name="acme", dtype=("float32",), interleaved=(False,), inplace=(False,),
            where=("out_dtype=input", "contiguous"))
def acme(q, k, cos, sin, positions, *, interleaved):
    c, s = cos[positions].float()[:, None], sin[positions].float()[:, None]
    def turn(x):
        half = c.shape[-1]
        y, a, b = x.clone(), x[..., :half], x[..., half:2 * half]
        y[..., :half], y[..., half:2 * half] = a * c - b * s, b * c + SIGN * a * s
        return y
    EXTRA
    return turn(q), turn(k)
"""


def tightrope(folder, *words, **environment):
    site = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": site, "TIGHTROPE_DEVICE": "cpu", **environment}
    env = {k: v for k, v in env.items() if not k.startswith(("PYTEST_", "TIGHTROPE_IMPL"))}
    return preloaded.tightrope(folder, words, env)


def adapter(folder, sign="1", extra="pass"):
    (folder / "acme_adapter.py").write_text(ADAPTER.replace("SIGN", sign).replace("EXTRA", extra))


def run(folder, *words, **environment):
    few = (
        ("--examples=5", "--workers=0")
        if not any(w.startswith("--workers") for w in words)
        else ("--examples=5",)
    )
    return tightrope(folder, "run", "--impl=acme_adapter", *few, *words, **environment)


def test_a_right_kernel_passes_and_the_table_says_what_was_covered(tmp_path):
    adapter(tmp_path)
    done = run(tmp_path, "-k", "matches_oracle or memory", "--report=out/report.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "$ python -m pytest" in done.stdout
    assert re.search(r"matches oracle\s+│ ok \d+ \d+%", done.stdout)
    assert "not: True" in done.stdout  # interleaved is outside its limits
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert report["schema"] == 1
    assert report["environment"]["packages"]["hypothesis"]
    result = report["results"]["test_oracle::test_matches_oracle[rope-acme-float32]"]
    assert result["outcome"] == "passed"
    assert result["cases"] == 5
    assert 0 <= result["worst"]["q"]["share"] <= 1


def test_a_wrong_kernel_is_told_with_case_value_terms_diagnosis_and_replay(tmp_path):
    adapter(tmp_path, sign="-1")
    done = run(tmp_path, "-k", "matches_oracle")
    assert done.returncode == 1
    for part in (
        "test_matches_oracle does not hold for rope acme (float32)", "case = RopeCase(",
        "exact value",
        "rounded to float32", "elements are wrong", "replay: tightrope replay",
    ):  # fmt: skip
        assert part in done.stdout, part
    command = re.search(r"replay: tightrope (replay \S+)", done.stdout).group(1).split()
    again = tightrope(tmp_path, *command)
    assert again.returncode == 1
    assert "1 failed" in again.stdout
    case = re.search(r"case = (RopeCase\(.*\))", done.stdout).group(1)
    assert case in again.stdout
    adapter(tmp_path)  # mended: the same case passes
    assert tightrope(tmp_path, *command).returncode == 0


def test_a_report_is_replayed_in_another_folder(tmp_path):
    adapter(tmp_path, sign="-1")
    run(tmp_path, "--report=report.json", "--no-shrink")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    adapter(elsewhere, sign="-1")
    report = (elsewhere / "report.json").write_bytes((tmp_path / "report.json").read_bytes())
    assert report
    failed = [
        k
        for k, r in json.loads((tmp_path / "report.json").read_text())["results"].items()
        if r["outcome"] == "failed"
    ]
    assert len(failed) >= 3
    again = tightrope(elsewhere, "replay", "report.json")
    assert f"{len(failed)} failed" in again.stdout
    one = tightrope(elsewhere, "replay", "report.json", "--only=test_matches_oracle")
    assert "1 failed" in one.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--impl=nowhere",), "No module named 'nowhere'"),
        (("--impl=acme_adapter:acne",), "no implementation 'acne'; known: acme"),
        (("--impl=json",), "registers no implementation"),
    ],
)
def test_a_wrong_name_ends_the_run_with_a_reason(tmp_path, words, message):
    adapter(tmp_path)
    done = tightrope(tmp_path, "run", *words, "--workers=1")
    assert done.returncode == 4
    assert message in done.stdout + done.stderr


def test_unknown_limits_are_reported_with_the_adapters_place(tmp_path):
    adapter(tmp_path)
    path = tmp_path / "acme_adapter.py"
    path.write_text(path.read_text().replace("interleaved=(False,)", "interlaced=(False,)"))
    done = run(tmp_path)
    assert done.returncode == 4
    assert re.search(
        r"acme_adapter.py:\d+: implementation 'acme': unknown limit 'interlaced'",
        done.stdout + done.stderr,
    )


def test_a_killed_workers_case_is_known_and_the_run_goes_on(tmp_path):
    adapter(tmp_path, extra="import os; q.shape[0] >= 3 and os.kill(os.getpid(), 9)")
    done = run(tmp_path, "--workers=2", "--examples=30", "-k", "matches_oracle or same_call")
    assert done.returncode == 1
    assert "crashed while running" in done.stdout
    assert "the process died" in done.stdout
    assert re.search(r"case = \{'tokens': ([3-9]|\d\d)", done.stdout)
    replay = re.search(r"replay: tightrope (replay \S+)", done.stdout).group(1).split()
    again = tightrope(tmp_path, *replay)
    assert again.returncode not in (0, 4), done.stdout + again.stdout


def test_a_lost_device_is_reported_with_its_case_and_the_worker_is_replaced(tmp_path):
    fault = "raise RuntimeError('CUDA error: an illegal memory access was encountered')"
    adapter(tmp_path, extra=f"if q.shape[0] >= 3: {fault}")
    done = run(tmp_path, "--workers=1", "--examples=30", "-k", "matches_oracle or halving")
    assert done.returncode == 1
    assert "an illegal memory access was encountered" in done.stdout
    assert re.search(r"case = \{'tokens': ([3-9]|\d\d)", done.stdout)
    assert "2 failed" in done.stdout  # the second law ran in the worker that replaced the first


def test_the_time_is_shared_and_what_got_none_is_not_covered(tmp_path):
    adapter(tmp_path, extra="import time; time.sleep(0.2)")
    done = run(tmp_path, "--max-seconds=18", "--examples=500")
    assert done.returncode == 0, done.stdout
    assert "stopped when their share of --max-seconds was spent" in done.stdout
    assert re.search(r"matches oracle\s+│ ok", done.stdout)


def test_without_a_gpu_requiring_one_is_an_error(tmp_path):
    adapter(tmp_path)
    done = run(tmp_path, "--require-gpu", TIGHTROPE_DEVICE="", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 4
    assert "no CUDA device" in done.stdout + done.stderr


def test_a_torn_report_is_not_left_behind(tmp_path, monkeypatch):
    from tightrope import blackbox

    target = tmp_path / "report.json"
    target.write_text("old")
    monkeypatch.setattr(
        os,
        "fsync",
        lambda descriptor: (_ for _ in ()).throw(OSError(28, "No space left on device")),
    )
    with pytest.raises(OSError, match="No space left"):
        blackbox.write_atomically(target, "new")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]
