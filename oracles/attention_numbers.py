"""Small pieces of float64 arithmetic that the budgets of attention share, made to be fast.

`power`, `half_ulp` and `rounded` agree with `tightrope.formats.Format` wherever nothing overflows;
they are called on (rows x keys) arrays for every case, hence the bits.
"""

from __future__ import annotations

import math

import numpy as np

from tightrope.formats import FORMATS, Array, Format

FLOAT32 = FORMATS["float32"]
TF32 = Format("tf32", 11, -126, 127)
U = FLOAT32.unit
U64 = 2.0**-53
LN2 = math.log(2.0)
LOG2E = 1.4426950408889634
LOG2E_32 = float(np.float32(LOG2E))
LN2_32 = float(np.float32(LN2))
OUTWARD = 1 + 2.0**-40  # more than the float64 roundings of any bound here
NORMAL = 2.0**-126
_EXPONENT = np.int64(0x7FF0000000000000)
_MANTISSA = np.int64(0x000FFFFFFFFFFFFF)


def power(x: Array) -> Array:
    """2**floor(log2 |x|); 0 for 0, inf for what is not finite."""
    bits = np.ascontiguousarray(x).view(np.int64) & _EXPONENT
    return bits.view(np.float64).reshape(np.shape(x))


def half_ulp(x: Array, fmt: Format = FLOAT32) -> Array:
    """A bound on |RN(y) - y| for |y| <= |x|, gradual underflow included, overflow not."""
    return np.maximum(power(x) * fmt.unit, 0.5 * fmt.tiny)


def rounded(x: Array, fmt: Format = FLOAT32, truncate: bool = False) -> Array:
    """x to nearest even, or toward zero, for finite x that does not overflow."""
    spacing = np.maximum(power(x) * (2 * fmt.unit), fmt.tiny)
    return (np.trunc if truncate else np.rint)(x / spacing) * spacing


def lowest_bit(x: Array) -> Array:
    """The value of the last set bit of each element; inf for 0."""
    bits = (np.ascontiguousarray(x).view(np.int64) & _MANTISSA) | np.int64(1 << 52)
    low = (bits & -bits).astype(np.float64).reshape(np.shape(x)) * power(x) * 2.0**-52
    return np.where(x == 0, np.inf, low)


def growth(log2_error: Array, logarithm: Array | float = 0.0) -> Array:
    """expm1(ln2 a + b): the relative error of 2**(y + a) (1 + ..)."""
    with np.errstate(over="ignore"):
        return np.expm1(LN2 * log2_error + logarithm)


def gamma(count: Array | float) -> Array:
    """k u / (1 - k u): k roundings in a row (Higham 2002, lemma 3.1); infinite from k u = 1 on."""
    small = np.asarray(count, np.float64) * U
    return np.where(small < 1, small / np.maximum(1 - small, 1e-300), np.inf)
