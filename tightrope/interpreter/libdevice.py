"""libdevice functions for the interpreter, from NumPy and SciPy in float64, rounded once.

Call them as `libdevice.f(x)`; a name imported from the module before `install` stays Triton's stub.
Functions on integers or bit patterns and directed roundings are refused with NotImplementedError.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import triton.language as tl

from tightrope.interpreter.rounding import round_to
from tightrope.interpreter.types import handle, value_dtype

_SAME_NAME = {
    "abs", "ceil", "floor", "trunc", "copysign", "hypot", "exp", "exp2", "expm1", "log",
    "log2", "log10", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh", "sqrt", "cbrt",
    "rint", "erf", "erfc", "erfinv", "erfcinv", "erfcx", "j0", "j1", "y0", "y1", "fmod",
}  # fmt: skip
_OTHER_NAME = {
    "pow": "power", "asin": "arcsin", "acos": "arccos", "atan": "arctan",
    "atan2": "arctan2", "asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh",
    "tgamma": "gamma", "lgamma": "gammaln", "nearbyint": "rint", "fast_expf": "exp",
    "fast_logf": "log", "fast_log2f": "log2", "fast_log10f": "log10", "fast_sinf": "sin",
    "fast_cosf": "cos", "fast_tanf": "tan", "fast_tanhf": "tanh", "fast_powf": "power",
    "div_rn": "divide", "fast_dividef": "divide", "add_rn": "add", "sub_rn": "subtract",
    "mul_rn": "multiply", "sqrt_rn": "sqrt", "normcdf": "ndtr", "normcdfinv": "ndtri",
    "cyl_bessel_i0": "i0", "cyl_bessel_i1": "i1",
}  # fmt: skip
_WRITTEN: dict[str, Callable[..., Any]] = {
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "rcbrt": lambda x: 1 / np.cbrt(x),
    "rcp_rn": lambda x: 1 / x,
    "saturatef": lambda x: np.fmin(np.fmax(x, 0.0), 1.0),
    "fdim": lambda x, y: np.fmax(x - y, 0),
    "round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
    "exp10": lambda x: np.power(10.0, x),
    "fast_exp10f": lambda x: np.power(10.0, x),
}


@cache
def function(name: str) -> Callable[..., Any] | None:
    """The float64 stand-in for a libdevice function, or None."""
    from scipy import special

    if name in _WRITTEN:
        return _WRITTEN[name]
    if name in ("sinpi", "cospi"):
        degrees = special.sindg if name == "sinpi" else special.cosdg
        return lambda x: degrees(180 * x)
    known = _OTHER_NAME.get(name, name if name in _SAME_NAME else None)
    if known is None:
        return None
    return getattr(np, known, None) or getattr(special, known)


def replacement(name: str) -> Callable[..., Any]:
    """A function that kernels call in place of `libdevice.<name>`."""

    def call(*args: Any, _semantic: Any = None, **unused: Any) -> Any:
        compute = function(name)
        first = next((a for a in args if isinstance(a, tl.tensor)), None)
        if compute is None or first is None or not first.dtype.is_floating():
            raise NotImplementedError(
                f"libdevice.{name} has no stand-in in the faithful interpreter"
            )
        y = np.asarray(compute(*(_float64(a) for a in args)))
        kind = tl.block_type(first.dtype, list(y.shape)) if first.type.is_block() else first.type
        return tl.tensor(handle(round_to(y, value_dtype(first.dtype)), first.dtype), kind)

    return call


def _float64(argument: Any) -> Any:
    if isinstance(argument, tl.tensor):
        return argument.handle.data.astype(np.float64)
    return float(getattr(argument, "value", argument))


def modules() -> tuple[ModuleType, ...]:
    """The modules kernels take libdevice from."""
    from triton.language.extra import libdevice
    from triton.language.extra.cuda import libdevice as cuda_libdevice

    return libdevice, cuda_libdevice


def names(module: ModuleType) -> list[str]:
    """Its public functions."""
    return [n for n, f in vars(module).items() if inspect.isfunction(f) and not n.startswith("_")]
