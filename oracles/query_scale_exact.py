"""query_scale in ball arithmetic (python-flint's arb): 1 + attn_scale ln(1 + whole)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from flint import arb, ctx

from tightrope.formats import Array
from tightrope.oracles.rope_table_exact import fraction

BITS = 192  # ln of at most 2**64, and of at least 2: no digit is lost


def exact(
    case: Any, inputs: Mapping[str, Array], output: str, flat: Sequence[int]
) -> list[Fraction]:
    """The exact value of the given elements, each within 2**-100 of itself, as rationals."""
    found = []
    with ctx.workprec(BITS):
        for index in flat:
            tokens = int(inputs["positions"].ravel()[int(index)]) + case.shift
            value = 1 + arb(case.attn_scale) * arb(1 + tokens // case.floor_scale).log()
            if value.rel_accuracy_bits() < 100:
                raise ArithmeticError(f"{BITS} bits are too few for element {index}")
            found.append(fraction(value))
    return found
