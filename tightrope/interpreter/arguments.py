"""Scalar arguments as a launch hands them to a compiled kernel: in the type that it annotates.

The stock interpreter gives an integer the narrowest type that holds it, whatever its parameter
says, so that `n * BLOCK` overflows here and not on a GPU.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import triton.language as tl
import triton.runtime.interpreter as ip
from triton.runtime.jit import KernelParam

from tightrope.interpreter.rounding import round_to
from tightrope.interpreter.state import STATE
from tightrope.interpreter.types import handle, value_dtype


class _Integer(int):
    """An integer with the Triton type of its parameter; hooks still see a number."""

    kind: Any = None


class _Float(float):
    kind: Any = None


@cache
def annotated(fn: Callable[..., Any]) -> dict[str, Any]:
    """Parameter of a kernel -> the Triton type of a number that it is annotated with, or None.

    Read by Triton's own `KernelParam`, as a compiled launch does.
    """
    found = {}
    for i, parameter in enumerate(inspect.signature(fn).parameters.values()):
        word = KernelParam(i, parameter, False, False).annotation_type
        number = word[:1] in ("i", "u", "f", "b") and word != "u1"
        found[parameter.name] = tl.str_to_ty(word, None) if number else None
    return found


def typed(fn: Callable[..., Any], args: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The arguments of a launch, numbers carrying the types that the kernel annotates."""
    kinds = annotated(fn)
    too_many = args[len(kinds) :]  # for Triton to refuse
    return (
        [*(_typed(a, k) for a, k in zip(args, kinds.values(), strict=False)), *too_many],
        {name: _typed(a, kinds.get(name)) for name, a in named.items()},
    )


def _typed(argument: Any, kind: Any) -> Any:
    if kind is None or isinstance(argument, bool) or not isinstance(argument, int | float):
        return argument
    if kind.is_int() and isinstance(argument, float):
        raise TypeError(f"a parameter annotated {kind} cannot take {argument!r}")
    number: Any = _Integer(argument) if kind.is_int() else _Float(argument)
    number.kind = kind
    return number


def implicit_cvt(arg: Any) -> Any:
    """Scalar arguments: in the annotated type; else floats in float32, booleans as int1."""
    if isinstance(arg, _Integer):  # NumPy refuses a number that does not fit, as a launch does
        return _scalar(np.array([int(arg)], value_dtype(arg.kind)), arg.kind)
    if isinstance(arg, _Float):
        return _scalar(round_to(np.array([float(arg)]), value_dtype(arg.kind)), arg.kind)
    if isinstance(arg, bool):
        return _scalar(np.array([arg]), tl.int1)
    if isinstance(arg, float):
        return _scalar(np.array([arg], np.float32), tl.float32)
    return STATE.original[ip, "_implicit_cvt"](arg)


def _scalar(data: Any, kind: Any) -> Any:
    return tl.tensor(handle(data, kind), kind)
