"""Triton types and the NumPy types that hold them: bfloat16 as `ml_dtypes.bfloat16`.

fp8 stays uint8, as in Triton; only casts and dots look inside it.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import triton.runtime.interpreter as ip

from tightrope.interpreter.rounding import BF16, Array

Handle = ip.TensorHandle

_POINTER = np.dtype(np.uint64)
_FP8 = {
    "fp8e5": np.dtype(ml_dtypes.float8_e5m2),
    "fp8e4nv": np.dtype(ml_dtypes.float8_e4m3fn),
    "fp8e4b8": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "fp8e5b16": np.dtype(ml_dtypes.float8_e5m2fnuz),
}
_STORED = {
    "int1": np.dtype(bool),
    "fp16": np.dtype(np.float16),
    "bf16": BF16,
    "fp32": np.dtype(np.float32),
    "fp64": np.dtype(np.float64),
    "fp8e4b15": np.dtype(np.uint8),
    **{f"{sign}int{n}": np.dtype(f"{sign}int{n}") for sign in ("", "u") for n in (8, 16, 32, 64)},
    **{name: np.dtype(np.uint8) for name in _FP8},
}


def stored_dtype(tt_dtype: Any) -> np.dtype:
    """The NumPy dtype that stores a Triton type (scalar, block or pointer)."""
    scalar = tt_dtype.scalar
    return _POINTER if scalar.is_ptr() else _STORED[scalar.name]


def value_dtype(tt_dtype: Any) -> np.dtype:
    """The NumPy dtype of the values: as stored, but fp8 as a number format."""
    name = tt_dtype.scalar.name
    return _FP8.get(name) or stored_dtype(tt_dtype)


def values(data: Array, tt_dtype: Any) -> Array:
    """Stored data seen as numbers."""
    name = tt_dtype.scalar.name
    return data.view(_FP8[name]) if name in _FP8 else data


def handle(data: Array, tt_dtype: Any) -> Any:
    """A TensorHandle of numbers (fp8 numbers are put back into uint8)."""
    scalar = tt_dtype.scalar
    return stored(data.view(np.uint8) if scalar.name in _FP8 else data, scalar)


def stored(data: Array, scalar: Any) -> Any:
    """A TensorHandle of data as stored, without the look at their size that Triton takes."""
    made = Handle.__new__(Handle)
    made.data, made.dtype, made.attr = data, scalar, {}
    return made
