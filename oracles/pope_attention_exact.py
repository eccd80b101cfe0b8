"""Exact results of `pope_attention` in ball arithmetic (python-flint's arb).

PoPE (arXiv:2509.10534), eq. 3 to 8. A position times a frequency, plus delta, is dyadic and so
without rounding; the angle's sine and cosine and the softplus are balls. Features enter attention
as their midpoints, cut to PLACES binary places. For features below 2**128, 512 of them, that moves
a score by less than 2**-600, an output by less than 2**-450, far below every format: results have
100 bits all the same, but for outputs that small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from flint import arb, ctx

from tightrope.formats import Array
from tightrope.oracles.attention_exact import Value, dense_values
from tightrope.oracles.attention_row_exact import Dyadic, dyadic

PLACES = 768
ENOUGH = 1 << 15


def exact(case: Any, inputs: Mapping[str, Array], output: str, flat: Sequence[int]) -> list[Value]:
    """Exact values of "out" or "lse" at flat (C order) indices, within 2**-100 of themselves.

    Positions only turn; masks go by indices. None stands for -inf, the lse of a row without a key.
    Raises ArithmeticError if an input that the row sees is not finite.
    """
    heads = {n: np.repeat(inputs[n], case.num_heads // inputs[n].shape[1], 1) for n in ("k", "v")}
    given = {**inputs, **heads}
    width = len(inputs["inv_freq"])
    phases = {"q": np.zeros((1, width)), "k": inputs.get("delta", np.zeros((1, width)))}

    def load(name: str, batch: int, head: int, rows: Array) -> Dyadic:
        positions = np.broadcast_to(inputs[f"{name}_positions"], (case.batch, given[name].shape[2]))
        phase = phases[name][head * len(phases[name]) // case.num_heads].astype(np.float64).tolist()
        angles = [
            [(int(m), float(f), x) for f, x in zip(inputs["inv_freq"], phase, strict=True)]
            for m in positions[batch, rows]
        ]
        return points_of(given[name][batch, head, rows].astype(np.float64), angles)

    return dense_values(case, given, output, flat, load)


def points_of(x: Array, angles: Sequence[Sequence[tuple[int, float, float]]]) -> Dyadic:
    """Features of x (rows, head_dim): real parts, imaginary parts, plain ones."""
    width = len(angles[0]) if len(angles) else 0
    whole = dyadic(x)
    found = np.repeat(whole.mantissas << (PLACES + whole.exponent), 2, 1)[:, : x.shape[1] + width]
    found[:, 2 * width :] = whole.mantissas[:, width:] << (PLACES + whole.exponent)
    for row, values, turns in zip(found, x.tolist(), angles, strict=True):
        for c, (value, turn) in enumerate(zip(values, turns, strict=False)):
            row[c], row[c + width] = _point(value, turn)
    return Dyadic(found, -PLACES)


def _point(x: float, angle: tuple[int, float, float]) -> tuple[int, int]:
    """softplus(x) cos and softplus(x) sin of an angle, in units of 2**-PLACES, within 2 of them."""
    bits = PLACES + 192
    while bits <= ENOUGH:
        with ctx.workprec(bits):
            mu, (sine, cosine) = _softplus(x, bits), sin_cos(*angle, bits)
            both = [mu * part * arb((1, PLACES)) for part in (cosine, sine)]
            if all(part.is_finite() and part.rad() < 1 for part in both):
                return _floor(both[0]), _floor(both[1])
        bits *= 2
    raise ArithmeticError(f"{ENOUGH} bits do not give a feature to 2**-{PLACES}")


def _floor(x: arb) -> int:
    """The midpoint of a ball, rounded down."""
    mantissa, exponent = map(int, x.mid().man_exp())
    return mantissa << exponent if exponent > 0 else mantissa >> -exponent


@lru_cache(maxsize=1 << 16)
def _softplus(x: float, bits: int) -> arb:
    """ln(1 + e^x) as a ball, by an exponential that is at most 1."""
    with ctx.workprec(bits):
        return max(arb(x), arb(0)) + arb(-abs(x)).exp().log1p()


@lru_cache(maxsize=1 << 16)
def sin_cos(position: int, frequency: float, phase: float, bits: int) -> tuple[arb, arb]:
    with ctx.workprec(bits):
        found: tuple[arb, arb] = (arb(position) * arb(frequency) + arb(phase)).sin_cos()
        return found
