"""Replacements for the interpreter's sums, scans and extrema along an axis.

Compiled sums stay in the tensor's own type and combine lanes in a butterfly, so here: by halves.
The columns that a thread adds itself depend on the layout, which is not known here; the orders that
an H200 took are in `NOT_FAITHFUL`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.runtime.interpreter as ip

from tightrope.interpreter.rounding import Array
from tightrope.interpreter.state import STATE

_SILENT = {np.nanmax: np.fmax.reduce, np.nanmin: np.fmin.reduce}


def sum_by_halves(x: Array, axis: int) -> Array:
    """Sum along an axis, kept with length one: first half plus second half, again and again."""
    last = axis in (-1, x.ndim - 1)
    y = x if last else np.moveaxis(x, axis, -1)
    while (length := y.shape[-1]) > 1:
        half = length // 2
        rest = y[..., 2 * half :]
        y = y[..., :half] + y[..., half : 2 * half]
        y = np.concatenate([y, rest], -1) if length % 2 else y
    return y if last else np.moveaxis(y, -1, axis)


def reduce_sum(self: Any, input: Any) -> Any:
    x = input.handle.data
    if not input.dtype.is_floating():
        return STATE.original[ip.ReduceOps, "sum"](self, input)
    if self.axis is None:
        total = sum_by_halves(x.reshape(-1), 0)
        total = total.reshape((1,) * x.ndim) if self.keep_dims else total[0]
    else:
        total = sum_by_halves(x, self.axis)
        total = total if self.keep_dims else total.squeeze(self.axis)
    return self.to_tensor(total, input.dtype)


def scan_sum(self: Any, input: Any) -> Any:
    """Cumulative sum by doubling (Kogge-Stone), as warp shuffles do it."""
    if not input.dtype.is_floating():
        return STATE.original[ip.ScanOps, "cumsum"](self, input)
    y = np.moveaxis(input.handle.data, self.axis, -1)
    distance = 1
    while distance < y.shape[-1]:
        y = np.concatenate([y[..., :distance], y[..., distance:] + y[..., :-distance]], -1)
        distance *= 2
    return [self.to_tensor(np.ascontiguousarray(np.moveaxis(y, -1, self.axis)), input.dtype)]


def min_max(self: Any, input: Any, val_reduce_op: Any, idx_reduce_op: Any = None) -> Any:
    # np.nanmax warns where all are NaN, and does not know the NaN of ml_dtypes' types.
    stock = STATE.original[ip.ReduceOps, "min_max"]
    return stock(self, input, _SILENT.get(val_reduce_op, val_reduce_op), idx_reduce_op)
