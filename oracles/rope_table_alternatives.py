"""What a table is when it is useless, and what wrong builders are known to compute instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from tightrope.formats import FORMATS, Array
from tightrope.oracles.rope_table_exact import inv_freq, table

Outputs = dict[str, Array]


def nulls(case: Any, inputs: Mapping[str, Array]) -> dict[str, Outputs]:
    """Models that do nothing useful: no rotation, and every position late by one.

    (A wrong base is wrong, not useless: column 0 does not depend on the base at all.)
    """
    cos, sin = _exact(case, inputs["positions"].tolist())
    theta = inv_freq(case.rotary_dim, case.rope_theta)
    late = (cos * np.cos(theta) - sin * np.sin(theta), sin * np.cos(theta) + cos * np.sin(theta))
    return {
        "no rotation": _stored(np.ones_like(cos), np.zeros_like(sin)),
        "every position late by one": _stored(*late),
    }


def alternatives(case: Any, inputs: Mapping[str, Array]) -> Iterable[tuple[str, Outputs]]:
    """(sentence, outputs) of known mistakes, one at a time."""
    positions = inputs["positions"].tolist()
    cos, sin = _exact(case, positions)
    yield "sine and cosine exchanged", _stored(sin, cos)
    yield "the sign of the sine flipped", _stored(cos, -sin)
    yield "the sine's table used for both", _stored(sin, sin)
    for sentence, moved in _moves():
        yield sentence, _stored(*_exact(case, [moved(m) for m in positions]))
    m = inputs["positions"].astype(np.float64)[:, None]
    theta = inv_freq(case.rotary_dim, case.rope_theta)
    for sentence, angle in _angles(case, m, theta):
        yield sentence, _stored(np.cos(angle), np.sin(angle))


def _moves() -> Iterable[tuple[str, Callable[[int], int]]]:
    """Wrong positions that are integers."""
    yield "every position late by one", lambda m: m + 1
    yield "every position early by one", lambda m: m - 1
    yield "the absolute value of the position", abs
    yield "negative positions clamped at 0", lambda m: max(m, 0)
    for last in (4095, 4096, 8191):
        yield f"positions clamped at {last}", lambda m, last=last: min(m, last)
    yield "positions cut to their low 32 bits", lambda m: (m + 2**31) % 2**32 - 2**31
    for name in ("bfloat16", "float16", "float32"):
        fmt = FORMATS[name]
        yield f"the position rounded to {name}", lambda m, f=fmt: int(np.clip(f.round(float(m)), -(2.0**62), 2.0**62))


def _angles(case: Any, m: Array, theta: Array) -> Iterable[tuple[str, Array]]:
    """Wrong frequencies and angles, in float64."""
    c, d, base = np.arange(case.rotary_dim // 2), case.rotary_dim, case.rope_theta
    yield "the exponent's sign flipped", m / theta
    yield "half the exponent, rope_theta**(-c/rotary_dim)", m * base ** (-c / d)
    yield "twice the exponent, rope_theta**(-4c/rotary_dim)", m * theta**2
    yield "frequencies counted from 1 instead of 0", m * base ** (-2.0 * (c + 1) / d)
    yield "frequencies in reverse order", m * theta[::-1]
    yield "a base of 10000 whatever was asked", m * 10000.0 ** (-2.0 * c / d)
    yield "angles in turns instead of radians", m * theta * (2 * np.pi)
    yield "angles in degrees instead of radians", m * theta * (np.pi / 180)
    for name in ("bfloat16", "float16"):
        yield f"inv_freq rounded to {name}", m * inv_freq(d, base, name)
        yield f"the angle rounded to {name}", FORMATS[name].round(m * theta)


def _exact(case: Any, positions: list[int]) -> tuple[Array, Array]:
    return table(tuple(positions), case.rotary_dim, case.rope_theta)


def _stored(cos: Array, sin: Array) -> Outputs:
    return {"cos": cos.astype(np.float32), "sin": sin.astype(np.float32)}
