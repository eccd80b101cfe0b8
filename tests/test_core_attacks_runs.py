"""Whole runs under attack: hangs, Ctrl-C, narrow limits, borrowed laws, records that do not fit."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from test_plugin import ADAPTER, ROOT, adapter, run, tightrope

from tightrope.cli import main

STRICT = (
    ADAPTER[: ADAPTER.index("@implements")]
    + """
def strict(name, **limits):
    limits = {"dtype": ("float16",), "interleaved": (False,), **limits}

    @implements("rope", name=name, where="out_dtype=input", **limits)
    def kernel(q, k, cos, sin, positions, *, interleaved, inplace=False):
        got = {"tokens": len(q), "num_heads": q.shape[1], "num_kv_heads": k.shape[1],
               "table_rows": len(cos), "inplace": inplace, "interleaved": interleaved}
        for field, value in got.items():
            assert value in limits.get(field, (value,)), f"{field}={value} is outside its limits"
        c, s = (t[positions.long()].float()[:, None] for t in (cos, sin))
        def turn(x):
            half, y = c.shape[-1], x.clone()
            a, b = x[..., :half].float(), x[..., half:2 * half].float()
            y[..., :half], y[..., half:2 * half] = a * c - b * s, b * c + a * s
            return x.copy_(y) if inplace else y
        return turn(q), turn(k)

strict("[only] in place", inplace=(True,))
strict("one shape", tokens=(8,), num_heads=(8,), num_kv_heads=(2,), table_rows=(1024,))
strict("some tokens", tokens=(1, 4, 16), table_rows=range(2048, 4096))
strict("two or more", tokens=range(2, 65), num_heads=range(2, 17))
strict("nothing", tokens=(0,))
"""
)


def test_no_law_leaves_the_limits_of_an_implementation(tmp_path):
    (tmp_path / "strict.py").write_text(STRICT)
    done = tightrope(
        tmp_path, "run", "--impl=strict", "--examples=4", "--workers=0", "--report=report.json"
    )
    assert done.returncode == 0, done.stdout
    assert "[only]" in done.stdout
    results = json.loads((tmp_path / "report.json").read_text())["results"]
    outcomes = {k.split("test_")[-1]: r["outcome"] for k, r in results.items()}
    assert outcomes["matches_oracle[rope-nothing-float16]"] == "not run"
    for applicable, name in (("matches_oracle", "passed"), ("in_place_equals_out_of_place", "not")):
        assert outcomes[f"{applicable}[rope-[only] in place-float16]"].startswith(name)


def test_a_hang_ends_and_its_case_is_known(tmp_path):
    adapter(tmp_path, extra="import time; q.shape[0] >= 2 and time.sleep(600)")
    done = run(
        tmp_path, "--workers=1", "--examples=30", "-k", "matches_oracle", "--", "--timeout=4"
    )
    assert done.returncode == 1
    assert "--timeout=300 --timeout-method=thread" in done.stdout  # what it is without being told
    assert re.search(r"case = \{'tokens': ([2-9]|\d\d)", done.stdout)
    assert "replay: tightrope replay" in done.stdout


def test_a_crash_is_replayed_with_what_was_drawn_not_with_what_was_launched(tmp_path):
    adapter(tmp_path, extra="import os; q.shape[0] >= 1 and os.kill(os.getpid(), 9)")
    done = run(tmp_path, "--workers=1", "--examples=30", "-k", "any_split", "--report=r.json")
    assert done.returncode == 1
    results = json.loads((tmp_path / "r.json").read_text())["results"]
    drawn = next(r for r in results.values() if r["outcome"] == "failed")["failure"]["drawn"]
    assert set(drawn) == {"case", "cuts"}
    assert all(0 <= cut <= drawn["case"]["case"]["tokens"] for cut in drawn["cuts"])


SITE = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
ENVIRONMENT = {"PYTHONPATH": SITE, "TIGHTROPE_DEVICE": "cpu", "PATH": "/usr/bin:/bin"}


def plain_pytest(folder, *words, **environment):
    command = [sys.executable, "-m", "pytest", "-p", "tightrope.plugin", "-q", *words]
    env = {**ENVIRONMENT, **environment}
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=200, check=False
    )


def test_ctrl_c_leaves_a_valid_report(tmp_path):
    adapter(tmp_path, extra="import time; time.sleep(0.05)")
    command = [sys.executable, "-m", "tightrope", "run", "--impl=acme_adapter", "--workers=0",
               "--examples=40", "--report=report.json"]  # fmt: skip
    # a job in the background ignores SIGINT, and so would the child that inherits it
    listening = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.DEVNULL, **listening
    )
    until = time.time() + 60
    while time.time() < until and not list(tmp_path.glob(".tightrope/running-*")):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 2
    assert json.loads((tmp_path / "report.json").read_text())["schema"] == 1


def test_borrowed_laws_and_own_ones_are_replayed_from_where_they_are_written(tmp_path):
    adapter(tmp_path, sign="-1")
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\ntightrope_impl = acme_adapter\nempty_parameter_set_mark = fail_at_collect\n"
        "filterwarnings = error\n"
    )
    (tmp_path / "test_mine.py").write_text(
        "from hypothesis import strategies as st\n"
        "from tightrope import holds_for\n"
        "from tightrope.properties.test_oracle import *\n"
        "from tightrope.properties.test_table import *\n"
        "@holds_for('rope', extra=st.just(((1, 2), 'x')))\n"
        "def test_own(impl, case, extra):\n"
        "    assert extra == ((1, 2), 'x')\n"
        "    assert impl(case, impl.contract.inputs(case))['q'].size == -1\n"
    )
    done = plain_pytest(tmp_path, "--tightrope-report=r.json")
    assert "2 failed" in done.stdout, done.stdout
    again = tightrope(tmp_path, "replay", "r.json")
    assert "2 failed" in again.stdout, again.stdout
    for name in ("test_own", "matches_oracle"):
        assert "1 failed" in tightrope(tmp_path, "replay", "r.json", f"--only={name}").stdout


def test_a_kernel_loaded_from_a_file_is_replayed_from_that_file(tmp_path):
    (tmp_path / "kernels").mkdir()
    adapter(tmp_path / "kernels", sign="-1")
    elsewhere = tmp_path / "ä ö"
    elsewhere.mkdir()
    words = ("--examples=5", "--workers=0", "-k", "matches_oracle", "--report=rä.json")
    tightrope(elsewhere, "run", "--impl=../kernels/acme_adapter.py", *words)
    again = tightrope(elsewhere, "replay", "rä.json")
    assert again.returncode == 1
    assert "1 failed" in again.stdout
    report = elsewhere / "rä.json"
    report.write_text(report.read_text().replace('"table_rows"', '"rows_of_the_table"'))
    old = tightrope(elsewhere, "replay", "rä.json")
    assert old.returncode == 4
    assert "no case of this version" in old.stdout + old.stderr


def test_a_run_in_which_no_case_ran_is_no_success(tmp_path):
    adapter(tmp_path)
    words = ("--pyargs", "tightrope.properties.test_oracle", "--tightrope-impl=acme_adapter")
    done = plain_pytest(tmp_path, *words, "--tightrope-max-seconds=1", TIGHTROPE_BEGAN="0")
    assert done.returncode == 5
    assert "laws: 1 not run" in done.stdout


@pytest.mark.parametrize(
    ("words", "environment", "message"),
    [
        (("--report=acme_adapter.py/r.json",), {}, "r.json: .*File exists"),
        ((), {"TIGHTROPE_STATE": "acme_adapter.py"}, "no room for them"),
        (("--impl=broken",), {}, r"SyntaxError.*broken|broken.*SyntaxError"),
        (("--impl=raising",), {}, r"raising cannot be imported: RuntimeError: no.*raising.py:1"),
    ],
)
def test_what_no_run_can_do_without_is_missed_at_the_start(tmp_path, words, environment, message):
    adapter(tmp_path)
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "raising.py").write_text("raise RuntimeError('no driver')\n")
    done = run(tmp_path, "--workers=2", *words, **environment)
    assert done.returncode == 4
    assert re.search(message, done.stdout + done.stderr)


@pytest.mark.parametrize(
    "words",
    [
        "", "run --profile=fast", "run --examples=0", "run --nonsense", "run --profile=ci --seed=1",
        "replay nowhere.json", "replay .", "replay empty.json", "replay list.json",
        "replay old.json", "replay torn.json", "replay passed.json", "list --impl=nowhere",
    ],
)  # fmt: skip
def test_wrong_usage_is_status_4_and_a_sentence(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, content in {
        "empty": "", "list": "[]", "old": '{"schema": 0, "results": {}}',
        "torn": '{"schema": 1, "results": {"a": {"outcome": "failed"}}}',
        "passed": '{"schema": 1, "results": {"a": {"outcome": "passed"}}}',
    }.items():  # fmt: skip
        (tmp_path / f"{name}.json").write_text(content)
    assert main(words.split()) == 4
    assert "Traceback" not in capsys.readouterr().err
