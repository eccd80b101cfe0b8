"""Exact angles in Triton: position times frequency as a fixed-point number of turns.

A frequency f (radians a position) counts as turns, F = round(f/(2 pi) 2^128) mod 2^128, in two
64-bit words. Position times F mod 1 is integer arithmetic that wraps, so that no size of the
position costs accuracy: t = |m| F_high + high64(|m| F_low) mod 2^64, in units of 2^-64 turn.

- `ANGLE_ERROR`, radians: t drops less than 2^-64 turn; F is off by at most 2^-129 + 2^-139, times
  |m| <= 2^63 that is 2^-66 + 2^-76 turn. Together below 1.2503 * 2^-64 * 2 pi < 4.26e-19 rad at
  every position, and nothing else depends on the position. A constant angle (`phase`) is rounded
  once to 2^-64 turn: off by 2^-65 + 2^-75 turn, below 1.71e-19 rad.
- reduced angle: t is a number of quarter turns plus r, an integer with |r| <= 2^61, so |x| <= pi/4
  for x = r * (2 pi/2^64). With u = 2^-53: r to float64, the constant, the product: three roundings,
  3 u and a bit. sin and cos pass on a relative error of x at most once (x cot x <= 1,
  x tan x <= pi/4).
- polynomials (Taylor; alternating, so the first term dropped bounds the remainder): sin drops
  x^17/17! < 4.7e-17 < 0.6 u |sin x|, cos drops x^18/18! < 2.1e-18 < 0.1 u. Horner from the smallest
  term: sin = x + x*w, |w| <= x^2/6 < 0.103; cos = 1 - v, v <= 0.293; w and v to 5 u relative, then
  a product and a sum: below 1.7 u for sin, below (5 * 0.293 + 1)/0.707 u < 3.5 u for cos.
- all together below 8 u relative (`TRIG_ERROR`); after one rounding to float32 that is at most half
  an ulp plus 8 u * 2^24 = 2^-26 ulp: `ROUNDED_ONCE`.

Where f is known as a real number the host makes F (`fixed_point`: off by 2^-129). Where it lies on
the device, `fraction` multiplies its 53-bit significand by those 192 bits of 1/(2 pi) that make the
fraction (Payne and Hanek, SIGNUM Newsletter 18 (1983) 19-24, in integers): with f = M 2^e, the
bits of 2^e/(2 pi) before the point give whole turns, and what is dropped after 192 of them is less
than M 2^-192 < 2^-139. Every finite float64 is right so, subnormals and 0 included; below 2^-139
or so F is 0, within its bound. No kernel needs the host, nor waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import mpmath
import torch
import triton
import triton.language as tl

ANGLE_ERROR = 4.26e-19
TRIG_ERROR = 2.0**-50
ROUNDED_ONCE = 0.5 + 2.0**-26  # ulps of float32


@triton.jit
def sin_cos(x):
    """sin x and cos x in float64 for |x| <= pi/4."""
    z = x * x
    w = z * (-1.0 / 1307674368000)
    w = z * (1.0 / 6227020800 + w)
    w = z * (-1.0 / 39916800 + w)
    w = z * (1.0 / 362880 + w)
    w = z * (-1.0 / 5040 + w)
    w = z * (1.0 / 120 + w)
    w = z * (-1.0 / 6 + w)
    v = z * (-1.0 / 20922789888000)
    v = z * (1.0 / 87178291200 + v)
    v = z * (-1.0 / 479001600 + v)
    v = z * (1.0 / 3628800 + v)
    v = z * (-1.0 / 40320 + v)
    v = z * (1.0 / 720 + v)
    v = z * (-1.0 / 24 + v)
    v = z * (1.0 / 2 + v)
    return x + x * w, 1.0 - v


@triton.jit
def turns_of(position, high, low):
    """|position| times F mod 1, in units of 2^-64; position int64, high and low uint64."""
    # Negating in unsigned words also holds for the smallest int64.
    count = tl.where(position < 0, (0 - position).to(tl.uint64), position.to(tl.uint64))
    return count * high + tl.umulhi(count, low)


@triton.jit
def cos_sin(turns, opposite=False):
    """cos and sin in float64 of an angle in units of 2^-64 turn, uint64; of -angle if opposite."""
    quadrant = (turns + (1 << 61)) >> 62
    rest = (turns - (quadrant << 62)).to(tl.int64)
    s, c = sin_cos(rest.to(tl.float64) * (6.283185307179586 / 2**64))
    odd = (quadrant & 1) != 0
    sine = tl.where(odd, c, s)
    cosine = tl.where(odd, s, c)
    sine = tl.where(((quadrant & 2) != 0) != opposite, -sine, sine)
    return tl.where(((quadrant + 1) & 2) != 0, -cosine, cosine), sine


@triton.jit
def turned(position, high, low):
    """cos and sin in float64 of position times F; position int64, high and low uint64."""
    return cos_sin(turns_of(position, high, low), position < 0)


@triton.jit
def fraction(frequency, words):
    """F_high, F_low (uint64) of |frequency|, float64, any finite one; words: `inverse_turn`.

    What is not finite gives some fraction, never an address outside `words`.
    """
    bits = frequency.to(tl.uint64, bitcast=True) & 0x7FFFFFFFFFFFFFFF
    biased = bits >> 52
    significand = bits & 0xFFFFFFFFFFFFF
    significand = tl.where(biased == 0, significand, significand + 0x10000000000000)
    # |frequency| = significand * 2^(biased - 1075); the words begin 192 bits before the point.
    first = tl.where(biased > 883, biased - 883, 0)
    word = words + (first >> 6).to(tl.int64)
    shift = first & 63
    a = tl.load(word).to(tl.uint64)
    b = tl.load(word + 1).to(tl.uint64)
    c = tl.load(word + 2).to(tl.uint64)
    d = tl.load(word + 3).to(tl.uint64)
    # By 63 - shift and one more, since shifting by 64 is undefined.
    a = (a << shift) | ((b >> 1) >> (63 - shift))
    b = (b << shift) | ((c >> 1) >> (63 - shift))
    c = (c << shift) | ((d >> 1) >> (63 - shift))
    # significand * (a, b, c) mod 2^192, rounded to its upper 128 bits.
    carried = tl.umulhi(significand, c) + ((significand * c) >> 63)
    low = significand * b + carried
    carry = (low < carried).to(tl.uint64)
    return significand * a + tl.umulhi(significand, b) + carry, low


@triton.jit
def phase(angle, words):
    """A constant angle in radians, float64 of either sign, in units of 2^-64 turn (uint64)."""
    high, low = fraction(angle, words)
    found = high + (low >> 63)
    return tl.where(angle < 0, 0 - found, found)


def _signed(word: int) -> int:
    """A 64-bit word as the int64 of the same bits."""
    return word - ((word >> 63) << 64)


@lru_cache(maxsize=64)
def inverse_turn(device: torch.device) -> torch.Tensor:
    """What `fraction` reads: 192 zeros and 1,216 bits of 1/(2 pi), (22,), uint64 as int64."""
    with mpmath.workprec(1400):
        bits = int(mpmath.floor(mpmath.ldexp(1 / (2 * mpmath.pi), 1216)))
    words = [(bits >> (64 * i)) % 2**64 for i in reversed(range(22))]
    return torch.tensor([_signed(w) for w in words], dtype=torch.int64, device=device)


def fixed_point(
    frequency: Callable[[int], mpmath.mpf], count: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low words of F, (count,) each, uint64 as int64, of frequencies known as reals.

    frequency: index -> radians a position, in mpmath's precision at the time of the call.
    """
    # Frequencies may reach 2^1074, and the bits after the point are wanted.
    with mpmath.workprec(1400):
        found = [frequency(i) / (2 * mpmath.pi) for i in range(count)]
        numbers = [int(mpmath.nint(mpmath.ldexp(f, 128))) % 2**128 for f in found]
    words = [[_signed(n >> 64), _signed(n % 2**64)] for n in numbers]
    high, low = torch.tensor(words, dtype=torch.int64, device=device).T.contiguous()
    return high, low
