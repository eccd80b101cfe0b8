"""The budget of rope_table: sound under worst-case roundings, every term needed, and tight."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tightrope.arithmetic import Arithmetic
from tightrope.budget import Budget, judge
from tightrope.formats import FORMATS, Array
from tightrope.oracles.rope_table import CONTRACT, RopeTableCase
from tightrope.oracles.rope_table_exact import inv_freq

F32 = FORMATS["float32"]
LONG = np.longdouble
SEEDS = range(40)
EXACT = {"position": "exact", "inv_freq": "exact", "angle": "exact", "inv_freq_ulp": 0}
Tables = dict[str, Array]


def grant(**stages: Any) -> Arithmetic:
    return Arithmetic(**stages).over(CONTRACT.stages)


def budgets(case: RopeTableCase, arithmetic: Arithmetic) -> dict[str, Budget]:
    return CONTRACT.budget(case, CONTRACT.inputs(case), arithmetic)


def long_theta(case: RopeTableCase) -> Array:
    exponent = np.arange(0, case.rotary_dim, 2).astype(LONG) / case.rotary_dim
    return LONG(case.rope_theta) ** -exponent


def angles_mod_turn(case: RopeTableCase) -> tuple[Array, Array]:
    """Positions (tokens, 1) and m theta in extended precision."""
    m = CONTRACT.inputs(case)["positions"].astype(LONG)[:, None]
    return m, m * long_theta(case)


# Right kernels, with explicit roundings.


def float32_kernel(case: RopeTableCase, a: Arithmetic) -> Tables:
    """One rounding a stage; inv_freq correctly rounded, or by a power that uses what it is allowed."""
    m = FORMATS[a["position"]].round(CONTRACT.inputs(case)["positions"].astype(np.float64))[:, None]
    return trig(case, FORMATS[a["angle"]].round(m * frequencies(case, a)), a["trig_ulp"])


def frequencies(case: RopeTableCase, a: Arithmetic) -> Array:
    if not a["inv_freq_ulp"]:
        return inv_freq(case.rotary_dim, case.rope_theta, a["inv_freq"])
    exponent = F32.round(np.arange(0, case.rotary_dim, 2) / case.rotary_dim)
    power = F32.round(case.rope_theta**exponent)
    allowed = 0 if a["inv_freq_ulp"] == 1 else a["inv_freq_ulp"]
    off = np.random.default_rng(case.seed).integers(-allowed, allowed + 1, power.shape)
    off[0] = 0  # pow(b, 0) = 1
    return F32.round(1 / (power + off * F32.ulp(power)))


def trig(case: RopeTableCase, angle: Array, ulps: int, spread: bool = False) -> Tables:
    """Correctly rounded cos and sin; with spread, displaced by up to that many ulp."""
    rng, out = np.random.default_rng(case.seed + 1), {}
    for name, f in (("cos", np.cos), ("sin", np.sin)):
        value = F32.round(f(angle).astype(np.float64))
        off = rng.integers(-ulps, ulps + 1, value.shape) * spread * (np.abs(value) < 1) * (value != 0)
        out[name] = np.clip(value + off * F32.ulp(value), -1, 1).astype(np.float32)
    return out


def spread_kernel(case: RopeTableCase, a: Arithmetic) -> Tables:
    m = CONTRACT.inputs(case)["positions"].astype(np.float32)[:, None]
    angle = m * inv_freq(case.rotary_dim, case.rope_theta, "float32").astype(np.float32)
    return trig(case, angle.astype(np.float64), a["trig_ulp"], spread=True)


def cast_angle_kernel(case: RopeTableCase, a: Arithmetic) -> Tables:
    """Angles formed exactly (here: in extended precision), rounded once to float32."""
    return trig(case, angles_mod_turn(case)[1].astype(np.float32).astype(np.float64), 0)


def turns_kernel(case: RopeTableCase, a: Arithmetic) -> Tables:
    """12-bit fixed-point turns (a table of 4,096 sines), float64 cos and sin."""
    turns = np.rint(angles_mod_turn(case)[1] / (2 * LONG(np.pi)) * 2**12) / 2**12
    return trig(case, (turns % 1).astype(np.float64) * (2 * np.pi), 0)


@dataclass(frozen=True)
class Family:
    """A designated family of docs/error-budgets.md: where the term dominates."""

    term: str
    arithmetic: Arithmetic
    kernel: Callable[[RopeTableCase, Arithmetic], Tables]
    case: RopeTableCase
    bases: tuple[float, ...] = (10000.0,)

    def cases(self) -> Iterator[RopeTableCase]:
        for seed in SEEDS:
            yield replace(self.case, seed=seed, rope_theta=self.bases[seed % len(self.bases)])

    def name(self, budget: Budget) -> str:
        return next(name for name in budget.terms if name.startswith(self.term))


def family_case(kind: str, start: int, span: int, rotary_dim: int = 64) -> RopeTableCase:
    return RopeTableCase(tokens=16, rotary_dim=rotary_dim, positions=kind, start=start, span=span)


POWERS = family_case("powers", 2**10, 2**16 - 2**10 + 1)
FAMILIES = {
    "position": Family(
        "position rounded", grant(position="bfloat16", inv_freq_ulp=0), float32_kernel,
        family_case("random", 2**16, 2**16),
    ),
    "inv_freq": Family(
        "inv_freq rounded", grant(inv_freq_ulp=0), float32_kernel,
        family_case("powers", 2**10, 2**20 - 2**10 + 1), (10000.0, 500000.0, 1000000.0),
    ),
    "exponent": Family(
        "exponent", grant(inv_freq_ulp=1), float32_kernel, replace(POWERS, rotary_dim=80), (1e7,)
    ),
    "power": Family("inv_freq in", grant(), float32_kernel, POWERS),
    "angle": Family(
        "angle rounded", grant(**{**EXACT, "angle": "float32"}), cast_angle_kernel,
        family_case("random", 2**12, 2**17 - 2**12),
    ),
    "reduction": Family(
        "angle within", grant(**EXACT, angle_error=2 * np.pi * 2.0**-13, trig_dtype="float64", trig_ulp=4),
        turns_kernel, family_case("random", 1, 2**17 - 1),
    ),
    "trig": Family("cos, sin", grant(inv_freq_ulp=0), spread_kernel, family_case("random", 1, 4096, 2)),
}  # fmt: skip


def worst_tightness(family: Family, factor: float = 1.0) -> Array:
    """Per case, the largest tightness over both outputs."""
    found = []
    for case in family.cases():
        outputs = family.kernel(case, family.arithmetic)
        found.append(
            max(
                b.scaled(family.name(b), factor).tightness(outputs[output]).max()
                for output, b in budgets(case, family.arithmetic).items()
            )
        )
    return np.array(found)


@pytest.mark.parametrize("which", FAMILIES)
def test_each_term_is_tight_where_it_dominates(which: str) -> None:
    tightness = worst_tightness(FAMILIES[which])
    assert np.median(tightness) >= 0.5
    assert tightness.max() <= 1


@pytest.mark.parametrize("which", FAMILIES)
def test_a_term_four_times_too_wide_is_noticed(which: str) -> None:
    assert np.median(worst_tightness(FAMILIES[which], 4.0)) < 0.5


@pytest.mark.parametrize("which", FAMILIES)
def test_right_kernels_are_accepted(which: str) -> None:
    family = FAMILIES[which]
    for case in family.cases():
        inputs, outputs = CONTRACT.inputs(case), family.kernel(case, family.arithmetic)
        for name, b in budgets(case, family.arithmetic).items():
            verdict = judge(name, outputs[name], b, lambda at, n=name, i=inputs, c=case: CONTRACT.exact(c, i, n, at))
            assert verdict.ok, f"{case}\n{verdict.message}"


# Worst-case arithmetic: every inexact rounding is a full step of half an ulp.


def steps(pattern: str, shape: tuple[int, ...], seed: int) -> Array:
    if pattern == "random":
        return np.random.default_rng(seed).choice([-1.0, 1.0], shape)
    if pattern == "alternating":
        return np.where(np.arange(shape[-1]) % 2, 1.0, -1.0) * np.ones(shape)
    return np.full(shape, {"up": 1.0, "down": -1.0}[pattern])


def stressed_angle(case: RopeTableCase, a: Arithmetic, sign: Callable[[tuple[int, ...]], Array]) -> Array:
    """Magnitude of the angle in extended precision, every inexact operation off by its whole bound."""
    m, theta = np.abs(angles_mod_turn(case)[0]), long_theta(case)
    column, held = np.arange(case.rotary_dim // 2), np.ones(m.shape, bool)
    near = m
    if a["position"] != "exact":
        fmt = FORMATS[a["position"]]
        held = fmt.round(m.astype(np.float64)) == m
        near = m + np.where(held, 0, sign(m.shape) * fmt.half_ulp(m.astype(np.float64)))
    if a["inv_freq"] != "exact":
        theta = np.where(column == 0, 1, stressed_frequency(case, a, sign))
    angle = near * theta
    if a["angle"] != "exact":
        fmt = FORMATS[a["angle"]]
        power_of_two = (np.frexp(m.astype(np.float64))[0] == 0.5) & (a["inv_freq"] != "exact")
        keeps = fmt.round(near.astype(np.float64)) == near
        exact = (m == 0) | (held & power_of_two & keeps) | ((column == 0) & keeps)
        angle = angle + np.where(exact, 0, sign(angle.shape) * fmt.half_ulp(angle.astype(np.float64)))
    return angle + sign(angle.shape) * a["angle_error"] * (m != 0)


def stressed_frequency(case: RopeTableCase, a: Arithmetic, sign: Callable[[tuple[int, ...]], Array]) -> Array:
    fmt, theta = FORMATS[a["inv_freq"]], long_theta(case)
    if not a["inv_freq_ulp"]:
        return theta + sign(theta.shape) * fmt.half_ulp(theta.astype(np.float64))
    exponent = np.arange(0, case.rotary_dim, 2).astype(LONG) / case.rotary_dim
    even = np.array([case.rotary_dim // np.gcd(2 * c, case.rotary_dim) for c in range(len(theta))])
    even = even & (even - 1) == 0  # the quotient is a number of the format
    step = np.where(even, 0, fmt.half_ulp(exponent.astype(np.float64)))
    power = LONG(case.rope_theta) ** (exponent - sign(theta.shape) * step)
    power = power - sign(theta.shape) * (a["inv_freq_ulp"] + 0.5) * fmt.ulp(power.astype(np.float64))
    return 1 / power + sign(theta.shape) * fmt.half_ulp((1 / power).astype(np.float64))


def stress(case: RopeTableCase, a: Arithmetic, pattern: str) -> dict[str, Array]:
    """Error before the last rounding, with the oracle's and the simulation's own error taken off."""
    parity = np.sign(angles_mod_turn(case)[0])
    angle = stressed_angle(case, a, lambda shape: steps(pattern, shape, case.seed))
    fmt, slack = FORMATS[a["trig_dtype"]], 2.0**-61 * (np.abs(angle) + 4)
    found = {}
    for name, value, sign in (("cos", np.cos(angle), 1), ("sin", np.sin(angle), parity)):
        b = budgets(case, a)[name]
        error = sign * value - b.expected
        size = np.minimum(fmt.round(np.abs(value).astype(np.float64)), 1 - fmt.unit)
        ulps = a["trig_ulp"] + (0.0 if a["trig_dtype"] == "float32" else 0.5)
        last = np.where(parity == 0, 0, ulps * fmt.ulp(size))
        found[name] = np.maximum(np.abs(error) + last - b.oracle - slack, 0)
    return found


def largest_share(case: RopeTableCase, a: Arithmetic, without: str = "") -> float:
    """Over sign patterns, outputs and elements; optionally with one term deleted."""
    worst = 0.0
    for pattern in ("up", "down", "alternating", "random"):
        for name, error in stress(case, a, pattern).items():
            b = budgets(case, a)[name]
            bound = b.without(*(t for t in b.terms if without and t.startswith(without))).bound
            with np.errstate(divide="ignore", invalid="ignore"):
                share = np.where(error == 0, 0, error / bound)
            worst = max(worst, float(share.max(initial=0.0)))
    return worst


OTHERS = {
    "stranger": grant(),
    "odd exponents": grant(inv_freq_ulp=2, trig_ulp=1),
    "float64 angles": grant(position="float64", angle="float64", inv_freq_ulp=0),
    "bfloat16 throughout": grant(position="bfloat16", inv_freq="bfloat16", inv_freq_ulp=0, angle="bfloat16"),
    "bfloat16 table": grant(**EXACT, trig_dtype="bfloat16", trig_ulp=0),
}
MIXED = [
    RopeTableCase(tokens=16, rotary_dim=d, rope_theta=b, positions=kind, start=start, span=2**17, seed=seed)
    for seed, (d, b, kind, start) in enumerate(
        [
            (64, 1e4, "range", 0), (96, 1e7, "range", 1), (6, 2.5, "random", 1), (80, 0.5, "negative", 1000),
            (256, 1e6, "random", 2**12), (128, 5e5, "long", 2**17 - 1), (40, 10.0, "huge", 2**25 - 3),
            (192, 1e4, "powers", 1), (2, 100.0, "repeated", 4095), (64, 1e6, "descending", 131070),
        ]
    )
]  # fmt: skip


@pytest.mark.parametrize("name", [*OTHERS, *FAMILIES])
def test_worst_case_roundings_stay_within_the_budget(name: str) -> None:
    family = FAMILIES.get(name)
    arithmetic = family.arithmetic if family else OTHERS[name]
    own = [c for c in family.cases() if c.seed < 8] if family else []
    for case in [*MIXED, *own]:
        assert largest_share(case, arithmetic) <= 1, case


@pytest.mark.parametrize("which", FAMILIES)
def test_deleting_a_term_is_noticed(which: str) -> None:
    family = FAMILIES[which]
    case = next(family.cases())
    assert largest_share(case, family.arithmetic, without=family.term) > 1


# Replay, exactness, edges.


@pytest.mark.parametrize("case", MIXED, ids=lambda c: c.positions)
def test_replay_leaves_only_the_trigonometric_function_open(case: RopeTableCase) -> None:
    a = grant(inv_freq_ulp=0)
    m = CONTRACT.inputs(case)["positions"].astype(np.float32)[:, None]
    theta = inv_freq(case.rotary_dim, case.rope_theta, "float32").astype(np.float32)
    angle = (m * theta).astype(np.float64)
    off = F32.neighbours(angle)[1]  # one more rounding somewhere
    for name, b in budgets(case, a).items():
        assert b.replay is not None
        assert b.replayed(trig(case, angle, 2, spread=True)[name]).all()
        slope = np.sin(angle) if name == "cos" else np.cos(angle)
        visible = np.abs((off - angle) * slope) > 8 * F32.ulp(1.0)
        assert not (b.replayed(trig(case, off, 0)[name]) & visible & (angle != off)).any()


def test_replay_rejects_a_frequency_rounded_the_other_way() -> None:
    case = family_case("random", 1000, 3000)
    m = CONTRACT.inputs(case)["positions"].astype(np.float32)[:, None]
    theta = inv_freq(64, 1e4, "float32")
    wrong = F32.neighbours(theta)[0].astype(np.float32)
    b = budgets(case, grant(inv_freq_ulp=0))["sin"]
    right = m * theta.astype(np.float32)
    assert b.replayed(trig(case, right.astype(np.float64), 0)["sin"]).all()
    assert not b.replayed(trig(case, (m * wrong).astype(np.float64), 0)["sin"]).all()


def test_no_replay_where_a_rounding_is_open() -> None:
    case = RopeTableCase(tokens=3)
    for open_stage in ({"inv_freq_ulp": 4}, {"angle": "exact"}, {"angle_error": 1e-9}):
        assert budgets(case, grant(**{"inv_freq_ulp": 0, **open_stage}))["cos"].replay is None


def test_float64_functions_of_replayed_angles_are_within_their_allowance() -> None:
    """eq. (9)'s 2**-50: NumPy against extended precision, and against arb where that reduces badly."""
    from flint import arb, ctx

    rng = np.random.default_rng(5)
    angles = F32.round(rng.uniform(1, 2, 400) * 2.0 ** rng.integers(-20, 62, 400))
    with ctx.workprec(256):
        exact = [arb(x).sin_cos() for x in angles.tolist()]
    for f, which in ((np.sin, 0), (np.cos, 1)):
        truth = np.array([float(pair[which].mid()) for pair in exact])
        assert np.abs(f(angles) - truth).max() <= 2.0**-51


@pytest.mark.parametrize("a", [grant(), grant(inv_freq_ulp=0), grant(**EXACT, angle_error=1e-8)])
def test_position_zero_is_exact(a: Arithmetic) -> None:
    case = RopeTableCase(tokens=2, start=0, rotary_dim=64)
    for name, b in budgets(case, a).items():
        assert (b.bound[0] == 0).all()
        out = np.full((2, 32), 1.0 if name == "cos" else 0.0, np.float32)
        assert b.inside(out)[0].all()
        assert b.replayed(out)[0].all()
        assert not b.inside(out + np.float32(2**-23))[0].any()


def test_positions_beyond_a_format_leave_an_empty_promise_not_a_nan() -> None:
    case = RopeTableCase(tokens=2, start=2**17, rotary_dim=8)
    b = budgets(case, grant(position="float16", inv_freq_ulp=0))["cos"]
    assert b.replay is None
    assert np.isfinite(b.bound).all()
    assert (b.bound >= 1).all()


def test_one_ulp_of_a_short_position_is_all_an_exact_builder_gets() -> None:
    """A declared fixed-point builder must be correctly rounded nearly everywhere."""
    a = grant(**EXACT, angle_error=2.0**-60, trig_dtype="float64", trig_ulp=4)
    case = RopeTableCase(tokens=16, rotary_dim=128, positions="huge", start=2**40 + 1)
    for b in budgets(case, a).values():
        decided = F32.round(b.expected - b.bound) == F32.round(b.expected + b.bound)
        assert decided.mean() > 0.999
