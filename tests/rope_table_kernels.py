"""Right builders of rope_table and pope_table, roundings explicit, and one with the worst ones.

A table of PoPE is one of RoPE at twice the width, but for the sign of the exponent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tightrope.arithmetic import Arithmetic
from tightrope.budget import Budget
from tightrope.contract import Contract
from tightrope.formats import FORMATS, Array
from tightrope.oracles import pope_table, pope_table_exact, rope_table, rope_table_exact
from tightrope.oracles.pope_table import PopeTableCase
from tightrope.oracles.rope_table import CONTRACT, RopeTableCase

F32 = FORMATS["float32"]
LONG = np.longdouble
EXACT = {"position": "exact", "inv_freq": "exact", "angle": "exact", "inv_freq_ulp": 0}
Tables = dict[str, Array]
TableCase = RopeTableCase | PopeTableCase
Signs = Callable[[tuple[int, ...]], Array]


def grant(**stages: Any) -> Arithmetic:
    return Arithmetic(**stages).over(CONTRACT.stages)


def contract_of(case: TableCase) -> Contract:
    return pope_table.CONTRACT if isinstance(case, PopeTableCase) else CONTRACT


def budgets(case: TableCase, arithmetic: Arithmetic) -> dict[str, Budget]:
    spec = contract_of(case)
    return spec.budget(case, spec.inputs(case), arithmetic.over(spec.stages))


def positions(case: TableCase) -> Array:
    return rope_table.positions(case)[:, None]


def exponents(case: TableCase) -> Array:
    """Magnitudes of the exponents, in extended precision."""
    if isinstance(case, PopeTableCase):
        return np.arange(case.rotary_dim).astype(LONG) / case.rotary_dim
    return np.arange(0, case.rotary_dim, 2).astype(LONG) / case.rotary_dim


def sign_of(case: TableCase) -> int:
    return case.exponent_sign if isinstance(case, PopeTableCase) else -1


def inv_freq(case: TableCase, dtype: str) -> Array:
    """Frequencies correctly rounded to a format."""
    if isinstance(case, PopeTableCase):
        sign = case.exponent_sign
        return pope_table_exact.inv_freq(case.rotary_dim, case.rope_theta, sign, dtype)
    return rope_table_exact.inv_freq(case.rotary_dim, case.rope_theta, dtype)


def long_angle(case: TableCase) -> tuple[Array, Array, Array]:
    """Positions (tokens, 1), frequencies and angles in extended precision."""
    m = positions(case).astype(LONG)
    theta = LONG(case.rope_theta) ** (sign_of(case) * exponents(case))
    return m, theta, m * theta


def float32_kernel(case: TableCase, a: Arithmetic) -> Tables:
    """One rounding a stage, correctly rounded cos and sin."""
    m = FORMATS[a["position"]].round(positions(case).astype(np.float64))
    angle = FORMATS[a["angle"]].round(m * frequencies(case, a))
    return functions(case, angle)


def frequencies(case: TableCase, a: Arithmetic) -> Array:
    """inv_freq correctly rounded, or by a float32 power that uses up what it is allowed."""
    if not a["inv_freq_ulp"]:
        return inv_freq(case, a["inv_freq"])
    power = F32.round(case.rope_theta ** F32.round(exponents(case).astype(np.float64)))
    allowed = a["inv_freq_ulp"] if a["inv_freq_ulp"] > 1 else 0
    off = np.random.default_rng(case.seed).integers(-allowed, allowed + 1, power.shape)
    off[0] = 0  # pow(b, 0) = 1
    power = power + off * F32.ulp(power)
    return F32.round(1 / power if sign_of(case) < 0 else power)


def functions(case: TableCase, angle: Array, ulps: int = 0) -> Tables:
    """Correctly rounded cos and sin, then displaced by up to `ulps` ulp at random."""
    rng, out = np.random.default_rng(case.seed + 1), {}
    for name, f in (("cos", np.cos), ("sin", np.sin)):
        value = F32.round(f(angle).astype(np.float64))
        off = rng.integers(-ulps, ulps + 1, value.shape) * (np.abs(value) < 1) * (value != 0)
        out[name] = np.clip(value + off * F32.ulp(value), -1, 1).astype(np.float32)
    return out


def loose_functions_kernel(case: TableCase, a: Arithmetic) -> Tables:
    """Float32 throughout, cos and sin up to 2 ulp from the correctly rounded ones."""
    m, theta = positions(case).astype(np.float32), inv_freq(case, "float32").astype(np.float32)
    return functions(case, (m * theta).astype(np.float64), 2)


def cast_angle_kernel(case: TableCase, a: Arithmetic) -> Tables:
    """Angles formed exactly (here: in extended precision), rounded once to float32."""
    return functions(case, long_angle(case)[2].astype(np.float32).astype(np.float64))


def turns_kernel(case: TableCase, a: Arithmetic) -> Tables:
    """12-bit fixed-point turns (a table of 4,096 sines), float64 cos and sin."""
    turns = np.rint(long_angle(case)[2] / (2 * LONG(np.pi)) * 2**12) / 2**12
    return functions(case, (turns % 1).astype(np.float64) * (2 * np.pi))


def stress(case: TableCase, a: Arithmetic, pattern: str) -> dict[str, Array]:
    """Largest error before the last rounding where every inexact rounding is a full step off.

    pattern: the signs of the steps; the function's own error always adds to the rest. The errors of
    the oracle and of this simulation are taken off.
    """
    m = long_angle(case)[0]
    angle = _stressed_angle(case, a, lambda shape: _signs(pattern, shape, case.seed))
    # in units of extended precision: exponent (times ln b), power, product; then the function
    relative = abs(np.log(case.rope_theta)) + 4
    own, found = 2.0**-64 * (relative * np.abs(angle) + 4), {}
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


def _stressed_angle(case: TableCase, a: Arithmetic, sign: Signs) -> Array:
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


def _stressed_frequency(case: TableCase, a: Arithmetic, theta: Array, sign: Signs) -> Array:
    dtype, up = a["inv_freq"], sign(theta.shape)
    if a["inv_freq_ulp"]:
        exponent = exponents(case)
        off = np.where(_held(dtype, exponent), 0, up * _half_ulp(dtype, exponent))
        direction = np.sign(np.log(case.rope_theta))
        direction *= -sign_of(case)
        power = LONG(case.rope_theta) ** (exponent - direction * off)
        up_to = (2 * a["inv_freq_ulp"] + 1) * _half_ulp(dtype, power)
        theta = 1 / (power - up * up_to) if sign_of(case) < 0 else power + up * up_to
    return np.where(np.arange(theta.size) == 0, 1, theta + up * _half_ulp(dtype, theta))
