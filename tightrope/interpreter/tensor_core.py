"""One tensor-core dot product: the published Hopper model, and the same, faster, for usual values.

`group` products and the accumulator are aligned to the largest exponent, each is truncated to
`bits` fractional bits below it, they are added exactly, and the sum is rounded to the accumulator's
format. The exponent of a product is the sum of its factors' (not normalised); a subnormal number
has the smallest exponent of its format; a zero counts for nothing but the floor, and every zero
that results is +0, also one that a negative sum underflows to. Sources: Xie et al., "MMA-Sim",
arXiv 2511.10909, table 4; Khattak and Mikaitis, arXiv 2512.07004, for the floor; the last, an H200.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import ml_dtypes
import numpy as np

from tightrope.interpreter.rounding import BF16, FP8, Array, round_to


class Core(NamedTuple):
    """Numbers that describe one kind of instruction, those of an H200 as the defaults."""

    group: int  # products in one step
    bits: int  # fractional bits kept of each term
    kept: int = 23  # fractional bits kept of a float32 result, toward zero
    floor: int = -133  # no term is aligned to a smaller exponent
    normalised: bool = False  # whether a subnormal operand has the exponent of its leading bit


HALF = Core(16, 25)  # fp16, bf16
TF32 = Core(8, 25)
FP8_WGMMA = Core(32, 13, kept=13)

_LOWEST = {
    np.dtype(np.float16): -14,
    np.dtype(np.float32): -126,
    BF16: -126,
    np.dtype(ml_dtypes.float8_e4m3fn): -6,
    np.dtype(ml_dtypes.float8_e5m2): -14,
    np.dtype(ml_dtypes.float8_e4m3fnuz): -7,
    np.dtype(ml_dtypes.float8_e5m2fnuz): -15,
}
_ZERO, _SPECIAL = -2000, 10000  # exponents that stand for "none" and for infinities and NaN
_SMALL, _LARGE = -100, 100  # within these the fast path's float32 products are safe


def core_for(dtype: np.dtype, rows: int, batched: bool) -> Core:
    """The instruction that Triton chooses on sm_90 for operands of this dtype (read from its PTX).

    fp8 has one only with 64 rows and 4 warps; HALF for fp8 means that it is converted to fp16.
    """
    if dtype == np.float32:
        return TF32
    return FP8_WGMMA if dtype in FP8 and rows >= 64 and not batched else HALF


def tensor_core(a: Array, b: Array, c: Array, core: Core) -> Array:
    """c + a @ b by the model. a (..., M, K), b (..., K, N), c (..., M, N) float32 or float16.

    Operands as the instruction reads them: fp16, bf16, fp8, or tf32 values in float32. An infinity
    or a NaN gives what IEEE arithmetic gives.
    """
    if a.ndim > 2:
        slots = [tensor_core(*slot, core) for slot in zip(a, b, c, strict=True)]
        return np.stack(slots)
    fast = _fast(a, b, c, core)
    return _stepwise(a, b, c, core) if fast is None else fast


def _stepwise(a: Array, b: Array, c: Array, core: Core) -> Array:
    """The definition. All in float64, which holds every aligned term and every sum exactly."""
    x, y, total = a.astype(np.float64), b.astype(np.float64).T, c.astype(np.float64)
    special = _special(x, y, total)
    x, y, total = (np.where(np.isfinite(v), v, 0.0) for v in (x, y, total))
    lowest = -2000 if core.normalised else _LOWEST[a.dtype]
    exponent_x, exponent_y = _exponent(x, lowest), _exponent(y, lowest)
    for k in range(0, a.shape[1], core.group):
        step = np.s_[:, k : k + core.group]
        largest = (exponent_x[step][:, None] + exponent_y[step][None]).max(-1)
        largest = np.maximum(largest, _exponent(total, _LOWEST[c.dtype]))
        scale = np.ldexp(1.0, core.bits - np.clip(largest, core.floor, 1000))
        terms = np.trunc(x[step][:, None] * y[step][None] * scale[..., None])
        exact = (terms.sum(-1) + np.trunc(total * scale)) / scale
        total = _rounded(exact, c.dtype, core.kept) + 0.0  # every zero is +0, also by underflow
    return (total if special is None else total + special).astype(c.dtype)


def _special(x: Array, y: Array, c: Array) -> Array | None:
    """Infinities and NaN of the outputs, 0 where there are none; None if all numbers are finite."""
    if np.isfinite(x).all() and np.isfinite(y).all() and np.isfinite(c).all():
        return None
    total = (x[:, None] * y[None]).sum(-1) + c
    return np.where(np.isfinite(total), 0.0, total)


def _exponent(x: Array, lowest: int) -> Array:
    return np.where(x == 0, _ZERO, np.maximum(np.frexp(x)[1] - 1, lowest))


def _rounded(x: Array, dtype: np.dtype, kept: int) -> Array:
    """To float32 with `kept` fractional bits, toward zero; or to nearest float16. As float64."""
    if dtype == np.float16:
        return round_to(x, dtype).astype(np.float64)
    unit = np.ldexp(1.0, np.maximum(np.frexp(x)[1] - 1, -126) - kept)
    x = np.trunc(x / unit) * unit
    return np.where(np.abs(x) < 2.0**128, x, np.copysign(np.inf, x))


def _fast(a: Array, b: Array, c: Array, core: Core) -> Array | None:
    """The same where no exponent is extreme, in float32 products and int32 sums; else None.

    A product is exact in float32; scaled, it is below 2^(bits + 2), and its conversion to an
    integer truncates it. Where all products of a step are zeros, any scale will do for them.
    """
    (m, depth), n = a.shape, b.shape[1]
    # Not so: an accumulator that is cut or rounded to nearest; a ragged last step; sums that
    # overflow an int32.
    if (
        c.dtype != np.float32
        or core.bits < 23
        or depth % core.group
        or core.group << core.bits + 2 > 1 << 31
    ):
        return None
    shape = depth // core.group, core.group, m * n
    exponents = _exponents(a, core).T[:, :, None] + _exponents(b, core)[:, None, :]
    largest = np.maximum.reduce(exponents.reshape(shape), axis=1)
    zeros = largest.min(initial=0) < _SMALL
    if (
        (zeros and ((largest < _SMALL) & (largest > _ZERO // 2)).any())
        or largest.max(initial=0) >= _LARGE  # also: an infinity or a NaN
        or not max(c.max(initial=0), -c.min(initial=0)) < 2.0**_LARGE
    ):
        return None
    x, y = a.T.astype(np.float32, order="C"), b.astype(np.float32)
    products = (x[:, :, None] * y[:, None, :]).reshape(shape)
    biased = np.maximum(largest, core.floor) + np.int64(1023)
    return _steps(products, biased, c, core, zeros)


def _steps(products: Array, biased: Array, c: Array, core: Core, zeros: bool) -> Array:
    """products (steps, group, outputs) float32; biased (steps, outputs), their exponents + 1023."""
    keep, mantissa, field = np.int64(-1 << 52 - core.kept), np.int64(52), np.int64(0x7FF)
    one, finest = np.int64(2 * 1023 + core.bits), 2.0 ** (core.bits - _SMALL)
    total = c.reshape(-1).astype(np.float64)
    bits = total.view(np.int64)
    for terms, exponent in zip(products, biased, strict=True):
        aligned = np.maximum(bits >> mantissa & field, exponent)
        scale = (one - aligned << mantissa).view(np.float64)
        scaled = terms * (np.minimum(scale, finest) if zeros else scale).astype(np.float32)
        total *= scale
        np.trunc(total, out=total)
        total += np.add.reduce(scaled.astype(np.int32), axis=0, dtype=np.int32)
        total /= scale
        bits &= keep  # toward zero
    return total.astype(np.float32).reshape(c.shape)


def _exponents(x: Array, core: Core) -> Array:
    """int16 exponents of the values of x, as `core` sees them."""
    if x.dtype.itemsize < 4:
        return _table(x.dtype, core.normalised)[x.view(f"u{x.itemsize}")]
    bits = np.ascontiguousarray(x).view(np.int32)
    exponent = ((bits >> 23 & 0xFF) - 127).astype(np.int16)
    np.maximum(exponent, _LOWEST[x.dtype], out=exponent)
    exponent[exponent == 128] = _SPECIAL
    exponent[x == 0] = _ZERO
    return exponent


@cache
def _table(dtype: np.dtype, normalised: bool) -> Array:
    """The exponent of every value of a type of at most 16 bits, by bit pattern."""
    patterns = np.arange(1 << 8 * dtype.itemsize, dtype=f"u{dtype.itemsize}")
    with np.errstate(invalid="ignore"):
        x = patterns.view(dtype).astype(np.float64)
    exponent = _exponent(x, _ZERO if normalised else _LOWEST[dtype])
    return np.where(np.isfinite(x), exponent, _SPECIAL).astype(np.int16)
