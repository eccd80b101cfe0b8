"""The budget of rope_table: sound under worst-case roundings, every term needed, and tight."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from rope_table_kernels import (
    EXACT,
    F32,
    Tables,
    budgets,
    cast_angle_kernel,
    float32_kernel,
    functions,
    grant,
    inv_freq,
    loose_functions_kernel,
    stress,
    turns_kernel,
)

from tightrope.arithmetic import Arithmetic
from tightrope.formats import Array
from tightrope.oracles.rope_table import CONTRACT, RopeTableCase
from tightrope.verdict import judge

SEEDS = range(40)


@dataclass(frozen=True)
class Family:
    """A designated family of docs/error-budgets.md, where the term of this name dominates."""

    term: str
    arithmetic: Arithmetic
    kernel: Callable[[RopeTableCase, Arithmetic], Tables]
    case: RopeTableCase
    bases: tuple[float, ...] = (10000.0,)

    def cases(self, seeds: range = SEEDS) -> Iterator[RopeTableCase]:
        for seed in seeds:
            yield replace(self.case, seed=seed, rope_theta=self.bases[seed % len(self.bases)])


def tokens(kind: str, start: int, end: int, rotary_dim: int = 64) -> RopeTableCase:
    return RopeTableCase(
        tokens=16, rotary_dim=rotary_dim, positions=kind, start=start, span=end - start
    )


POWERS = tokens("powers", 2**10, 2**16 + 1)
FAMILIES = {
    "position": Family(
        "position rounded", grant(position="bfloat16", inv_freq_ulp=0), float32_kernel,
        tokens("random", 2**16, 2**17),
    ),
    "inv_freq": Family(
        "inv_freq rounded", grant(inv_freq_ulp=0), float32_kernel,
        tokens("powers", 2**10, 2**20 + 1), (10000.0, 500000.0, 1000000.0),
    ),
    "exponent": Family(
        "exponent", grant(inv_freq_ulp=1), float32_kernel, replace(POWERS, rotary_dim=80), (1e7,)
    ),
    "power": Family("power within", grant(), float32_kernel, POWERS),
    "angle": Family(
        "angle rounded", grant(**{**EXACT, "angle": "float32"}), cast_angle_kernel,
        tokens("random", 2**12, 2**17),
    ),
    "reduction": Family(
        "angle within", grant(**EXACT, angle_error=2 * np.pi * 2.0**-13, trig_ulp=0.5 + 2.0**-26),
        turns_kernel, tokens("random", 1, 2**17),
    ),
    "function": Family(
        "cos, sin", grant(inv_freq_ulp=0), loose_functions_kernel, tokens("random", 1, 2**12 + 1, 2)
    ),
}  # fmt: skip


def worst_tightness(family: Family, factor: float = 1.0) -> Array:
    """Per case, the largest tightness over both outputs, with the family's term multiplied."""
    found = []
    for case in family.cases():
        outputs, worst = family.kernel(case, family.arithmetic), 0.0
        for output, b in budgets(case, family.arithmetic).items():
            name = next(name for name in b.terms if name.startswith(family.term))
            worst = max(worst, float(b.scaled(name, factor).tightness(outputs[output]).max()))
        found.append(worst)
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
            exact = lambda at, n=name, i=inputs, c=case: CONTRACT.exact(c, i, n, at)  # noqa: E731
            verdict = judge(name, outputs[name], b, exact)
            assert verdict.ok, f"{case}\n{verdict.message}"


OTHERS = {
    "stranger": grant(),
    "odd exponents": grant(inv_freq_ulp=2, trig_ulp=1.0),
    "float64 angles": grant(position="float64", angle="float64", inv_freq_ulp=0),
    "bfloat16 throughout": grant(
        position="bfloat16", inv_freq="bfloat16", inv_freq_ulp=0, angle="bfloat16"
    ),
    "fixed point": grant(**EXACT, angle_error=2.0**-60, trig_ulp=0.5 + 2.0**-26),
}
KINDS = [
    (64, 1e4, "range", 0), (96, 1e7, "range", 1), (6, 2.5, "random", 1), (80, 0.5, "negative", 9),
    (256, 1e6, "random", 2**12), (128, 5e5, "long", 2**17 - 1), (40, 10.0, "huge", 2**25 - 3),
    (192, 1e4, "powers", 1), (2, 100.0, "repeated", 4095), (64, 1e6, "descending", 131070),
]  # fmt: skip
MIXED = [
    replace(tokens(kind, start, start + 2**17, d), rope_theta=base, seed=seed)
    for seed, (d, base, kind, start) in enumerate(KINDS)
]


def largest_share(case: RopeTableCase, a: Arithmetic, without: str = " ") -> float:
    """Over sign patterns, outputs and elements; optionally with one term deleted."""
    worst = 0.0
    for pattern in ("up", "down", "alternating", "random"):
        for name, error in stress(case, a, pattern).items():
            b = budgets(case, a)[name]
            bound = b.without(*(t for t in b.terms if t.startswith(without))).bound
            with np.errstate(divide="ignore", invalid="ignore"):
                share = np.where(error == 0, 0, error / bound)
            worst = max(worst, float(share.max(initial=0.0)))
    return worst


@pytest.mark.parametrize("name", [*OTHERS, *FAMILIES])
def test_worst_case_roundings_stay_within_the_budget(name: str) -> None:
    family = FAMILIES.get(name)
    own = family.cases(range(8)) if family else ()
    for case in [*MIXED, *own]:
        assert largest_share(case, family.arithmetic if family else OTHERS[name]) <= 1, case


@pytest.mark.parametrize("which", FAMILIES)
def test_deleting_a_term_is_noticed(which: str) -> None:
    family = FAMILIES[which]
    assert largest_share(next(family.cases()), family.arithmetic, without=family.term) > 1


@pytest.mark.parametrize("case", MIXED, ids=lambda c: c.positions)
def test_replay_leaves_only_the_function_open(case: RopeTableCase) -> None:
    m = CONTRACT.inputs(case)["positions"].astype(np.float32)[:, None]
    theta = inv_freq(case, "float32").astype(np.float32)
    angle = (m * theta).astype(np.float64)
    off = F32.neighbours(angle)[1]  # one more rounding somewhere
    for name, b in budgets(case, grant(inv_freq_ulp=0)).items():
        slope = np.sin(angle) if name == "cos" else np.cos(angle)
        visible = (np.abs((off - angle) * slope) > 2.0**-20) & (np.abs(off - angle) < 1)
        assert b.replayed(functions(case, angle, 2)[name]).all()
        assert not (b.replayed(functions(case, off)[name]) & visible).any()


def test_replay_rejects_a_frequency_rounded_the_other_way() -> None:
    case = tokens("random", 1000, 4000)
    m = CONTRACT.inputs(case)["positions"].astype(np.float32)[:, None]
    wrong = F32.neighbours(inv_freq(case, "float32"))[0].astype(np.float32)
    table = functions(case, (m * wrong).astype(np.float64))
    assert not budgets(case, grant(inv_freq_ulp=0))["sin"].replayed(table["sin"]).all()


def test_no_replay_where_a_rounding_is_open() -> None:
    open_ones = ({"inv_freq_ulp": 4}, {"angle": "exact"}, {"angle_error": 1e-9})
    for stage in (*open_ones, {"position": "float64"}):  # a product that float64 does not hold
        b = budgets(RopeTableCase(tokens=3), grant(**{"inv_freq_ulp": 0, **stage}))
        assert b["cos"].replay is None


def test_float64_functions_of_replayed_angles_are_within_their_allowance() -> None:
    from flint import arb, ctx

    rng = np.random.default_rng(5)
    angles = F32.round(rng.uniform(1, 2, 2000) * 2.0 ** rng.integers(-20, 62, 2000))
    with ctx.workprec(256):
        pairs = [arb(x).sin_cos() for x in angles.tolist()]
    for which, f in enumerate((np.sin, np.cos)):
        truth = np.array([float(pair[which].mid()) for pair in pairs])
        assert np.abs(f(angles) - truth).max() <= 2.0**-51


@pytest.mark.parametrize("a", [grant(), grant(inv_freq_ulp=0), grant(**EXACT, angle_error=1e-6)])
def test_position_zero_is_exact(a: Arithmetic) -> None:
    for name, b in budgets(RopeTableCase(tokens=2, start=0, rotary_dim=64), a).items():
        out = np.full((2, 32), 1.0 if name == "cos" else 0.0, np.float32)
        assert (b.inside(out) & b.replayed(out))[0].all()
        assert not b.inside(out + np.float32(2**-23))[0].any()


def test_positions_beyond_a_format_leave_an_empty_promise_not_a_nan() -> None:
    case = RopeTableCase(tokens=2, start=2**17, rotary_dim=8)
    b = budgets(case, grant(position="float16", inv_freq_ulp=0))["cos"]
    assert b.replay is None
    assert np.isfinite(b.bound).all()
    assert (b.bound >= 1).all()


def test_a_fixed_point_builder_is_held_to_correct_rounding() -> None:
    case = RopeTableCase(tokens=16, rotary_dim=128, positions="huge", start=2**40 + 1)
    for b in budgets(case, OTHERS["fixed point"]).values():
        decided = F32.round(b.expected - b.bound) == F32.round(b.expected + b.bound)
        assert decided.mean() > 0.999
