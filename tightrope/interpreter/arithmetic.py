"""Replacements for the interpreter's arithmetic: products that may fuse, sums, dots, extrema.

A product remembers its factors in `attr["product"]`; a sum that finds them rounds once, as LLVM's
contraction does (left operand first: `a*b + c*d` is fma(a, b, RN(c*d)), read from PTX for sm_90).
Views of a product (broadcast, new axis, splat) stay in registers and keep the factors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.runtime.interpreter as ip

from tightrope.interpreter.dots import dot
from tightrope.interpreter.rounding import Array, fma, high_product
from tightrope.interpreter.state import STATE
from tightrope.interpreter.types import Handle, stored, stored_dtype, values


class PendingDot(Handle):
    """A dot not evaluated yet: the compiler folds `x + tl.dot(a, b)` into the accumulator."""

    def __init__(self, evaluate: Callable[[Array], Array], accumulator: Array, dtype: Any) -> None:
        self.evaluate, self.accumulator = evaluate, accumulator
        self.dtype, self.attr = dtype, dict[str, Any]()
        self._data: Array | None = None

    @property
    def data(self) -> Array:
        if self._data is None:
            self._data = self.evaluate(self.accumulator)
        return self._data

    @data.setter
    def data(self, value: Array) -> None:
        self._data = value

    def takes_an_addend(self) -> bool:
        return self._data is None and not self.accumulator.any()


def create_dot(
    self: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any
) -> Any:
    precision = str(input_precision).rsplit(".", 1)[-1].lower()
    x, y, model = values(a.data, a.dtype), values(b.data, b.dtype), STATE.installed[-1].dot
    return PendingDot(
        lambda c: dot(x, y, c, precision=precision, model=model), d.data, d.dtype.scalar
    )


def binary_op(self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
    """As Triton's, with less around it; what may need more than that goes there."""
    x, y = lhs.data, rhs.data
    if x.dtype == y.dtype and x.dtype.kind != "b":
        data = op(x, y)
        if data.itemsize <= x.itemsize:
            return stored(data, lhs.dtype.scalar)
    return STATE.original[ip.InterpreterBuilder, "binary_op"](self, lhs, rhs, op)


def create_fmul(self: Any, lhs: Any, rhs: Any) -> Any:
    product = self.binary_op(lhs, rhs, np.multiply)
    if STATE.fuse:
        product.attr["product"] = np.broadcast_arrays(lhs.data, rhs.data)
    return product


def create_fadd(self: Any, lhs: Any, rhs: Any) -> Any:
    for pending, addend in ((lhs, rhs), (rhs, lhs)):
        if isinstance(pending, PendingDot) and pending.takes_an_addend():
            return PendingDot(pending.evaluate, addend.data, pending.dtype)
    for product, addend in ((lhs, rhs), (rhs, lhs)):
        if "product" in product.attr:
            x, y = product.attr["product"]
            return stored(fma(x, y, addend.data, addend.data.dtype), lhs.dtype.scalar)
    return self.binary_op(lhs, rhs, np.add)


def create_fsub(self: Any, lhs: Any, rhs: Any) -> Any:
    if "product" in lhs.attr:
        x, y = lhs.attr["product"]
        return stored(fma(x, y, -rhs.data, rhs.data.dtype), lhs.dtype.scalar)
    if "product" in rhs.attr:
        x, y = rhs.attr["product"]
        return stored(fma(-x, y, lhs.data, lhs.data.dtype), lhs.dtype.scalar)
    return self.binary_op(lhs, rhs, np.subtract)


def create_fneg(self: Any, input: Any) -> Any:
    out = self.unary_op(input, np.negative)
    return _keep_factors(input, out, lambda x: x, lambda x: -x)


def create_fma(self: Any, x: Any, y: Any, z: Any) -> Any:
    return stored(fma(x.data, y.data, z.data, z.data.dtype), z.dtype.scalar)


def create_expand_dims(self: Any, arg: Any, axis: int) -> Any:
    before = (slice(None),) * axis
    out = stored(arg.data[(*before, None)], arg.dtype.scalar)
    return _keep_factors(arg, out, lambda x: x[(*before, None)])


def create_broadcast(self: Any, arg: Any, shape: Any) -> Any:
    out = stored(np.broadcast_to(arg.data, shape), arg.dtype.scalar)
    return _keep_factors(arg, out, lambda x: np.broadcast_to(x, shape))


def create_splat(self: Any, ret_ty: Any, arg: Any) -> Any:
    # Whole, not a view: Triton's loads and stores read memory in a row.
    data = np.empty(ret_ty.shape, stored_dtype(arg.dtype))
    data[...] = arg.data
    out = stored(data, arg.dtype.scalar)
    return _keep_factors(arg, out, lambda x: np.broadcast_to(x, out.data.shape))


def _keep_factors(
    source: Any,
    out: Any,
    view: Callable[[Array], Array],
    first: Callable[[Array], Array] | None = None,
) -> Any:
    if "product" in source.attr:
        x, y = source.attr["product"]
        out.attr["product"] = ((first or view)(x), view(y))
    return out


def create_umulhi(self: Any, lhs: Any, rhs: Any) -> Any:
    return stored(high_product(lhs.data, rhs.data), lhs.dtype.scalar)


def _extremum(choose: Any, sign: int) -> Callable[..., Any]:
    """max.f32 and min.f32 order -0 below +0, which NumPy leaves open."""

    def create(self: Any, lhs: Any, rhs: Any) -> Any:
        x, y = lhs.data, rhs.data
        out = choose(x, y)
        zeros = out == 0
        if zeros.any():
            both = zeros & (x == y)
            out = np.where(both, x + y if sign > 0 else -(-x - y), out)
        return stored(out, lhs.dtype.scalar)

    return create


create_maxnumf = _extremum(np.fmax, 1)
create_minnumf = _extremum(np.fmin, -1)
create_maximumf = _extremum(np.maximum, 1)
create_minimumf = _extremum(np.minimum, -1)


def create_clampf(self: Any, arg: Any, lo: Any, hi: Any, propagate_nans: Any) -> Any:
    if propagate_nans == ip._ir.PROPAGATE_NAN.NONE:
        return create_minnumf(self, create_maxnumf(self, arg, lo), hi)
    return create_minimumf(self, create_maximumf(self, arg, lo), hi)
