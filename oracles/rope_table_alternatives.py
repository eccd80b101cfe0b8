"""What a table is when it is useless, and what wrong builders are known to compute instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from tightrope.formats import FORMATS, Array
from tightrope.oracles.rope_table_budget import Truth

Outputs = dict[str, Array]


def nulls(truth: Truth, case: Any, inputs: Mapping[str, Array]) -> dict[str, Outputs]:
    """Models that do nothing useful: no rotation, and every position late by one.

    (A wrong base is wrong, not useless: column 0 does not depend on the base at all.)
    """
    cos, sin = _exact(truth, case, inputs["positions"].tolist())
    theta = truth.inv_freq(case.rotary_dim, case.rope_theta, "float64")
    c, s = np.cos(theta), np.sin(theta)
    late = (cos * c - sin * s, sin * c + cos * s)
    return {
        "no rotation": _stored(np.ones_like(cos), np.zeros_like(sin)),
        "every position late by one": _stored(*late),
    }


def alternatives(
    truth: Truth, case: Any, inputs: Mapping[str, Array]
) -> Iterator[tuple[str, Outputs]]:
    """(sentence, outputs) of known mistakes, one at a time."""
    yield from misplaced(truth, case, inputs)
    m = inputs["positions"].astype(np.float64)[:, None]
    for sentence, angle in _angles(truth, case, m):
        yield sentence, stored(angle)


def misplaced(
    truth: Truth, case: Any, inputs: Mapping[str, Array]
) -> Iterator[tuple[str, Outputs]]:
    """Mistakes of right frequencies: outputs exchanged, wrong positions."""
    positions = inputs["positions"].tolist()
    cos, sin = _exact(truth, case, positions)
    yield "sine and cosine exchanged", _stored(sin, cos)
    yield "the sign of the sine flipped", _stored(cos, -sin)
    yield "the table of sines used for both", _stored(sin, sin)
    yield "the table of cosines used for both", _stored(cos, cos)
    for sentence, wrong in _quadrants(cos, sin):
        yield sentence, _stored(*wrong)
    if min(positions, default=0) < 0:
        far, behind = _exact(truth, case, [m % 2**64 for m in positions])
        unsigned = "negative positions taken as unsigned 64-bit numbers"
        yield unsigned, _stored(far, behind)
        turned = np.where(inputs["positions"] < 0, -1.0, 1.0)[:, None] * behind
        yield f"{unsigned}, and the sign of their sines turned", _stored(far, turned)
    for sentence, moved in _moves():
        others = [moved(m) for m in positions]
        if others != positions:  # else it is the right result
            yield sentence, _stored(*_exact(truth, case, others))


def _quadrants(cos: Array, sin: Array) -> Iterator[tuple[str, tuple[Array, Array]]]:
    """Cosines and sines of an angle that was reduced to within pi/4 of a quarter turn."""
    odd, down, left = np.abs(sin) > np.abs(cos), sin < 0, cos < 0
    quarter = np.where(odd, 1 + 2 * down, 2 * left)  # of the turn that the angle is nearest to
    own = np.choose(quarter, [sin, -cos, -sin, cos])  # the sine of the rest
    rest = np.choose(quarter, [cos, sin, -cos, -sin])  # its cosine
    sign_of_sin, sign_of_cos = np.where(quarter & 2, -1, 1), np.where((quarter + 1) & 2, -1, 1)
    yield "the sign of the cosine by the quadrant of the sine", (np.abs(cos) * 0 + np.where(
        odd, own, rest) * sign_of_sin, sin)  # fmt: skip
    yield "the sign of the sine by the quadrant of the cosine", (cos, np.where(
        odd, rest, own) * sign_of_cos)  # fmt: skip
    yield "sines of odd quadrants not exchanged for cosines", (cos, own * sign_of_sin)
    yield "cosines of odd quadrants not exchanged for sines", (rest * sign_of_cos, sin)


def _moves() -> Iterator[tuple[str, Callable[[int], int]]]:
    """Wrong positions that are integers."""
    yield "every position late by one", lambda m: m + 1
    yield "every position early by one", lambda m: m - 1
    yield "the absolute value of the position", abs
    yield "negative positions clamped at 0", lambda m: max(m, 0)
    for last in (4095, 4096, 8191):
        yield f"positions clamped at {last}", partial(min, last)
    yield "positions cut to their low 32 bits", lambda m: (m + 2**31) % 2**32 - 2**31
    for name in ("bfloat16", "float16", "float32"):
        yield f"the position rounded to {name}", partial(_rounded, name)


def _rounded(dtype: str, m: int) -> int:
    """The nearest number of the format, an integer; beyond its largest, that one."""
    fmt = FORMATS[dtype]
    return int(np.clip(fmt.round_fraction(Fraction(m)), -fmt.largest, fmt.largest))


def _angles(truth: Truth, case: Any, m: Array) -> Iterator[tuple[str, Array]]:
    """Wrong frequencies and angles, in float64."""
    c, d, base = np.arange(case.rotary_dim // 2), case.rotary_dim, case.rope_theta
    theta = truth.inv_freq(d, base, "float64")
    yield "the exponent's sign flipped", m / theta
    yield "half the exponent, rope_theta**(-c/rotary_dim)", m * base ** (-c / d)
    yield "twice the exponent, rope_theta**(-4c/rotary_dim)", m * theta**2
    yield "frequencies counted from 1 instead of 0", m * base ** (-2.0 * (c + 1) / d)
    yield "frequencies in reverse order", m * theta[::-1]
    if base != 10000:
        yield "a base of 10000 whatever was asked", m * 10000.0 ** (-2.0 * c / d)
    yield "angles in turns instead of radians", m * theta * (2 * np.pi)
    yield "angles in degrees instead of radians", m * theta * (np.pi / 180)
    for name in ("bfloat16", "float16"):
        yield f"inv_freq rounded to {name}", m * truth.inv_freq(d, base, name)
        yield f"the angle rounded to {name}", FORMATS[name].round(m * theta)


def stored(angle: Array) -> Outputs:
    """The table of some angles; of 0 where one is not finite."""
    angle = _finite(angle)
    return _stored(np.cos(angle), np.sin(angle))


def _finite(angle: Array) -> Array:
    return np.where(np.isfinite(angle), angle, 0.0)


def _exact(truth: Truth, case: Any, positions: list[int]) -> tuple[Array, Array]:
    return truth.table(tuple(positions), case.rotary_dim, case.rope_theta)


def _stored(cos: Array, sin: Array) -> Outputs:
    return {"cos": cos.astype(np.float32), "sin": sin.astype(np.float32)}
