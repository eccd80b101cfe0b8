"""The error budget of rope_table, term by term. Derivation, equations: docs/error-budgets.md.

Angle terms are in radians until `_values` turns them into errors of cos and sin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from tightrope.arithmetic import Arithmetic
from tightrope.budget import Budget, Replay
from tightrope.formats import FORMATS, Array, Format

# What an unknown kernel is granted: the usual builder, all in float32, with powf within 4 ulp and
# cosf, sinf within 2 ulp of the correctly rounded result, so within 2.5 ulp of the exact one (CUDA
# C++ Programming Guide, Mathematical Functions).
STAGES: Mapping[str, Any] = {
    "position": "float32",  # "exact" or a format
    "inv_freq": "float32",  # "exact" or a format
    "inv_freq_ulp": 4,  # of the power, from correctly rounded; 0: inv_freq itself correctly rounded
    "angle": "float32",  # "exact" or the format of the product
    "angle_error": 0.0,  # radians, further error of the angle modulo 2 pi
    "trig_ulp": 2.5,  # of cos, sin of that angle, in ulps of the result, all roundings included
    # "exact": multiplied in before the one rounding to float32; a format: after it, rounded to this
    "attention_factor": "float32",
}
EXPECTED = 2.0**-100  # radius of the arb table, beside its rounding to float64
ENDLESS = 2.0**100  # beyond all angles
OUTWARD = 1 + 2.0**-48  # more than the roundings of (2) to (8) in float64
NUMPY = 2.0**-50  # error of float64 cos and sin: 4.5 ulp below 1


Scaled = Callable[[Array, float], Array]
"""(relative errors of unscaled frequencies, unit) -> bounds on what scaling them adds."""


class Truth(Protocol):
    """Where exact numbers come from: the ball arithmetic of `rope_table_exact`."""

    @property
    def table(self) -> Callable[[tuple[int, ...], int, float], tuple[Array, Array]]:
        """(positions, rotary_dim, rope_theta) -> cos, sin, within half a float64 ulp + 2**-100."""

    @property
    def inv_freq(self) -> Callable[[int, float, str], Array]:
        """(rotary_dim, rope_theta, dtype) -> frequencies, correctly rounded to dtype."""


def budget(
    truth: Truth,
    case: Any,
    inputs: Mapping[str, Array],
    arithmetic: Arithmetic,
    scaled: Scaled | None = None,
) -> dict[str, Budget]:
    """Budgets of cos and sin, (tokens, rotary_dim/2), for this case's positions and arithmetic.

    scaled: what is done to frequencies after their power, where that is rounded by itself.
    """
    positions = inputs["positions"].tolist()
    cos, sin = truth.table(tuple(positions), case.rotary_dim, case.rope_theta)
    theta = truth.inv_freq(case.rotary_dim, case.rope_theta, "float64")
    m = np.abs(np.array(positions, np.float64))[:, None]
    parts = _angle_terms(case, positions, theta, arithmetic, scaled)
    angle = _prescribed_angle(truth, case, positions, arithmetic)
    found = {}
    for name, x, other in (("cos", cos, sin), ("sin", sin, cos)):
        terms, moved = _values(x, other, parts)
        ulps = arithmetic["trig_ulp"]
        terms[f"cos, sin within {ulps:.6g} ulp"] = _trig(np.abs(x) + moved, m, case.dtype, ulps)
        near = FORMATS["float64"].half_ulp(x) + EXPECTED
        ends = FORMATS["float64"].half_ulp(np.abs(x) + sum(terms.values()))  # of x -+ e in float64
        found[name] = Budget(
            x, terms, case.dtype,
            oracle=np.where(m == 0, 0.0, near + ends),
            replay=None if angle is None else _replay(name, angle, m, case.dtype, ulps),
        )  # fmt: skip
    return found


def _angle_terms(
    case: Any,
    positions: list[int],
    theta: Array,
    arithmetic: Arithmetic,
    scaled: Scaled | None,
) -> dict[str, Array]:
    """Named bounds on the error of the angle in radians, (tokens, rotary_dim/2): eq. (2) to (5)."""
    m = np.abs(np.array(positions, np.float64))[:, None]
    parts: dict[str, Array] = {}
    reach, off = m, np.zeros_like(theta)
    if arithmetic["position"] != "exact":
        step = _position_step(positions, FORMATS[arithmetic["position"]])
        parts[f"position rounded to {arithmetic['position']}"] = step * theta
        reach = m + step
    if arithmetic["inv_freq"] != "exact":
        for name, part in inv_freq_terms(case, theta, arithmetic, scaled).items():
            parts[name] = reach * part
            off = off + part
    if arithmetic["angle"] != "exact":
        fmt = FORMATS[arithmetic["angle"]]
        largest = reach * (theta + off)
        rounded = np.where(largest >= fmt.largest, ENDLESS, fmt.half_ulp(largest))
        name = f"angle rounded to {arithmetic['angle']}"
        parts[name] = np.where(_exact_product(positions, theta, arithmetic), 0.0, rounded)
    if arithmetic["angle_error"]:
        name = f"angle within {arithmetic['angle_error']:.3g} rad"
        parts[name] = np.where(m == 0, 0.0, arithmetic["angle_error"]) * np.ones_like(theta)
    return parts


def _rounded(positions: list[int], fmt: Format) -> Array:
    """Each integer rounded once, (tokens, 1)."""
    return np.array([fmt.round_fraction(Fraction(m)) for m in positions], np.float64)[:, None]


def _holds(positions: list[int], fmt: Format) -> Array:
    """Whether the format holds the integer, (tokens, 1)."""
    near = _rounded(positions, fmt).ravel()
    return np.array([x == m for x, m in zip(near.tolist(), positions, strict=True)], bool)[:, None]


def _position_step(positions: list[int], fmt: Format) -> Array:
    """h_f(m), 0 where the format holds m and beyond all angles where m overflows it."""
    m = np.abs(np.array(positions, np.float64))[:, None]
    step = np.where(np.isinf(_rounded(positions, fmt)), 2.0**1000, fmt.half_ulp(m))
    return np.where(_holds(positions, fmt), 0.0, step)


def _exact_columns(theta: Array) -> Array:
    """Whose theta^ is theta whatever the format: the first if it is 1, and those that rest."""
    return ((np.arange(len(theta)) == 0) & (theta == 1)) | (theta == 0)


def inv_freq_terms(
    case: Any, theta: Array, arithmetic: Arithmetic, scaled: Scaled | None = None
) -> dict[str, Array]:
    """Bounds on |theta^ - theta|, (rotary_dim/2,): half an ulp, or (6) and (7), and `scaled`'s.

    0 for a frequency of 1 in column 0; beyond all angles where theta^ may overflow.
    """
    name, ulps = arithmetic["inv_freq"], arithmetic["inv_freq_ulp"]
    fmt, column = FORMATS[name], np.arange(len(theta))
    if not ulps:
        step = np.where(np.isinf(fmt.round(theta)), ENDLESS, fmt.half_ulp(theta))
        return {f"inv_freq rounded to {name}": np.where(_exact_columns(theta), 0.0, step)}
    stretch = _exponent_step(case.rotary_dim, name) * abs(np.log(case.rope_theta))
    eta = (2 * ulps + 1) * fmt.unit
    relative = np.exp(stretch) * ((1 + fmt.unit) / (1 - eta) - 1) * (column > 0)
    spread = 2 * np.exp(stretch) / (1 - eta)
    normal = (theta >= 2.0**fmt.emin) & (theta > spread / fmt.largest)
    normal &= theta < fmt.largest / spread
    # (6), (7) know no subnormals and no overflow
    power = np.where(normal | (theta == 0), theta * relative, ENDLESS * (column > 0))
    found = {
        f"exponent 2c/rotary_dim rounded to {name}": theta * np.expm1(stretch),
        f"power within {ulps} ulp and reciprocal in {name}": power,
    }
    if scaled:
        found[f"scaled in {name}"] = scaled(np.expm1(stretch) + relative, fmt.unit)
    return found


@lru_cache(maxsize=256)
def _exponent_step(rotary_dim: int, dtype: str) -> Array:
    """h_f(2c/rotary_dim), 0 where the format holds the quotient; (rotary_dim/2,)."""
    fmt, quotients = FORMATS[dtype], [Fraction(2 * c, rotary_dim) for c in range(rotary_dim // 2)]
    uneven = np.array([fmt.round_fraction(q) != q for q in quotients])
    return np.where(uneven, fmt.half_ulp([float(q) for q in quotients]), 0.0)


def _exact_product(positions: list[int], theta: Array, arithmetic: Arithmetic) -> Array:
    """Where m^ theta^ is in the angle's format, whatever theta^ is; (tokens, rotary_dim/2)."""
    angle, frequency = FORMATS[arithmetic["angle"]], arithmetic["inv_freq"]
    held = _holds(positions, angle)
    if arithmetic["position"] != "exact":
        position = FORMATS[arithmetic["position"]]
        held = np.where(_holds(positions, position), held, position.precision <= angle.precision)
    first = ((np.arange(len(theta)) == 0) & (theta == 1) & held) | (theta == 0)
    wider = frequency == "exact" or FORMATS[frequency].precision > angle.precision
    if wider or FORMATS[frequency].emin < angle.emin:  # subnormals of the angle have fewer bits
        return first | _zero(positions)
    power = np.array([m & (m - 1) == 0 for m in map(abs, positions)], bool)[:, None]
    return first | (power & held) | _zero(positions)


def _zero(positions: list[int]) -> Array:
    return np.array([m == 0 for m in positions], bool)[:, None]


def _values(x: Array, other: Array, parts: Mapping[str, Array]) -> tuple[dict[str, Array], Array]:
    """Eq. (8): what the angle terms do to x, cos or sin, split in proportion; other: sin or cos."""
    # from 4 rad on (8) is 1 + |x|
    cut = {name: np.minimum(part, 4.0) for name, part in parts.items()}
    d = sum(cut.values(), np.zeros_like(x))
    moved = np.minimum(1 + np.abs(x), np.abs(other) * d + np.abs(x) * d * d / 2)
    moved = moved * OUTWARD
    share = moved / np.where(d == 0, 1.0, d)
    return {name: share * part for name, part in cut.items()}, moved


def _trig(reach: Array, m: Array, output: str, ulps: float) -> Array:
    """Eq. (9): error before the last rounding for values up to `reach`; position 0 is exact."""
    fmt = FORMATS[output]
    magnitude = np.minimum(reach + ulps * fmt.ulp(reach), 1 - fmt.unit)
    return np.where(m == 0, 0.0, (ulps - 0.5) * fmt.ulp(magnitude))


def _prescribed(positions: list[int], arithmetic: Arithmetic) -> bool:
    """Whether the declared roundings fix the angle, in a product that float64 holds."""
    stages = [arithmetic[s] for s in ("position", "inv_freq", "angle")]
    if "exact" in stages or arithmetic["inv_freq_ulp"] or arithmetic["angle_error"]:
        return False
    position, frequency, angle = (FORMATS[s] for s in stages)
    held = position.precision + frequency.precision <= 53 or angle.name == "float64"
    return held and bool(np.isfinite(_rounded(positions, position)).all())


def _prescribed_angle(
    truth: Truth, case: Any, positions: list[int], arithmetic: Arithmetic
) -> Array | None:
    """The angles that the declared roundings give, (tokens, rotary_dim/2); None if they do not."""
    if not _prescribed(positions, arithmetic):
        return None
    rounded = truth.inv_freq(case.rotary_dim, case.rope_theta, arithmetic["inv_freq"])
    near = _rounded(positions, FORMATS[arithmetic["position"]])
    with np.errstate(invalid="ignore"):  # infinity times position 0
        angle = FORMATS[arithmetic["angle"]].round(near * rounded)
    return angle if np.isfinite(angle).all() else None


def _replay(name: str, angle: Array, m: Array, output: str, ulps: float) -> Replay:
    """T1: the function of the replayed angle, and what is left open of it."""
    centre = np.cos(angle) if name == "cos" else np.sin(angle)
    radius = _trig(np.abs(centre) + NUMPY, m, output, ulps)
    return Replay(centre, np.where(m == 0, 0.0, radius + NUMPY))
