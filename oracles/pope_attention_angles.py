"""Angles of any size, reduced modulo 2 pi without loss, in Python's integers; then cos and sin."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tightrope.formats import Array

Part = tuple[bytes, str, tuple[int, ...]]  # an array that can be told from others

PLACES = 192  # binary places of angles; those of 63-bit positions are off by less than 2**-120
# Of a cosine or sine in float64: half an ulp of an angle up to pi is 2**-52, np.cos and np.sin are
# within an ulp of 1/2, and 2**-120 counts as another such ulp.
TRIG_ERROR = 4 * 2.0**-53


@lru_cache(maxsize=8)
def turn(places: int) -> int:
    """2 pi in units of 2**-places, within one unit; by Machin's formula (1706)."""
    guard = 32

    def arctan_of_inverse(n: int) -> int:
        term, total, k = (1 << places + guard) // n, 0, 1
        while term:
            total += term // k if k % 4 == 1 else -(term // k)
            term, k = term // (n * n), k + 2
        return total

    return (32 * arctan_of_inverse(5) - 8 * arctan_of_inverse(239)) >> guard


def scaled(x: Array, places: int) -> Array:
    """Finite floats in units of 2**-places, rounded down, as Python integers."""
    ratios = (float(f).as_integer_ratio() for f in np.asarray(x).ravel())
    found = np.array([(n << places) // d for n, d in ratios], object)
    return found.reshape(np.shape(x))


def reduced(steps: Array, frequencies: Array, phases: Array) -> Array:
    """steps * frequencies + phases less whole turns, in [-pi, pi]; float64, off by at most
    2**-52 + 2**-120. Read-only.

    steps: integers, |steps| < 2**63; frequencies, phases: any finite floats; they broadcast.
    """
    return _reduced(*((x.tobytes(), x.dtype.str, x.shape) for x in (steps, frequencies, phases)))


@lru_cache(maxsize=8)  # budget, oracle and null models of a case ask for the same two or three
def _reduced(*parts: Part) -> Array:
    steps, frequencies, phases = (np.frombuffer(x, dtype).reshape(n) for x, dtype, n in parts)
    largest = max(float(np.abs(x).max(initial=0.0)) for x in (frequencies, phases))
    places = PLACES + max(int(np.frexp(largest)[1]), 0)  # of many turns each is off a little
    whole, half = turn(places), turn(places) // 2
    angle = steps.astype(object) * scaled(frequencies, places) + scaled(phases, places)
    left = (angle + half) % whole - half
    found = np.asarray(left >> (places - PLACES)).astype(np.float64) * 2.0**-PLACES
    found.flags.writeable = False
    return found
