"""Calls of Gluon kernels on the CPU: their host code as it is, the kernels by simulated Gluon."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from simulated_gluon import Array, Descriptor, Pointer, launched

from tightrope import (
    attention_hopper_call,
    attention_hopper_rows,
    attention_hopper_warps,
    device,
    sequence_call,
)
from tightrope.implementation import Implementation
from tightrope.impls import attention_hopper as hopper
from tightrope.verdict import judge

PROCESSORS = 3  # so that programs get several tasks, and some of them none in the last turn


def functions_of(*modules: ModuleType) -> dict[str, Any]:
    """Their jitted Gluon functions by name; later modules win."""
    return {
        name: fn
        for module in modules
        for name, fn in vars(module).items()
        if type(fn).__name__ == "GluonJITFunction"
    }


FUNCTIONS = functions_of(attention_hopper_warps, attention_hopper_rows, hopper)
NAMES = {"LOWEST": -np.inf, "LN2": attention_hopper_rows.LN2.value}


def _array(x: torch.Tensor) -> Array:
    """A tensor's memory from its first element on, bfloat16 as ml_dtypes has it."""
    size = (
        1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
    )
    flat = torch.as_strided(x, (size,), (1,))
    if x.dtype == torch.bfloat16:
        return flat.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return flat.numpy()


def _strided(x: torch.Tensor) -> Array:
    flat = _array(x)
    return np.lib.stride_tricks.as_strided(flat, x.shape, [s * flat.itemsize for s in x.stride()])


def _given(x: Any) -> Any:
    """A number as the kernel gets it: ints as they are, floats rounded once."""
    return np.float32(x) if isinstance(x, float) else x


def without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, functions: dict[str, Any],
    names: dict[str, Any], assembly: Callable[..., Any],
) -> None:  # fmt: skip
    """Let `module` launch kernels made of `functions` and `names` here, as if on three processors.

    assembly: as `simulated_gluon.launched` takes it.
    """

    def launcher(
        kernel: Any, device: Any, programs: int, boxes: Any, rest: tuple[Any, ...], registers: int
    ) -> Callable[..., None]:
        def launch(plain: tuple[torch.Tensor, ...], tiled: tuple[torch.Tensor, ...]) -> None:
            tiles = [Descriptor(_strided(x), *box) for x, box in zip(tiled, boxes, strict=True)]
            arguments = (*[Pointer(_array(x)) for x in plain], *tiles, *map(_given, rest))
            launched(functions, kernel.__name__, programs, names, assembly, arguments)

        return launch

    found = type("Properties", (), {"multi_processor_count": PROCESSORS})
    monkeypatch.setattr(sequence_call, "_PLANS", {})
    monkeypatch.setattr(attention_hopper_call, "capability", lambda kernel, device: (9, 0))
    monkeypatch.setattr(module, "tiled_launcher", launcher)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)


def verdicts(
    contract: Any, case: Any, promise: Any, run: Callable[..., Any], **more: Any
) -> list[Any]:
    """Of out and lse of a simulated kernel, by the budget that its promise gives."""
    impl = Implementation(
        contract_name=contract.name, name="simulated", arithmetic=promise,
        fn=lambda *tensors, **options: run(*tensors, **options, **more),
    )  # fmt: skip
    inputs = contract.inputs(case)
    budgets = contract.budget(case, inputs, impl.promise(case, device.current()))
    found = impl(case, inputs)
    return [judge(name, found[name], budgets[name]) for name in contract.outputs]


def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`attention_hopper`, of tensors on the CPU, as long as the patch lasts."""
    without_a_gpu(monkeypatch, attention_hopper_call, FUNCTIONS, NAMES, lambda *given: None)
    return hopper.attention_hopper
