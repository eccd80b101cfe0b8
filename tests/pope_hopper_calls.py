"""The Hopper kernel's whole call on the CPU: its host code, and its kernel by simulated Gluon."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hopper_calls import functions_of, without_a_gpu
from simulated_gluon import Array, Value, value

from tightrope import (
    attention_hopper_rows,
    attention_hopper_warps,
    pope_hopper_call,
    pope_hopper_points,
    pope_hopper_rows,
    pope_hopper_warps,
    softplus_hopper,
)
from tightrope.impls import pope_attention_hopper as hopper
from tightrope.pope_angles_call import tables

FUNCTIONS = functions_of(
    softplus_hopper, attention_hopper_warps, attention_hopper_rows, pope_hopper_warps,
    pope_hopper_rows, pope_hopper_points, hopper,
)  # fmt: skip
NAMES = {
    "LOWEST": -np.inf, "LN2": attention_hopper_rows.LN2.value, "PAIR": softplus_hopper.PAIR.value,
    "softplus": lambda x, form: value(np.logaddexp(x.astype(np.float64), 0.0).astype(np.float32)),
}  # fmt: skip


def _half(word: str) -> Array:
    """The two halves of a 32-bit constant, the lower one first."""
    return np.array([int(word, 16) & 0xFFFF, int(word, 16) >> 16], np.uint16).view(np.float16)


def _source(name: str, registers: dict[str, Any]) -> Any:
    if name.startswith("0f"):
        return np.uint32(int(name[2:], 16)).view(np.float32)
    return _half(name) if name[0].isdigit() else registers[name]


def exp2(x: Array, ulps: int = 0) -> Array:
    """ex2.approx.ftz.f32, off by `ulps` from the correctly rounded power, as far as 2 may be."""
    found = np.exp2(x.astype(np.float64)).astype(np.float32)
    for _ in range(abs(ulps)):
        found = np.nextafter(found, np.float32(np.sign(ulps) * np.inf))
    return np.where(found < 2.0**-126, np.float32(0.0), found)


def assembly(text: str, operands: Sequence[Array], ulps: int = 0) -> list[Array]:
    """Run PTX of packed halves on float16 arrays of one shape: its results $0 and $1.

    Raises KeyError for an instruction that is not known.
    """
    pairs = [np.asarray(x).reshape(-1, 2) for x in operands]
    registers: dict[str, Any] = {f"${i + 2}": x for i, x in enumerate(pairs)}
    wide = [lambda *x: x[0].astype(np.float64) * x[1] + (x[2] if len(x) > 2 else 0.0)][0]
    does: dict[str, Callable[..., Any]] = {
        "mov.b32": lambda x: x, "cvt.f32.f16": lambda x: x.astype(np.float32), "abs.f32": np.abs,
        "mul.rn.f32": lambda x, y: wide(x, y).astype(np.float32),
        "ex2.approx.ftz.f32": lambda x: exp2(x, ulps),
        "cvt.rn.f16x2.f32": lambda high, low: np.stack([low, high], -1).astype(np.float16),
        "fma.rn.f16x2": lambda *x: wide(*x).astype(np.float16), "max.NaN.f16x2": np.maximum,
        "mul.rn.f16x2": lambda *x: wide(*x).astype(np.float16),
    }  # fmt: skip
    with np.errstate(all="ignore"):
        for line in re.sub(r"\.reg[^;]*;", "", text.strip()[1:-1]).split(";"):
            if not line.strip():
                continue
            opcode, rest = line.split(None, 1)
            to, *sources = re.findall(r"\{[^}]*\}|[$\w]+", rest)
            found = does[opcode](*(_source(s, registers) for s in sources))
            if to.startswith("{"):
                low, high = re.findall(r"\w+", to)
                registers[low], registers[high] = found[:, 0], found[:, 1]
            else:
                registers[to] = found
    return [registers[name].reshape(operands[0].shape) for name in ("$0", "$1")]


def _inline(text: str, _: str, operands: list[Value], **options: Any) -> tuple[Value, ...]:
    return tuple(value(x) for x in assembly(text, operands))


def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`pope_attention_hopper`, of tensors on the CPU, as long as the patch lasts."""
    without_a_gpu(monkeypatch, pope_hopper_call, FUNCTIONS, NAMES, _inline)
    monkeypatch.setattr(pope_hopper_call, "tables", lambda f, q, k, ahead: tables(f, q, k, False))
    return hopper.pope_attention_hopper


def points_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """`attend_to_points`, of tensors on the CPU, as long as the patch lasts."""
    without_a_gpu(monkeypatch, pope_hopper_points, FUNCTIONS, NAMES, _inline)
