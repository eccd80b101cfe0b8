"""The budget of scaled frequencies: sound under worst-case roundings, needed, and tight."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from tightrope.arithmetic import Arithmetic
from tightrope.budget import Budget
from tightrope.formats import FORMATS, Array
from tightrope.oracles import rope_scaling
from tightrope.oracles.rope_scaling_budget import scaling_term
from tightrope.oracles.rope_table import CONTRACT, RopeTableCase
from tightrope.oracles.rope_table_scaling import VARIANTS, scaling_of
from tightrope.rope_scaling import RopeScaling

LONG, UNIT, RHO = np.longdouble, 2.0**-24, 2.0**-22
FLOAT32 = FORMATS["float32"]
Round = Callable[[Array], Array]
BASES, LENGTHS, FACTORS = (1e4, 5e5, 1e6), (4096, 8192, 32768), (8.0, 40.0, 2.5)


def cases(kind: str, seeds: int = 40) -> Iterator[RopeTableCase]:
    """The designated family of a type: models' sizes, bases, lengths and factors."""
    variants = list(VARIANTS[kind])
    for seed in range(seeds):
        length = LENGTHS[seed % 3]
        yield RopeTableCase(
            rotary_dim=(64, 128, 96)[seed % 3], rope_theta=BASES[seed // 3 % 3], rope_scaling=kind,
            factor=FACTORS[seed // 9 % 3], length=length, variant=variants[seed % len(variants)],
            seq_len=length + 1 + seed**3, seed=seed,
        )  # fmt: skip


def rounding(pattern: str, seed: int) -> Round:
    """x, off by UNIT of itself: up, down, by turns, or at random."""
    rng, calls = np.random.default_rng(seed), iter(range(10**6))

    def once(x: Array) -> Array:
        x = np.asarray(x, LONG)
        sign = {"up": 1.0, "down": -1.0, "turns": (-1.0) ** next(calls)}.get(pattern)
        return x * (1 + UNIT * (rng.choice([-1.0, 1.0], x.shape) if sign is None else sign))

    return once


def unscaled(case: RopeTableCase, scaling: RopeScaling, r: Round) -> Array:
    """Powers of a base that is itself rounded, each off by RHO in the direction of a rounding."""
    d, exponent = case.rotary_dim, np.arange(0, case.rotary_dim, 2).astype(LONG) / case.rotary_dim
    base = LONG(case.rope_theta)
    if scaling.rope_type in ("ntk", "dynamic"):
        s, length = r(LONG(float(scaling.factor))), LONG(scaling.original_max_position_embeddings)
        stretch = s
        if scaling.rope_type == "dynamic":
            n = max(LONG(scaling.seq_len), length)
            stretch = r(r(r(s * r(n)) / length) - r(s - 1))
        power = r(stretch ** r(LONG(d) / (d - 2)))
        for _ in range(8):  # a power within 4 ulp of correctly rounded
            power = r(power)
        base = r(r(base * power))
    return base**-exponent * (1 + RHO * (r(np.ones(d // 2)) - 1) / UNIT)


def stressed(case: RopeTableCase, scaling: RopeScaling, r: Round) -> Array:
    """Scaled frequencies where every rounding is a full step off."""
    w, s, kind = unscaled(case, scaling, r), LONG(float(scaling.factor)), scaling.rope_type
    if kind == "longrope":
        return r(w / r(np.array(rope_scaling.selected(scaling), LONG)))
    if kind in ("linear", "proportional"):
        scaled = r(w / r(s))
        return np.where(np.arange(len(w)) < scaling.turning, scaled, 0)
    if kind not in ("yarn", "llama3"):
        return w
    kept = ramp(case, scaling, r) if kind == "yarn" else smooth(scaling, w, r)
    interpolated = r(w / r(s))
    return r(r(interpolated * rest(kept, r)) + r(w * kept))


def rest(kept: Array, r: Round) -> Array:
    return np.where(kept == 1, 0, np.where(kept == 0, 1, r(1 - kept)))


def ramp(case: RopeTableCase, scaling: RopeScaling, r: Round) -> Array:
    low, high = rope_scaling.corrections(case.rotary_dim, case.rope_theta, scaling)
    column, whole = np.arange(case.rotary_dim // 2).astype(LONG), scaling.truncate
    width = LONG(high) - LONG(low)
    if whole:
        over = column - LONG(low)
        return rest(np.clip(np.where(over == width, 1, r(over / width)), 0, 1), r)
    return rest(np.clip(r(r(column - r(LONG(low))) / r(width)), 0, 1), r)


def smooth(scaling: RopeScaling, w: Array, r: Round) -> Array:
    low, high = LONG(scaling.low_freq_factor), LONG(scaling.high_freq_factor)
    length = LONG(scaling.original_max_position_embeddings)
    wavelength = r(r(2 * LONG(np.pi)) / w)
    kept = r(r(r(length / wavelength) - r(low)) / r(high - low))
    kept = np.where(wavelength < length / high, 1, kept)
    return np.where(wavelength > length / low, 0, kept)


def errors(kind: str) -> Iterator[tuple[Array, Array, Array]]:
    """|theta^ - theta|, what the errors of the powers explain, and the scaling's own bound."""
    for case in cases(kind):
        scaling = scaling_of(case)
        theta = rope_scaling.frequencies(case.rotary_dim, case.rope_theta, scaling)
        own = scaling_term(
            case.rotary_dim, case.rope_theta, scaling, np.full(len(theta), RHO), UNIT
        )
        for pattern in ("up", "down", "turns", "random"):
            found = stressed(case, scaling, rounding(pattern, case.seed))
            error = np.abs(found - theta) - 2.0**-48 * theta  # float64's own
            yield error.astype(float), theta * RHO, own


SCALED = [kind for kind in VARIANTS if kind != "default"]


@pytest.mark.parametrize("kind", SCALED)
def test_the_worst_roundings_stay_within(kind: str) -> None:
    for error, powers, own in errors(kind):
        assert (error <= powers + own).all()


@pytest.mark.parametrize("kind", SCALED)
def test_without_its_own_term_the_budget_is_exceeded(kind: str) -> None:
    assert any((error > powers).any() for error, powers, _ in errors(kind))


@pytest.mark.parametrize("kind", SCALED)
def test_the_term_is_tight(kind: str) -> None:
    """The share of the whole that the worst column spends, of the worst pattern: half or more."""
    shares = []
    for error, powers, own in errors(kind):
        turning = powers > 0
        shares.append(float((error[turning] / (powers + own)[turning]).max()))
    worst = np.array(shares).reshape(-1, 4).max(1)
    assert np.median(worst) >= 0.5


def amplified(how: str) -> Iterator[tuple[float, Budget]]:
    """attention_factor other than 1, and budgets of cos and sin whose angles are exact."""
    given = Arithmetic(
        position="exact", inv_freq="exact", inv_freq_ulp=0, angle="exact", trig_ulp=1.5,
        attention_factor=how,
    ).over(CONTRACT.stages)  # fmt: skip
    for case in cases("yarn"):
        case = replace(case, tokens=16, positions="random", span=2**17)
        factor = rope_scaling.attention_factor(scaling_of(case))
        if factor != 1:
            for budget in CONTRACT.budget(case, CONTRACT.inputs(case), given).values():
                yield factor, budget


def test_a_rounded_attention_factor_is_a_term_that_is_needed() -> None:
    """cos and sin rounded and 1.5 ulp off, outward, then multiplied with the nearest float32."""
    exceeded = 0
    for factor, budget in amplified("float32"):
        near, value = float(np.float32(factor)), np.abs(budget.expected) / factor
        sign = 1 if near > factor else -1
        moved = value + sign * 1.5 * FLOAT32.ulp(np.minimum(value, 1 - UNIT))
        error = np.abs(near * moved - factor * value) - 2.0**-48
        assert (error <= budget.bound).all()
        name = next(term for term in budget.terms if term.startswith("attention_factor"))
        exceeded += bool((error > budget.without(name).bound).any())
    assert exceeded


def test_an_exact_attention_factor_costs_ulps_of_the_product() -> None:
    for factor, budget in amplified("exact"):
        error = 1.0 * FLOAT32.ulp(np.minimum(np.abs(budget.expected), factor * (1 - UNIT)))
        assert (error <= budget.bound * (1 + 2.0**-40)).all()
        assert np.median(error / budget.bound) >= 0.25
