"""Exact angles for the audit: frequencies as balls, cos and sin of positions with a proved error.

Frequencies come from the oracles' ball arithmetic. A position times a frequency is an integer
number of 2^-64 turns (error below 2 of them for positions below 2^31, 128-bit frequencies), its
sine and cosine are `audit_reference`'s: together below `SLACK`. Single values are balls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np

from tightrope.audit_reference import in_words, sin_cos_of_turns, turned
from tightrope.formats import FORMATS, Array, Format

SLACK = 2.0**-49  # absolute, of cos and sin: 6.9e-19 of the angle and 8 * 2^-53, with room
TF32 = Format("tf32", 11, -126, 127)
FORMAT = {**FORMATS, "tf32": TF32}
BITS, FINE = 256, 512


@dataclass(frozen=True)
class Frequencies:
    """Radians a position of every column; make: bits -> balls (arb), one a column."""

    make: Callable[[int], Any]

    @cached_property
    def balls(self) -> list[Any]:
        return list(self.make(BITS))

    @cached_property
    def words(self) -> Array:
        """Turns a position, cut to 2^-128: (3, columns) as `audit_reference.in_words`."""
        from flint import arb, ctx

        with ctx.workprec(BITS):
            units = [(x / (2 * arb.pi()) * arb(2) ** 128).floor().unique_fmpz() for x in self.balls]
        if any(u is None for u in units):
            raise ArithmeticError(f"{BITS} bits do not decide 128 bits of a frequency")
        return in_words([int(u) for u in units])

    @cached_property
    def parts(self) -> tuple[Array, Array, Array]:
        """Frequencies as three float64 arrays, the first two of 26 bits: m times them is exact."""
        exact = [fraction(x) for x in self.balls]
        found: list[list[float]] = []
        for _ in range(3):
            head = Format("26", 26, -1022, 1023) if len(found) < 2 else FORMATS["float64"]
            found.append([head.round_fraction(x) for x in exact])
            exact = [x - Fraction(h) for x, h in zip(exact, found[-1], strict=True)]
        return tuple(np.array(f) for f in found)  # type: ignore[return-value]

    def rounded(self, name: str) -> Array:
        """The frequencies rounded once to a format, as float64."""
        if name == "exact":
            return self.parts[0] + self.parts[1]
        return np.array([FORMAT[name].round_fraction(fraction(x)) for x in self.balls])

    def difference(self, angle: Array, positions: Array, columns: Any = slice(None)) -> Array:
        """angle - m theta in radians, for positions (len,) below 2^26 or pairs (see `at`)."""
        first, second, third = (p[columns] for p in self.parts)
        m = positions.astype(np.float64)
        return ((angle - m * first) - m * second) - m * third

    def sin_cos(self, positions: Array, columns: Any = slice(None)) -> tuple[Array, Array]:
        """Of m theta, each within SLACK; positions broadcast against the columns, |m| < 2^31."""
        m = positions.astype(np.int64)
        turns = turned(np.abs(m), [w[columns] for w in self.words])
        return sin_cos_of_turns(np, np.where(m < 0, -turns, turns))

    def exact(self, position: int, column: int) -> tuple[Any, Any]:
        """sin and cos of m theta as balls of radius below 2^-200."""
        from flint import ctx

        with ctx.workprec(FINE):
            return (self.make(FINE)[column] * position).sin_cos()


def fraction(x: Any) -> Fraction:
    found: Fraction = import_module("tightrope.oracles.rope_table_exact").fraction(x)
    return found


def of_rope(rotary_dim: int, rope_theta: float, scaling: Any = None) -> Frequencies:
    """rope_table's, under a `RopeScaling` or none."""
    balls = import_module("tightrope.oracles.rope_table_exact").balls
    return Frequencies(lambda bits: balls(rotary_dim, rope_theta, bits, scaling))


def of_pope(rotary_dim: int, rope_theta: float, exponent_sign: int) -> Frequencies:
    """pope_table's: rope_theta**(s c/d) = (rope_theta**-s)**(-2c/(2d))."""
    from flint import fmpq

    base = fmpq(*float(rope_theta).as_integer_ratio()) ** -exponent_sign
    return of_rope(2 * rotary_dim, base)  # type: ignore[arg-type]
