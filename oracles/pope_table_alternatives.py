"""What a table of PoPE is when it is useless, and what wrong builders are known to compute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tightrope.formats import FORMATS, Array
from tightrope.oracles import rope_table_alternatives
from tightrope.oracles.pope_table_budget import Truth, wider
from tightrope.oracles.rope_table_alternatives import Outputs, stored


def nulls(truth: Truth, case: Any, inputs: Mapping[str, Array]) -> dict[str, Outputs]:
    """Tables that do nothing useful beside right frequencies, as of rope_table.

    Without positions there is no table: then frequencies of 0, since those are all there is.
    """
    numbers, asked = wider(truth, case)
    theta = _theta(truth, case) if case.tokens else np.zeros(case.rotary_dim)
    found = rope_table_alternatives.nulls(numbers, asked, inputs)
    return {name: {"inv_freq": theta, **outputs} for name, outputs in found.items()}


def alternatives(
    truth: Truth, case: Any, inputs: Mapping[str, Array]
) -> Iterator[tuple[str, Outputs]]:
    """(sentence, outputs) of known mistakes, one at a time."""
    numbers, asked = wider(truth, case)
    theta, m = _theta(truth, case), inputs["positions"].astype(np.float64)[:, None]
    for sentence, wrong in _frequencies(truth, case):
        yield sentence, {"inv_freq": wrong, **stored(m * wrong)}
    for sentence, outputs in rope_table_alternatives.misplaced(numbers, asked, inputs):
        yield sentence, {"inv_freq": theta, **outputs}
    for sentence, angle in _angles(m, theta):
        yield sentence, {"inv_freq": theta, **stored(angle)}
    cos, sin = truth.table(
        tuple(inputs["positions"].tolist()), case.rotary_dim, case.rope_theta, case.exponent_sign
    )
    right = {"cos": cos.astype(np.float32), "sin": sin.astype(np.float32)}
    yield "the exponent's sign flipped in inv_freq alone", {"inv_freq": 1 / theta, **right}


def _theta(truth: Truth, case: Any) -> Array:
    return truth.inv_freq(case.rotary_dim, case.rope_theta, case.exponent_sign, "float64")


def _frequencies(truth: Truth, case: Any) -> Iterator[tuple[str, Array]]:
    """Wrong frequencies, in float64."""
    theta, c, d = _theta(truth, case), np.arange(case.rotary_dim), case.rotary_dim
    sign, base = float(case.exponent_sign), case.rope_theta
    yield "the exponent's sign flipped", 1 / theta
    yield "rope's exponent, 2c/rotary_dim", theta**2
    yield "paired frequencies, 2c and 2c+1 alike", base ** (sign * (c - c % 2) / d)
    halves = c % max(d // 2, 1)
    yield "paired frequencies, c and c + rotary_dim/2 alike", base ** (sign * 2 * halves / d)
    yield "one feature more in the denominator", base ** (sign * c / (d + 1))
    yield "one feature less in the denominator", base ** (sign * c / max(d - 1, 1))
    yield "the doubled width in the denominator", base ** (sign * c / (2 * d))
    yield "frequencies counted from 1 instead of 0", base ** (sign * (c + 1) / d)
    yield "frequencies in reverse order", theta[::-1].copy()
    if base != 10000:
        yield "a base of 10000 whatever was asked", 10000.0 ** (sign * c / d)
    for name in ("bfloat16", "float16"):
        yield (
            f"inv_freq rounded to {name}",
            truth.inv_freq(d, base, case.exponent_sign, name),
        )


def _angles(m: Array, theta: Array) -> Iterator[tuple[str, Array]]:
    """Wrong angles of right frequencies, in float64."""
    yield "angles in turns instead of radians", m * theta * (2 * np.pi)
    yield "angles in degrees instead of radians", m * theta * (np.pi / 180)
    for name in ("bfloat16", "float16", "float32"):
        yield f"the angle rounded to {name}", FORMATS[name].round(m * theta)
