"""Tensors of simulated Gluon: NumPy arrays, rounded as on the faithful interpreter."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from tightrope.interpreter.reductions import sum_by_halves
from tightrope.interpreter.rounding import fma as fused

Array = np.ndarray[Any, Any]


class Value(np.ndarray[Any, Any]):
    """A tensor or scalar of the language."""

    def __array_wrap__(self, array: Array, context: Any = None, return_scalar: bool = False) -> Any:
        return array.view(Value)

    def __getitem__(self, key: Any) -> Any:
        return np.asarray(self)[key].view(Value)

    @property
    def type(self) -> Any:
        return SimpleNamespace(layout=None)

    def to(self, dtype: Any) -> Value:
        with np.errstate(over="ignore"):
            return self.astype(dtype).view(Value)


def value(x: Any) -> Value:
    return np.asarray(x).view(Value)


def fma(a: Any, b: Any, c: Any) -> Value:
    return value(fused(*(np.asarray(x, np.float32) for x in (a, b, c)), np.dtype(np.float32)))


def exp2(x: Any) -> Value:
    found = np.exp2(np.asarray(x, np.float64))
    return value(np.where(found < 2.0**-126, 0.0, found).astype(np.float32))


def log2(x: Any) -> Value:
    return value(np.log2(np.asarray(x, np.float64)).astype(np.float32))


def sum(x: Any, axis: int) -> Value:
    return value(sum_by_halves(np.asarray(x), axis).squeeze(axis))
