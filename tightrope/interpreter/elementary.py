"""Replacements for the interpreter's elementary functions on float32.

Each is evaluated in float64 and rounded once, the same on every host; NumPy's own float32 versions
differ between CPUs. What the PTX for sm_90 prescribes beyond the approximation itself is modelled:
tl.exp is a rounded product with log2(e) and ex2.approx; ex2, sqrt and rsqrt of tl.exp2, tl.sqrt and
tl.rsqrt are the .ftz forms, which flush subnormals (read from Triton 3.7's output; seen for every
subnormal result of exp2, and argument of sqrt and rsqrt, on an H200).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tightrope.interpreter.rounding import Array, fma
from tightrope.interpreter.types import stored

_TINY = 2.0**-126
_LOG2_E = np.float32(1.4426950408889634)


def _exp(x: Array) -> Array:
    return np.exp2((x * _LOG2_E).astype(np.float64))


def _exp2(x: Array) -> Array:
    y = np.exp2(x.astype(np.float64))
    return np.where(y < _TINY, 0.0, y)


def _flushed(x: Array) -> Array:
    x = x.astype(np.float64)
    return np.where(np.abs(x) < _TINY, np.copysign(0.0, x), x)


def _unary(
    single: Callable[[Array], Array], double: Callable[[Array], Array]
) -> Callable[..., Any]:
    def create(self: Any, arg: Any) -> Any:
        x = arg.data
        y = single(x).astype(np.float32) if x.dtype == np.float32 else double(x)
        return stored(y, arg.dtype.scalar)

    return create


def _in_float64(function: Callable[[Array], Array]) -> Callable[..., Any]:
    return _unary(lambda x: function(x.astype(np.float64)), function)


REPLACED: dict[str, Callable[..., Any]] = {
    "create_exp": _unary(_exp, np.exp),
    "create_exp2": _unary(_exp2, np.exp2),
    "create_sqrt": _unary(lambda x: np.sqrt(_flushed(x)), np.sqrt),
    "create_rsqrt": _unary(lambda x: 1 / np.sqrt(_flushed(x)), lambda x: 1 / np.sqrt(x)),
    "create_log": _in_float64(np.log),
    "create_log2": _in_float64(np.log2),
    "create_sin": _in_float64(np.sin),
    "create_cos": _in_float64(np.cos),
}


def create_frem(self: Any, lhs: Any, rhs: Any) -> Any:
    """`%` of float32 as compiled: x - trunc(x / y) * y with an fma, x itself where y is infinite.

    It is not the exact remainder once x / y needs more than 24 bits. float64 stays exact.
    """
    x, y = lhs.data, rhs.data
    if x.dtype != np.float32:
        return self.binary_op(lhs, rhs, np.fmod)
    result = fma(-np.trunc(x / y), y, x, x.dtype)
    return stored(np.where(np.isinf(y), x, result), lhs.dtype.scalar)
