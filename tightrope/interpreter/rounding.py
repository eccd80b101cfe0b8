"""Single roundings of arrays: casts, fused multiply-add; and the high half of a product.

Arrays are NumPy's; bfloat16 and fp8 are `ml_dtypes` types. Round-to-odd before a narrower rounding
to nearest makes two roundings equal to one (Boldo and Melquiond, "Emulation of a FMA and correctly
rounded sums: proved algorithms using rounding to odd", IEEE Trans. Computers 57, 2008).
"""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np

Array = np.ndarray

BF16 = np.dtype(ml_dtypes.bfloat16)
FP8 = frozenset(
    np.dtype(t)
    for t in (
        ml_dtypes.float8_e5m2,
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e4m3fnuz,
        ml_dtypes.float8_e5m2fnuz,
    )
)

_SUBNORMAL32 = np.uint64((1023 - 126 << 53) - 1)  # twice the pattern of 2^-126, less one


def round_to_odd(y: Array, error: Array) -> Array:
    """Turn y = RN(exact), float32 or float64, into the round-to-odd of exact.

    error: anything with the sign of exact - y, and zero where y is exact.
    """
    bits: Array = y.view(np.int64 if y.dtype == np.float64 else np.int32)
    wrong = (error != 0) & np.isfinite(error) & (np.bitwise_and(bits, 1) == 0)
    step = np.where(np.signbit(error) == np.signbit(y), 1, -1).astype(bits.dtype)
    return np.where(wrong, bits + step, bits).view(y.dtype)


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """s = RN(a + b) and the exact error a + b - s (Knuth), for finite s."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def integer_to_float64(x: Array) -> Array:
    """Integers as float64; 64-bit ones that do not fit are rounded to odd."""
    if x.dtype.itemsize < 8:
        return x.astype(np.float64)
    high = (x >> x.dtype.type(32)).astype(np.float64) * 2.0**32
    low = (x & x.dtype.type(0xFFFFFFFF)).astype(np.float64)
    return round_to_odd(*two_sum(high, low))


def round_to(x: Array, dtype: np.dtype, toward_zero: bool = False) -> Array:
    """The values of x (any real dtype) rounded once to the float type `dtype`.

    To nearest even or toward zero. Overflow gives infinity, except that fp8 saturates, as
    `cvt.rn.satfinite` does. Silent: the caller decides about NumPy's warnings.
    """
    if x.dtype == dtype:
        return x
    if x.dtype.kind in "biu":
        if dtype.itemsize >= 4:
            return x.astype(dtype)
        x = integer_to_float64(x)
    if dtype in FP8:
        largest = float(ml_dtypes.finfo(dtype).max)
        x = np.clip(x.astype(np.float64), -largest, largest)
    y = x
    if x.dtype == np.float64 and dtype.itemsize <= 2 and dtype != np.float16:
        # ml_dtypes converts float64 through float32, which would round twice.
        y = x.astype(np.float32)
        y = round_to_odd(y, np.where(np.isinf(y), -np.sign(y) * np.isfinite(x), x - y))
    y = y.astype(dtype)
    return _truncated(y, x) if toward_zero else y


def _truncated(y: Array, x: Array) -> Array:
    too_large = np.abs(y.astype(np.float64)) > np.abs(x.astype(np.float64))
    y = y.copy()
    y.view(f"u{y.itemsize}")[too_large] -= 1
    return y


def to_integer(x: Array, dtype: np.dtype) -> Array:
    """Floats to integers as PTX `cvt.rzi` does: truncate and saturate; 8-bit targets wrap from 16.

    NaN gives 0, and 2^63 for 64-bit targets (CUDA math API, type casting intrinsics).
    """
    wide = dtype if dtype.itemsize > 1 else np.dtype(dtype.kind + "2")
    limits = np.iinfo(wide)
    f = np.trunc(x.astype(np.float64))
    nan = 0 if wide.itemsize < 8 else limits.min if wide.kind == "i" else 1 << 63
    above, below, missing = f >= float(limits.max), f <= float(limits.min), np.isnan(f)
    y = np.where(above | below | missing, 0, f).astype(wide)
    y = np.where(above, wide.type(limits.max), np.where(below, wide.type(limits.min), y))
    return np.where(missing, wide.type(nan), y).astype(dtype)


def double_rounding(s: Array) -> bool:
    """Whether rounding one of these float64 sums to float32 might not be the sum's one rounding.

    It might where s lies on a tie between two float32, or the result is subnormal (finer ties).
    """
    bits = s.view(np.uint64)
    below = (bits << np.uint64(1)) - np.uint64(1)  # zeros wrap to the largest
    return bool(
        ((bits & np.uint64(0x1FFFFFFF)) == 0x10000000).any() or (below < _SUBNORMAL32).any()
    )


def fma(x: Array, y: Array, z: Array, dtype: np.dtype) -> Array:
    """x*y + z, operands of the float type `dtype` or exact in it, rounded once to it."""
    if dtype == np.float64:
        return fma64(x, y, z)
    # A product of two float32 is exact in float64; the sum is made odd, then rounded.
    product = x.astype(np.float64) * y.astype(np.float64)
    if dtype == np.float32 and not double_rounding(s := product + z):
        return s.astype(dtype)
    product, addend = np.broadcast_arrays(product, z.astype(np.float64))
    return round_to(round_to_odd(*two_sum(product, addend)), dtype)


def fma64(x: Array, y: Array, z: Array) -> Array:
    """x*y + z in float64, rounded once (Boldo and Melquiond 2008, figure 5).

    Dekker's product and the sums are exact while no exponent is extreme; the few other elements
    are computed with rationals.
    """
    x, y, z = np.broadcast_arrays(x, y, z)
    product = x * y
    plain = ~(np.isfinite(x) & np.isfinite(y) & np.isfinite(z)) | (x == 0) | (y == 0)
    size = np.abs(product)
    safe = (np.maximum(np.abs(x), np.abs(y)) < 2.0**990) & (size > 2.0**-900) & (size < 2.0**1000)
    safe &= np.abs(z) < 2.0**1000
    low = _product_error(x, y, product)
    s, t = two_sum(z, low)
    s, u = two_sum(product, s)
    result = np.asarray(np.where(plain, product + z, s + round_to_odd(*two_sum(t, u))))
    for i in zip(*np.nonzero(~plain & ~safe), strict=True):
        result[i] = _exact_fma(float(x[i]), float(y[i]), float(z[i]))
    return result


def _product_error(x: Array, y: Array, product: Array) -> Array:
    """x*y - product, exactly (Dekker 1971 with Veltkamp's splitting)."""
    xh, yh = _upper(x), _upper(y)
    xl, yl = x - xh, y - yh
    return xl * yl - (((product - xh * yh) - xl * yh) - xh * yl)


def _upper(x: Array) -> Array:
    t = x * 134217729.0
    return t - (t - x)


def _exact_fma(x: float, y: float, z: float) -> float:
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    try:
        return exact.numerator / exact.denominator
    except OverflowError:
        return float("inf") if exact > 0 else float("-inf")


def high_product(a: Array, b: Array) -> Array:
    """The high half of the product of equally wide integers taken as unsigned (PTX `mul.hi`)."""
    width = a.dtype.itemsize
    x, y = a.view(f"u{width}"), b.view(f"u{width}")
    if width < 8:
        wide = np.dtype(f"u{2 * width}")
        product = x.astype(wide) * y.astype(wide)
        return (product >> wide.type(8 * width)).astype(x.dtype).view(a.dtype)
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    xh, xl, yh, yl = x >> half, x & mask, y >> half, y & mask
    middle = xh * yl + (xl * yl >> half)
    other = xl * yh + (middle & mask)
    return (xh * yh + (middle >> half) + (other >> half)).view(a.dtype)
