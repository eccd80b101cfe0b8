"""Replacements for the interpreter's casts, constants, loads and stores."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import triton.language as tl
import triton.runtime.interpreter as ip

from tightrope.interpreter.rounding import BF16, Array, round_to, to_integer
from tightrope.interpreter.state import STATE
from tightrope.interpreter.types import handle, stored, stored_dtype, value_dtype, values

_BITS = np.dtype(np.uint16)


def convert_float(input: Array, input_dtype: Any, output_dtype: Any, rounding_mode: Any) -> Array:
    """Bits after one rounding between float types; float8e4b15 is left to Triton."""
    if "fp8e4b15" in (input_dtype.scalar.name, output_dtype.scalar.name):
        return STATE.original[ip, "_convert_float"](input, input_dtype, output_dtype, rounding_mode)
    toward_zero = rounding_mode == ip._ir.ROUNDING_MODE.RTZ
    y = round_to(values(input, input_dtype), value_dtype(output_dtype), toward_zero)
    return y.view(f"u{y.itemsize}")


def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
    source, target = src.dtype.scalar, dst_type.scalar
    if target.is_floating():
        return handle(round_to(values(src.data, source), value_dtype(target)), target)
    if source.is_floating() and target.is_int() and not target.is_bool():
        return stored(to_integer(src.data, stored_dtype(target)), target)
    return stored(src.data.astype(stored_dtype(target)), target)


def get_bf16(self: Any, value: float) -> Any:
    """A bfloat16 constant. The compiler parses std::to_string of it ("%f"), so 1e-8 IS 0 there."""
    return stored(round_to(np.array([float(f"{np.float32(value):f}")]), BF16), tl.bfloat16)


def create_masked_load(
    self: Any, ptrs: Any, mask: Any, other: Any, *rest: Any, **named: Any
) -> Any:
    # The cache arguments differ between versions; nothing here depends on them.
    if ptrs.get_element_ty() != tl.bfloat16:
        stock = STATE.original[ip.InterpreterBuilder, "create_masked_load"]
        return stock(self, ptrs, mask, other, *rest, **named)
    fill = np.zeros(ptrs.data.shape, _BITS) if other is None else other.data.view(_BITS)
    return stored(ip._interpreter.load(ptrs.data, mask.data, fill, _BITS).view(BF16), tl.bfloat16)


def create_masked_store(
    self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any, **named: Any
) -> Any:
    data = value.data.view(_BITS) if value.data.dtype == BF16 else value.data
    return ip._interpreter.store(ptrs.data, data, mask.data)


def create_atomic_rmw(self: Any, rmwOp: Any, ptr: Any, val: Any, mask: Any, *rest: Any) -> Any:
    """bfloat16 additions, which Triton's C++ atomics lack: lane after lane, each sum rounded."""
    if val.data.dtype != BF16:
        stock = STATE.original[ip.InterpreterBuilder, "create_atomic_rmw"]
        return stock(self, rmwOp, ptr, val, mask, *rest)
    if rmwOp != ip._ir.ATOMIC_OP.FADD:
        raise NotImplementedError(f"bfloat16 atomic {rmwOp} is not modelled")
    address, addend, active = np.broadcast_arrays(ptr.data, val.data, mask.data)
    old = np.zeros(address.shape, BF16)
    for i in zip(*np.nonzero(active), strict=True):
        cell = ctypes.c_uint16.from_address(int(address[i]))
        old[i] = np.uint16(cell.value).view(BF16)
        cell.value = int((old[i] + addend[i]).view(_BITS))
    return stored(old, tl.bfloat16)


def patch_lang_tensor(tensor: Any, scope: Any) -> None:
    STATE.original[ip, "_patch_lang_tensor"](tensor, scope)
    # Triton 3.6 calls int() on an array of one element, an error since NumPy 2.4.
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))
