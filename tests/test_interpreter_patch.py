"""Installing and restoring the faithful interpreter; what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl
import triton.runtime.interpreter as ip
from triton.language.extra import libdevice

from tightrope.interpreter import NOT_FAITHFUL, TESTED_TRITON, install
from tightrope.interpreter.patch import suspended
from tightrope.interpreter.state import STATE


@pytest.fixture(autouse=True)
def stock():
    """Start from the stock interpreter, whatever the suite has installed."""
    with suspended():
        yield


def snapshot():
    owners = (
        ip,
        ip.InterpreterBuilder,
        ip.InterpretedFunction,
        ip.ReduceOps,
        ip.ScanOps,
        libdevice,
    )
    return [dict(vars(owner)) for owner in owners]


@triton.jit
def muladd_kernel(X, Y, N: tl.constexpr):
    x = tl.load(X + tl.arange(0, N))
    tl.store(Y + tl.arange(0, N), x * x - x)


def muladd(dtype=torch.bfloat16, **options):
    x = torch.linspace(0.5, 1.5, 64).to(dtype)
    y = torch.empty_like(x)
    muladd_kernel[(1,)](x, y, 64, **options)
    return y


def once(dtype=torch.bfloat16):
    x = torch.linspace(0.5, 1.5, 64).to(dtype).double()
    return (x * x - x).to(dtype)


def twice(dtype=torch.bfloat16):
    x = torch.linspace(0.5, 1.5, 64).to(dtype)
    return x * x - x


def test_restore_brings_the_stock_interpreter_back():
    before = snapshot()
    patch = install()
    assert snapshot() != before
    patch.restore()
    patch.restore()
    assert snapshot() == before


def test_a_failure_inside_restores_too():
    before = snapshot()
    with pytest.raises(KeyError), install():
        raise KeyError
    assert snapshot() == before


def test_nested_installs_bring_back_the_previous_settings():
    assert not torch.equal(once(), twice())
    with install(contract=True):
        assert torch.equal(muladd(), once())
        inside = snapshot()
        with install(contract=False):
            assert torch.equal(muladd(), twice())
        assert torch.equal(muladd(), once())
        assert snapshot() == inside


def test_installs_may_be_restored_in_any_order():
    before = snapshot()
    first, second = install(contract=True), install(contract=False)
    first.restore()
    assert torch.equal(muladd(), twice())
    second.restore()
    assert snapshot() == before


def test_suspended_brings_back_what_was_installed():
    with install(contract=False):
        inside = snapshot()
        with suspended():
            assert snapshot() != inside
        assert torch.equal(muladd(), twice())
    with install(contract=True) as outer, suspended():
        outer.restore()
    assert not torch.equal(muladd(torch.float32), once(torch.float32))


def test_the_stock_interpreter_gets_bf16_wrong():
    """The reason for this package; when it fails, Triton has learned bfloat16."""
    assert not torch.equal(muladd(), once())
    assert not torch.equal(muladd(), twice())


@pytest.mark.parametrize("name", ["create_dot", "cast_impl"])
def test_unknown_internals_are_named_and_nothing_is_changed(monkeypatch, name):
    monkeypatch.setattr(ip.InterpreterBuilder, name, lambda self, x, y: 0)
    monkeypatch.delattr(ip.InterpreterBuilder, "create_fma")
    before = snapshot()
    with pytest.raises(RuntimeError, match=f"create_fma is missing.*|{name} takes") as error:
        install()
    assert f"InterpreterBuilder.{name} takes (self, x, y), expected (self, " in str(error.value)
    assert "InterpreterBuilder.create_fma is missing" in str(error.value)
    assert triton.__version__ in str(error.value)
    assert snapshot() == before


def test_a_changed_bf16_storage_is_refused(monkeypatch):
    monkeypatch.setattr(ip, "_get_np_dtype", lambda tt_dtype: None)
    with pytest.raises(RuntimeError, match="no longer stored as uint16"):
        install()


@triton.jit
def doubling_kernel(X, Y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(Y + i, tl.load(X + i) * 2)


def test_overflow_is_checked_only_for_debugging(monkeypatch):
    x = torch.full((16,), 2**30, dtype=torch.int32)
    with install():
        doubling_kernel[(1,)](x, torch.empty_like(x), 16)
        options = replace(ip.interpreter_builder.options, debug=True)
        monkeypatch.setattr(ip.interpreter_builder, "options", options)
        with pytest.raises(Exception, match="int32 overflow detected"):
            doubling_kernel[(1,)](x, torch.empty_like(x), 16)


def test_types_are_built_once_a_launch():
    built = []
    with install():
        stock = STATE.original[tl.block_type, "__init__"]
        STATE.original[tl.block_type, "__init__"] = lambda *args: built.append(args) or stock(*args)
        for _ in range(2):
            STATE.tapes = {}  # with tapes, the second launch would need none
            doubling_kernel[(4,)](torch.zeros(16), torch.zeros(16), 16)
            assert STATE.types is None
    kinds = [str(kind) for _, kind, _ in built]
    assert kinds.count("int32") == kinds.count("fp32") == 2


def test_unknown_dot_model():
    with pytest.raises(ValueError, match="ieee, tf32, hopper"):
        install(dot="volta")


def run_python(code, **environment):
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | environment
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120
    )


def test_refused_without_interpretation():
    done = run_python("import tightrope.interpreter as i; i.install()")
    assert done.returncode == 1
    assert "RuntimeError: set TRITON_INTERPRET=1 before Triton is imported" in done.stderr


def test_a_renamed_class_is_named():
    code = """
import triton.runtime.interpreter as ip, tightrope.interpreter as i
del ip.TensorHandle
i.install()
"""
    done = run_python(code, TRITON_INTERPRET="1")
    assert done.returncode == 1
    assert "RuntimeError: Triton's interpreter is missing or unknown: module" in done.stderr
    assert "has no attribute 'TensorHandle'" in done.stderr


def test_importing_the_package_imports_no_triton():
    done = run_python(
        "import sys, tightrope.interpreter; print({'triton', 'torch', 'numpy'} & set(sys.modules))"
    )
    assert done.stdout.strip() == "set()", done.stderr


def test_limits_are_told():
    assert len(NOT_FAITHFUL) > 5
    assert all(isinstance(text, str) and text.strip() for text in NOT_FAITHFUL)
    assert ".".join(triton.__version__.split(".")[:2]) in TESTED_TRITON
