"""Numbers that a kernel holds on the way to a feature: how far off, and between which ends.

Derived in docs/error-budgets.md, section pope_attention.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tightrope.formats import Array, Format
from tightrope.oracles.attention_numbers import FLOAT32, OUTWARD, U64, half_ulp


def term(name: str, error: Array) -> Array:
    """Every error that the derivation names passes here, once: tests take one away, or widen it."""
    return error


@dataclass(frozen=True)
class Held:
    """value: exact but for own, what float64 lost of it; error: of the held number, from exact;
    low, high: float32 numbers between which prescribed roundings leave the held one; bits: of its
    significand."""

    value: Array
    error: Array
    own: Array
    low: Array
    high: Array
    bits: int = 24

    @classmethod
    def float32(cls, value: Array, error: Array, own: Array) -> Held:
        """A float32 within error, its rounding included."""
        apart = error * OUTWARD + own
        low, high = to_float32(value - apart), to_float32(value + apart)
        return cls(value, error, np.broadcast_to(own, value.shape), low, high)

    def rounded(self, fmt: Format | None, name: str) -> Held:
        """The same after a cast to fmt, if any."""
        if fmt is None:
            return self
        reach = (np.abs(self.value) + self.own + self.error) * OUTWARD
        cast = np.where(self.sure & (fmt.round(self.value) == self.value), 0.0, fmt.half_ulp(reach))
        error = self.error + term(name, cast)
        ends = fmt.round(self.low), fmt.round(self.high)
        return Held(self.value, error, self.own, *ends, bits=fmt.precision)

    @property
    def sure(self) -> Array:
        """Where value is the held number itself."""
        return (self.error == 0) & (self.own == 0)

    @property
    def simple(self) -> Array:
        """Where it is 0 or 1, so that a product with it is exact."""
        return self.sure & ((self.value == 0) | (self.value == 1))

    def largest(self) -> Array:
        return np.abs(self.value) + self.error


@dataclass(frozen=True)
class Product:
    """a * b before any rounding; moved: from the exact product, by the errors of both."""

    value: Array
    moved: Array
    own: Array
    low: Array
    high: Array
    exact: Array

    @classmethod
    def of(cls, a: Held, b: Held) -> Product:
        value = a.value * b.value
        moved = np.abs(a.value) * b.error + a.error * b.largest()
        own = np.abs(a.value) * b.own + a.own * (np.abs(b.value) + b.own) + U64 * np.abs(value)
        corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
        low, high = np.minimum.reduce(corners), np.maximum.reduce(corners)
        whole = np.full(value.shape, a.bits + b.bits <= 24)
        return cls(value, moved, own, low, high, whole | a.simple | b.simple)

    @property
    def ends(self) -> tuple[Array, Array]:
        """The product, as it is or rounded to float32."""
        low, high = to_float32(self.low), to_float32(self.high)
        return np.minimum(self.low, low), np.maximum(self.high, high)

    def rounding(self) -> Array:
        """What a rounding to float32 may cost, also of an exact product that is subnormal."""
        reach = (np.abs(self.value) + self.own + self.moved) * OUTWARD
        tiny = np.where((reach == 0) | (reach >= 2.0**-102), 0.0, 0.5 * FLOAT32.tiny)
        return np.where(self.exact, tiny, half_ulp(reach))


def to_float32(x: Array) -> Array:
    """x to float32, beyond its largest number as infinity."""
    return FLOAT32.round(x)
