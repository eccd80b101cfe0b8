"""Floating-point formats: correct rounding and half an ulp, for values held in float64.

All arrays are float64 and hold values that the small formats represent exactly, or values that are
about to be rounded to one. Definitions follow IEEE 754-2019 (binary16, binary32, binary64) and the
usual bfloat16 (8 significand bits, the exponent range of binary32).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

Array = np.ndarray


@dataclass(frozen=True)
class Format:
    """A binary floating-point format; `precision` counts the hidden bit too."""

    name: str
    precision: int
    emin: int
    emax: int

    @cached_property
    def dtype(self) -> np.dtype:
        """The NumPy dtype that stores it (`ml_dtypes.bfloat16` for bfloat16)."""
        if self.name == "bfloat16":
            import ml_dtypes

            return np.dtype(ml_dtypes.bfloat16)
        return np.dtype(self.name)

    @property
    def unit(self) -> float:
        """Unit roundoff: the largest relative error of one rounding of a normal number."""
        return 2.0**-self.precision

    @property
    def largest(self) -> float:
        return (2.0 - 2.0 ** (1 - self.precision)) * 2.0**self.emax

    @property
    def tiny(self) -> float:
        """The smallest subnormal."""
        return 2.0 ** (self.emin - self.precision + 1)

    def ulp(self, x: ArrayLike) -> Array:
        """The spacing of the format in the binade of |x|, subnormals included.

        Beyond the largest number, infinity and NaN among them, it is that of the last binade.
        """
        _, exponent = np.frexp(np.abs(np.asarray(x, np.float64)))
        exponent = np.where(np.asarray(x) == 0, self.emin, exponent - 1)
        exponent = np.where(np.isfinite(x), np.clip(exponent, self.emin, self.emax), self.emax)
        return np.ldexp(1.0, exponent - self.precision + 1)

    def half_ulp(self, x: ArrayLike) -> Array:
        """A bound on |RN(y) - y| for every |y| <= |x| that does not overflow; monotone in |x|.

        It is half the spacing at |x|. float64 cannot hold half the spacing of its own subnormals,
        2**-1075; there the bound is the next number above, the spacing itself.
        """
        return np.maximum(0.5 * self.ulp(x), np.finfo(np.float64).smallest_subnormal)

    def round(self, x: ArrayLike) -> Array:
        """Round to nearest, ties to even; beyond the largest number, to infinity as IEEE does."""
        x = np.asarray(x, np.float64)
        if self.precision >= 53:
            return x
        with np.errstate(invalid="ignore", over="ignore"):
            spacing = self.ulp(np.where(np.isfinite(x), x, 0.0))
            y = np.rint(x / spacing) * spacing
            return np.where(
                np.abs(y) > self.largest, np.copysign(np.inf, x), np.where(np.isfinite(x), y, x)
            )

    def truncate(self, x: ArrayLike) -> Array:
        """Round toward zero."""
        x = np.asarray(x, np.float64)
        if self.precision >= 53:
            return x
        spacing = self.ulp(np.where(np.isfinite(x), x, 0.0))
        y = np.trunc(x / spacing) * spacing
        return np.where(np.isfinite(x), np.clip(y, -self.largest, self.largest), x)

    def neighbours(self, x: ArrayLike) -> tuple[Array, Array]:
        """The next value of the format below and above x, which must itself be in the format."""
        x = np.asarray(x, np.float64)
        if self.precision >= 53:
            return np.nextafter(x, -np.inf), np.nextafter(x, np.inf)
        magnitude = np.abs(x)
        outward = magnitude + self.ulp(magnitude)
        # below a power of two the spacing is half as wide; there `inward` steps by that
        inward = magnitude - np.where(
            (np.frexp(magnitude)[0] == 0.5) & (magnitude > 2.0**self.emin),
            0.5 * self.ulp(magnitude),
            self.ulp(magnitude),
        )
        outward = np.where(outward > self.largest, np.inf, outward)
        below = np.where(x > 0, inward, -outward)
        above = np.where(x >= 0, outward, -inward)
        infinite = np.isinf(x)
        below = np.where(infinite, np.where(x > 0, self.largest, -np.inf), below)
        above = np.where(infinite, np.where(x > 0, np.inf, -self.largest), above)
        return below, above

    def round_fraction(self, value: Fraction) -> float:
        """Round a rational exactly once, to nearest with ties to even."""
        if value == 0:
            return 0.0
        magnitude = abs(value)
        exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
        if Fraction(2) ** exponent > magnitude:
            exponent -= 1
        spacing = Fraction(2) ** (max(exponent, self.emin) - self.precision + 1)
        rounded = round(magnitude / spacing) * spacing  # Python rounds halves to even
        result = float("inf") if rounded > Fraction(self.largest) else float(rounded)
        return result if value > 0 else -result


FORMATS = {
    "float64": Format("float64", 53, -1022, 1023),
    "float32": Format("float32", 24, -126, 127),
    "float16": Format("float16", 11, -14, 15),
    "bfloat16": Format("bfloat16", 8, -126, 127),
}


def format_of(array: Array) -> Format:
    """The format that an array is stored in; raises KeyError for a dtype that is not floating."""
    return FORMATS[array.dtype.name]


def stored(values: ArrayLike, name: str) -> Array:
    """`values` rounded once to the named format and stored in its NumPy dtype."""
    if name in FORMATS:
        return FORMATS[name].round(values).astype(FORMATS[name].dtype)
    return np.asarray(values, np.dtype(name))


def widen(array: Array) -> Array:
    """The same values in float64 (exact for every format here)."""
    return np.asarray(array).astype(np.float64)
