"""The functions of `audit_reference` in ball arithmetic, of single float32 numbers.

They settle what float64 leaves open: which float32 number is nearest, how large a worst error is.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from flint import arb, ctx

from tightrope.formats import FORMATS, Format

BITS, ENOUGH = 256, 4096
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "exp2": lambda x: (x * arb(2).log()).exp(),
    "exp": lambda x: x.exp(),
    "log2": lambda x: x.log() / arb(2).log(),
    "log": lambda x: x.log(),
    "sin": lambda x: x.sin(),
    "cos": lambda x: x.cos(),
    "softplus": lambda x: x.exp().log1p(),
    "sqrt": lambda x: x.sqrt(),
    "rsqrt": lambda x: x.rsqrt(),
    "sigmoid": lambda x: 1 / (1 + (-x).exp()),
    "tanh": lambda x: x.tanh(),
}


def _ends(ball: Any) -> tuple[Fraction, Fraction]:
    mid, rad = (
        Fraction(int(m)) * Fraction(2) ** int(e)
        for m, e in (ball.mid().man_exp(), ball.rad().mid().man_exp())
    )
    return mid - rad, mid + rad


def value(function: str, x: float) -> Fraction:
    """f(x) to 2^-100 of itself. Raises ArithmeticError where 4096 bits are too few."""
    bits = BITS
    while bits <= ENOUGH:
        with ctx.workprec(bits):
            ball = FUNCTIONS[function](arb(x))
            if ball.is_exact() or ball.rel_accuracy_bits() > 100:
                return sum(_ends(ball), Fraction(0)) / 2
        bits *= 2
    raise ArithmeticError(f"{function}({x!r}): {ENOUGH} bits are too few")


def nearest(function: str, x: float, fmt: Format = FORMATS["float32"]) -> float:
    """f(x) rounded once to nearest even. Raises ArithmeticError where 4096 bits are too few."""
    bits = BITS
    while bits <= ENOUGH:
        with ctx.workprec(bits):
            low, high = map(fmt.round_fraction, _ends(FUNCTIONS[function](arb(x))))
        if low == high:
            return low
        bits *= 2
    raise ArithmeticError(f"{function}({x!r}): {ENOUGH} bits do not tell the nearest {fmt.name}")


def ulps(function: str, x: float, y: float) -> float:
    """|y - f(x)| in units of the last place of float32 in the binade of f(x)."""
    exact = value(function, x)
    unit = Fraction(float(FORMATS["float32"].ulp(float(exact))))
    return float(abs(Fraction(y) - exact) / unit)
