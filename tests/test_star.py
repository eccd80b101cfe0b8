"""Ways to name a kernel: option, environment, a test file's variable, ini, installed entry points.

Each in a project of its own, away from this repository; what is given first wins.
"""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import entry_points
from types import SimpleNamespace

import pytest
from test_core_attacks_runs import plain_pytest
from test_plugin import ADAPTER

from tightrope.device import prepare
from tightrope.subjects import BUNDLED, GROUP, chosen, of_module, under_test

LAWS = """
from tightrope.properties.test_oracle import *
from tightrope.properties.test_rotation import test_the_identity_row_changes_nothing
{variable}
"""


def kernel(folder, module, name, sign="1"):
    text = ADAPTER.replace("SIGN", sign).replace("EXTRA", "pass").replace('"acme"', f'"{name}"')
    (folder / f"{module}.py").write_text(text)


@pytest.fixture
def project(tmp_path):
    """A project whose ini names the kernel `ini`, and whose files name others."""
    for name in ("ini", "option", "environment"):
        kernel(tmp_path, f"by_{name}", name)
    kernel(tmp_path, "by_file", "file", sign="-1")
    (tmp_path / "pytest.ini").write_text("[pytest]\ntightrope_impl = by_ini\n")
    (tmp_path / "test_ours.py").write_text(LAWS.format(variable=""))
    (tmp_path / "test_file.py").write_text(LAWS.format(variable='tightrope_impl = "by_file:file"'))
    both = 'tightrope_impl = ["by_file", "by_ini"]'
    (tmp_path / "test_both.py").write_text(LAWS.format(variable=both))
    return tmp_path


def test_a_file_that_imports_laws_may_name_its_kernels(project):
    done = plain_pytest(project, "-rA", "--tb=line", "--tightrope-examples=3")
    told = [line for line in done.stdout.splitlines() if line.startswith(("PASSED", "FAILED"))]
    for part in (
        "PASSED test_ours.py::test_matches_oracle[rope-ini-float32]",
        "FAILED test_file.py::test_matches_oracle[rope-file-float32]",
        "PASSED test_file.py::test_the_identity_row_changes_nothing[rope-file-float32]",
        "FAILED test_both.py::test_matches_oracle[rope-file-float32]",
        "PASSED test_both.py::test_matches_oracle[rope-ini-float32]",
    ):
        assert sum(line.startswith(part) for line in told) == 1, done.stdout
    assert len(told) == 8  # two laws: of ini, of file, of both; and of nothing else


def test_the_environment_goes_before_a_file(project):
    done = plain_pytest(project, "--collect-only", TIGHTROPE_IMPL="by_environment by_option:option")
    for name, count in {"environment": 6, "option": 6, "file": 0, "ini": 0}.items():
        assert done.stdout.count(f"[rope-{name}-float32]") == count, done.stdout


class State:
    """As much of a session's state as `of_module` knows."""

    def __init__(self, option):
        self.impls = ["of the run"]
        self.config = SimpleNamespace(option=SimpleNamespace(tightrope_impl=option))

    def subjects(self):
        if self.impls is None:
            self.impls = list(self.config.option.tightrope_impl)
        if "by_nobody" in self.impls:
            raise pytest.UsageError("by_nobody has no implementation")
        return self.impls


def test_a_files_name_is_for_that_file_alone(monkeypatch):
    monkeypatch.delenv("TIGHTROPE_IMPL", raising=False)
    file, other = SimpleNamespace(tightrope_impl="by_file:x"), SimpleNamespace()
    state = State([])
    assert of_module(state, file) == of_module(state, file) == ["by_file:x"]
    assert of_module(state, other) == ["of the run"]
    with pytest.raises(pytest.UsageError, match="by_nobody has no implementation"):
        of_module(state, SimpleNamespace(tightrope_impl=["by_nobody"]))
    assert of_module(state, other) == ["of the run"]
    assert of_module(State(["by_option"]), file) == ["of the run"]
    monkeypatch.setenv("TIGHTROPE_IMPL", "by_environment")
    assert of_module(state, file) == ["of the run"]


def test_installed_entry_points_come_last(tmp_path, monkeypatch):
    """Two distributions, as pip would leave them in site-packages."""
    assert not entry_points(group=GROUP), "this environment must not have any of its own"
    assert chosen([], []) == [BUNDLED]
    for name in ("east", "west"):
        kernel(tmp_path, f"kernels_{name}", name)
        info = tmp_path / f"kernels_{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: kernels-{name}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = kernels_{name}\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    importlib.invalidate_caches()
    monkeypatch.delenv("TIGHTROPE_IMPL", raising=False)
    assert sorted(chosen([], [])) == ["kernels_east", "kernels_west"]
    assert chosen([], ["by_ini"]) == ["by_ini"]
    monkeypatch.setenv("TIGHTROPE_IMPL", "one two")
    assert chosen([], ["by_ini"]) == ["one", "two"]
    assert chosen(["three"], ["by_ini"]) == ["three"]
    monkeypatch.delenv("TIGHTROPE_IMPL")
    prepare()
    assert sorted(impl.name for impl in under_test(chosen([], []))) == ["east", "west"]
