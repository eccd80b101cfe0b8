"""Elementary functions in float64 with a derived error, from + - * / and rounding alone.

The audit judges devices by them, so that nothing rests on what a vendor documents. Every function
takes the module `xp` (NumPy or torch) and a float64 array of it that holds float32 numbers. With
u = 2^-53, relative errors, from the roundings named (docs/error-budgets.md, audit):

- `exp2`: x = n + f exactly, |f| <= 1/2; f ln 2 is off by 2 u, |f ln 2| < 0.347; Taylor to degree
  14 leaves 1e-19; Horner 2.5 u; last sum 1.42 u; over 2^f >= 0.707: below 6 u. `exp`: n ln 2 is
  taken off in two parts, the first product exact: 0.7 u in place of 2 * 0.347 u: below 7 u.
- `log2`, `log`: x = 2^e m, m within a factor sqrt 2 of 1; (m - 1)/(m + 1) is off by u, its series
  by 1.2 u and 2e-20, two products and a constant 3 u; added to e, |e + log2 m| >= 1/2: below 8 u.
- `softplus`: z = exp(-|x|), 7 u; 2 artanh(z/(2 + z)): 10 u, series 2.3 u, product u; added to
  max(x, 0), which has the same sign: below 15 u.
- `sin`, `cos`: up to pi/4 from x itself; beyond from the fraction of a turn: x times 2^128/(2 pi)
  cut to integers is off by less than 2 * 2^-64 turn, `ANGLE`; then 3 u and at most 3.5 u: 8 u.
- `sqrt`: libraries may be off by more than a rounding (torch's on a CPU is); one step of Heron's
  from a root off by less than 2^-30 leaves 2^-61 and 1.5 u: 2 u. `rsqrt` 3 u, `sigmoid` 10 u.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

U = 2.0**-53
ANGLE = 6.9e-19  # radians; 2 * 2^-64 * 2 pi = 6.82e-19
LN2, LOG2E = 0.6931471805599453, 1.4426950408889634
LN2_HIGH = float.fromhex("0x1.62e42fefa2p-1")  # 40 bits: times an integer below 2^13 exact
LN2_LOW = float.fromhex("0x1.9ef35793c7673p-41")
HALF_PI_HIGH = float.fromhex("0x1.921fb544p+0")
HALF_PI_LOW = 6.123233995736766e-17 + (1.5707963267948966 - HALF_PI_HIGH)
RADIANS = 2.0**-49
QUARTER = 0.7853981633974483
LOWEST, HIGHEST = -173, 105  # of 2^k, the last bit of a 24-bit significand; the second is past them


@dataclass(frozen=True)
class Reference:
    """A function and its error: `relative` times its size, and `absolute` where |x| > pi/4.

    proved: whether the bound is derived here; if not, it is what libraries document.
    """

    of: Callable[[Any, Any], Any]
    relative: float
    absolute: float = 0.0
    proved: bool = True

    def slack(self, xp: Any, x: Any, value: Any) -> Any:
        """Bound on what `value` is off as f(x), in the same shape; its own roundings included."""
        found = xp.abs(value) * (self.relative * (1 + 2.0**-40))
        return (
            found
            if not self.absolute
            else found + xp.where(xp.abs(x) > QUARTER, self.absolute, 0.0)
        )


def two_to(xp: Any, n: Any) -> Any:
    """2^n of whole float64 numbers from -1022 to 1023."""
    return (xp.asarray(n, dtype=xp.int64) + 1023 << 52).view(xp.float64)


def polynomial(z: Any, coefficients: tuple[float, ...]) -> Any:
    """By Horner's rule from the highest power, coefficients from the lowest; at least two."""
    found = z * coefficients[-1] + coefficients[-2]
    for c in coefficients[-3::-1]:
        found = found * z + c
    return found


EXP = tuple(1 / math.factorial(k) for k in range(15))
SIN = tuple((-1) ** k / math.factorial(2 * k + 3) for k in range(8))
COS = tuple((-1) ** k / math.factorial(2 * k + 2) for k in range(9))


def artanh_series(t: Any, terms: int) -> Any:
    """sum t^k/(2k + 1): artanh(s)/s of s^2 = t."""
    return polynomial(t, tuple(1 / (2 * k + 1) for k in range(terms)))


def exp2(xp: Any, x: Any) -> Any:
    """2^x; beyond +-900, 2^+-900."""
    x = xp.clip(x, -900.0, 900.0)
    n = xp.round(x)
    return polynomial((x - n) * LN2, EXP) * two_to(xp, n)


def exp(xp: Any, x: Any) -> Any:
    """e^x; beyond +-600, e^+-600."""
    x = xp.clip(x, -600.0, 600.0)
    n = xp.round(x * LOG2E)
    return polynomial((x - n * LN2_HIGH) - n * LN2_LOW, EXP) * two_to(xp, n)


def _mantissa(xp: Any, x: Any) -> tuple[Any, Any]:
    """m from sqrt(1/2) to sqrt(2) and e of x = 2^e m > 0."""
    m, e = xp.frexp(x)
    small = m < 0.7071067811865476
    return xp.where(small, 2 * m, m), xp.asarray(e, dtype=xp.float64) - xp.where(small, 1.0, 0.0)


def _log_of(m: Any) -> Any:
    """ln m, without a last factor of 2."""
    s = (m - 1) / (m + 1)
    return s * artanh_series(s * s, 12)


def _special_log(xp: Any, x: Any, found: Any) -> Any:
    found = xp.where(x > 0, found, math.nan)
    return xp.where(x == 0, -math.inf, xp.where(x == math.inf, math.inf, found))


def log2(xp: Any, x: Any) -> Any:
    m, e = _mantissa(xp, xp.where((x > 0) & (x < math.inf), x, 1.0))
    return _special_log(xp, x, e + _log_of(m) * (2 / LN2))


def log(xp: Any, x: Any) -> Any:
    """As log2, times ln 2: two roundings more."""
    return log2(xp, x) * LN2


def softplus(xp: Any, x: Any) -> Any:
    """ln(1 + e^x); below -600 as if x were -600, which no format here tells from 0."""
    z = exp(xp, -xp.abs(x))
    s = z / (z + 2)
    return xp.where(x > 0, x, 0.0) + 2 * s * artanh_series(s * s, 18)


def sqrt(xp: Any, x: Any) -> Any:
    root = xp.sqrt(x)
    ordinary = (x > 0) & (x < math.inf)
    near = xp.where(ordinary, root, 1.0)
    return xp.where(ordinary, 0.5 * (near + x / near), root)


def sigmoid(xp: Any, x: Any) -> Any:
    return 1 / (1 + exp(xp, -x))


@lru_cache(maxsize=1)
def turn_words() -> np.ndarray:
    """2^k/(2 pi) mod 1 in units of 2^-128 for k = LOWEST..HIGHEST, cut: (3, count) int64.

    Bits 64 to 127 (as a signed number), 32 to 63 and 0 to 31.
    """
    import mpmath

    with mpmath.workprec(600):
        turns = 1 / (2 * mpmath.pi)
        words = [int(mpmath.floor(mpmath.ldexp(turns, k + 128))) for k in range(LOWEST, HIGHEST)]
    return in_words(words)


def in_words(numbers: list[int]) -> np.ndarray:
    """Integers mod 2^128 as (3, count) int64: the upper 64 bits, the next 32, the last 32."""
    parts = [(n >> 64 & (1 << 64) - 1, n >> 32 & 0xFFFFFFFF, n & 0xFFFFFFFF) for n in numbers]
    return np.array(parts, np.uint64).T.view(np.int64)


def turned(count: Any, words: Any) -> Any:
    """count times a number of `in_words` mod 2^64 in units of 2^-64, int64; 0 <= count < 2^31."""
    return count * words[0] + (count * words[1] + (count * words[2] >> 32) >> 32)


def sin_cos_of_turns(xp: Any, turns: Any) -> tuple[Any, Any]:
    """sin and cos of an angle in units of 2^-64 turn, int64."""
    quadrant = turns + (1 << 61) >> 62
    rest = xp.asarray(turns - (quadrant << 62), dtype=xp.float64) * (2 * math.pi / 2**64)
    return in_quadrant(xp, quadrant, *_sin_cos_near(rest))


def in_quadrant(xp: Any, quadrant: Any, s: Any, c: Any) -> tuple[Any, Any]:
    """sin and cos of an angle from those of what is left of it after whole quarters."""
    odd = (quadrant & 1) != 0
    sine, cosine = xp.where(odd, c, s), xp.where(odd, s, c)
    return (
        xp.where((quadrant & 2) != 0, -sine, sine),
        xp.where((quadrant + 1 & 2) != 0, -cosine, cosine),
    )


def _sin_cos_near(r: Any) -> tuple[Any, Any]:
    """Of |r| <= pi/4."""
    z = r * r
    return r - r * (z * polynomial(z, SIN)), 1 - z * polynomial(z, COS)


def sin_cos_radians(xp: Any, x: Any) -> tuple[Any, Any]:
    """Of any float64 numbers below 2^62 in size, within RADIANS + 2^-52 |x|.

    Quarter turns are taken off in two parts, the first of 32 bits: its product is off by at most
    2^-53 |x|, the difference is small, and what the second leaves is below 2^-85 |x|.
    """
    n = xp.round(x * (2 / math.pi))
    rest = (x - n * HALF_PI_HIGH) - n * HALF_PI_LOW
    s, c = _sin_cos_near(rest)
    return in_quadrant(xp, xp.asarray(n, dtype=xp.int64), s, c)


def sin_cos(xp: Any, x: Any) -> tuple[Any, Any]:
    """sin and cos of float32 numbers; NaN of what is not finite."""
    finite = xp.abs(x) < math.inf
    x = xp.where(finite, x, 0.0)
    m, e = xp.frexp(xp.abs(x))
    at = xp.clip(xp.asarray(e, dtype=xp.int64) - 24 - LOWEST, 0, HIGHEST - LOWEST - 1)
    table = xp.asarray(turn_words())
    words = table.to(x.device) if hasattr(table, "to") else table
    turns = turned(xp.asarray(m * 2.0**24, dtype=xp.int64), words[:, at])
    far = sin_cos_of_turns(xp, xp.where(x < 0, -turns, turns))
    near = _sin_cos_near(xp.where(xp.abs(x) <= QUARTER, x, 0.0))
    is_near = xp.abs(x) <= QUARTER
    return tuple(
        xp.where(finite, xp.where(is_near, n, f), math.nan) for n, f in zip(near, far, strict=True)
    )


REFERENCES = {
    "exp2": Reference(exp2, 8 * U),
    "exp": Reference(exp, 8 * U),
    "log2": Reference(log2, 8 * U),
    "sin": Reference(lambda xp, x: sin_cos(xp, x)[0], 8 * U, ANGLE),
    "cos": Reference(lambda xp, x: sin_cos(xp, x)[1], 8 * U, ANGLE),
    "softplus": Reference(softplus, 16 * U),
    "log": Reference(log, 10 * U),
    "sqrt": Reference(sqrt, 2 * U),
    "rsqrt": Reference(lambda xp, x: 1 / sqrt(xp, x), 4 * U),
    "sigmoid": Reference(sigmoid, 12 * U),
    "tanh": Reference(lambda xp, x: xp.tanh(x), 8 * U, proved=False),
}
