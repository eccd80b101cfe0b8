"""A worker's death is told by its cause and with its case."""

from __future__ import annotations

import subprocess
import sys
import time
import types

import pytest
from test_core_attacks import _own_state  # noqa: F401

from tightrope import blackbox
from tightrope.deaths import death
from tightrope.implementation import Implementation
from tightrope.oracles.rope import RopeCase


def died(program, key="test_x::test_law[rope-a-b-float32]", patience=0.0):
    """The result of a worker that ran a program after `record`ing."""
    process = subprocess.Popen([sys.executable, "-c", program])
    process.wait()
    gateway = types.SimpleNamespace(id="gw7", _io=types.SimpleNamespace(popen=process))
    node = types.SimpleNamespace(gateway=gateway, workerinput={"testrunuid": "0123456789"})
    return death(key, node, patience)


@pytest.fixture
def recorded(monkeypatch):
    """A case on disk as worker gw7 writes it before a launch."""
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw7")
    monkeypatch.setenv("PYTEST_XDIST_TESTRUNUID", "0123456789")
    blackbox.begin()
    blackbox.about(law="test_law", key="test_x::test_law[rope-a-b-float32]", home="", drawn={})
    blackbox.record(Implementation(contract_name="rope", name="a-b", fn=print), RopeCase())


KILLED = "import os; os.kill(os.getpid(), 9)"


@pytest.mark.usefixtures("recorded")
def test_a_death_is_told_by_its_cause():
    killed = died(KILLED)["failure"]
    assert killed["kind"] == "Crash"
    assert killed["message"].startswith("the process died of SIGKILL (by hand, or")
    time.sleep(0.02)
    assert died("import os; os._exit(1)", patience=0.01)["failure"]["kind"] == "Hang"
    aborted = died("import os; os.abort()")["failure"]
    assert aborted["message"] == "the process died of SIGABRT"
    assert "exit status 3" in died("import os; os._exit(3)")["failure"]["message"]


@pytest.mark.usefixtures("recorded")
def test_a_death_between_two_launches_is_told_with_the_case_before_it():
    blackbox.clear()
    found = died(KILLED)
    assert found["failure"]["message"].endswith("after this case's launch")
    assert found["dtype"] == RopeCase().dtype
    other = died(KILLED, key="test_y::test_other[rope-a-b-float32]")
    assert other["failure"]["message"].endswith("outside of any launch")
    assert other["failure"]["detail"] == {"of_the_law": True}  # there is no case to replay
    assert (other["law"], other["implementation"], other["dtype"]) == (
        "test_other", "a-b", "float32",
    )  # fmt: skip
