"""Right builders of rope_table, roundings explicit, and one whose roundings are the worst."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tightrope.arithmetic import Arithmetic
from tightrope.budget import Budget
from tightrope.formats import FORMATS, Array
from tightrope.oracles.rope_table import CONTRACT, RopeTableCase
from tightrope.oracles.rope_table_exact import inv_freq

F32 = FORMATS["float32"]
LONG = np.longdouble
EXACT = {"position": "exact", "inv_freq": "exact", "angle": "exact", "inv_freq_ulp": 0}
Tables = dict[str, Array]
Signs = Callable[[tuple[int, ...]], Array]


def grant(**stages: Any) -> Arithmetic:
    return Arithmetic(**stages).over(CONTRACT.stages)


def budgets(case: RopeTableCase, arithmetic: Arithmetic) -> dict[str, Budget]:
    return CONTRACT.budget(case, CONTRACT.inputs(case), arithmetic)


def long_angle(case: RopeTableCase) -> tuple[Array, Array, Array]:
    """Positions (tokens, 1), frequencies and angles in extended precision."""
    exponent = np.arange(0, case.rotary_dim, 2).astype(LONG) / case.rotary_dim
    m = CONTRACT.inputs(case)["positions"].astype(LONG)[:, None]
    theta = LONG(case.rope_theta) ** -exponent
    return m, theta, m * theta


def float32_kernel(case: RopeTableCase, a: Arithmetic) -> Tables:
    """One rounding a stage, correctly rounded cos and sin."""
    m = FORMATS[a["position"]].round(CONTRACT.inputs(case)["positions"].astype(np.float64))
    angle = FORMATS[a["angle"]].round(m[:, None] * frequencies(case, a))
    return functions(case, angle)


def frequencies(case: RopeTableCase, a: Arithmetic) -> Array:
    """inv_freq correctly rounded, or by a float32 power that uses up what it is allowed."""
    if not a["inv_freq_ulp"]:
        return inv_freq(case.rotary_dim, case.rope_theta, a["inv_freq"])
    power = F32.round(
        case.rope_theta ** F32.round(np.arange(0, case.rotary_dim, 2) / case.rotary_dim)
    )
    allowed = a["inv_freq_ulp"] if a["inv_freq_ulp"] > 1 else 0
    off = np.random.default_rng(case.seed).integers(-allowed, allowed + 1, power.shape)
    off[0] = 0  # pow(b, 0) = 1
    return F32.round(1 / (power + off * F32.ulp(power)))


def functions(case: RopeTableCase, angle: Array, ulps: int = 0) -> Tables:
    """Correctly rounded cos and sin, then displaced by up to `ulps` ulp at random."""
    rng, out = np.random.default_rng(case.seed + 1), {}
    for name, f in (("cos", np.cos), ("sin", np.sin)):
        value = F32.round(f(angle).astype(np.float64))
        off = rng.integers(-ulps, ulps + 1, value.shape) * (np.abs(value) < 1) * (value != 0)
        out[name] = np.clip(value + off * F32.ulp(value), -1, 1).astype(np.float32)
    return out


def loose_functions_kernel(case: RopeTableCase, a: Arithmetic) -> Tables:
    """Float32 throughout, cos and sin up to 2 ulp from the correctly rounded ones."""
    m = CONTRACT.inputs(case)["positions"].astype(np.float32)[:, None]
    theta = inv_freq(case.rotary_dim, case.rope_theta, "float32").astype(np.float32)
    return functions(case, (m * theta).astype(np.float64), 2)


def cast_angle_kernel(case: RopeTableCase, a: Arithmetic) -> Tables:
    """Angles formed exactly (here: in extended precision), rounded once to float32."""
    return functions(case, long_angle(case)[2].astype(np.float32).astype(np.float64))


def turns_kernel(case: RopeTableCase, a: Arithmetic) -> Tables:
    """12-bit fixed-point turns (a table of 4,096 sines), float64 cos and sin."""
    turns = np.rint(long_angle(case)[2] / (2 * LONG(np.pi)) * 2**12) / 2**12
    return functions(case, (turns % 1).astype(np.float64) * (2 * np.pi))


def stress(case: RopeTableCase, a: Arithmetic, pattern: str) -> dict[str, Array]:
    """Largest error before the last rounding where every inexact rounding is a full step off.

    pattern: the signs of the steps; the function's own error always adds to the rest. The errors of
    the oracle and of this simulation are taken off.
    """
    m = long_angle(case)[0]
    angle = _stressed_angle(case, a, lambda shape: _signs(pattern, shape, case.seed))
    own, found = 2.0**-61 * (np.abs(angle) + 4), {}
    for name, value in (("cos", np.cos(angle)), ("sin", np.sign(m) * np.sin(angle))):
        b = budgets(case, a)[name]
        last = (a["trig_ulp"] - 0.5) * F32.ulp(
            np.minimum(np.abs(value), 1 - F32.unit).astype(float)
        )
        error = np.abs(value - b.expected) + np.where(m == 0, 0, last)
        found[name] = np.maximum(error - b.oracle - own, 0)
    return found


def _signs(pattern: str, shape: tuple[int, ...], seed: int) -> Array:
    if pattern == "random":
        return np.random.default_rng(seed).choice([-1.0, 1.0], shape)
    if pattern == "alternating":
        return np.where(np.arange(shape[-1]) % 2, 1.0, -1.0) * np.ones(shape)
    return np.full(shape, {"up": 1.0, "down": -1.0}[pattern])


def _half_ulp(dtype: str, x: Array) -> Array:
    return FORMATS[dtype].half_ulp(x.astype(np.float64))


def _held(dtype: str, x: Array) -> Array:
    return FORMATS[dtype].round(x.astype(np.float64)) == x


def _stressed_angle(case: RopeTableCase, a: Arithmetic, sign: Signs) -> Array:
    """The angle's magnitude in extended precision; exact operations are left alone."""
    m, theta, _ = long_angle(case)
    near = m = np.abs(m)
    if a["position"] != "exact":
        off = sign(m.shape) * _half_ulp(a["position"], m)
        near = m + np.where(_held(a["position"], m), 0, off)
    if a["inv_freq"] != "exact":
        theta = _stressed_frequency(case, a, theta, sign)
    angle = near * theta
    if a["angle"] != "exact":
        # a power of two times a number of the format, and a number of the format times 1
        power_of_two = (np.frexp(near.astype(np.float64))[0] == 0.5) & (a["inv_freq"] != "exact")
        exact = _held(a["angle"], near) & (power_of_two | (np.arange(theta.size) == 0))
        angle = angle + np.where(exact, 0, sign(angle.shape) * _half_ulp(a["angle"], angle))
    return angle + sign(angle.shape) * a["angle_error"] * (m != 0)


def _stressed_frequency(case: RopeTableCase, a: Arithmetic, theta: Array, sign: Signs) -> Array:
    dtype, up = a["inv_freq"], sign(theta.shape)
    if a["inv_freq_ulp"]:
        exponent = np.arange(0, case.rotary_dim, 2).astype(LONG) / case.rotary_dim
        off = np.where(_held(dtype, exponent), 0, up * _half_ulp(dtype, exponent))
        direction = np.sign(np.log(case.rope_theta))
        power = LONG(case.rope_theta) ** (exponent - direction * off)
        theta = 1 / (power - up * (2 * a["inv_freq_ulp"] + 1) * _half_ulp(dtype, power))
    return np.where(np.arange(theta.size) == 0, 1, theta + up * _half_ulp(dtype, theta))
