"""The budget of `rope` under stress: never exceeded, every term needed, every term tight.

Families, and why: docs/error-budgets.md, section rope.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from simulated_rope import arithmetic, kernel, nearest, split

from tightrope import Arithmetic
from tightrope.formats import FORMATS
from tightrope.oracles.rope import CONTRACT, RopeCase

SIZE = {
    "tokens": 16, "num_heads": 2, "num_kv_heads": 1, "head_dim": 64, "rotary_dim": 64,
    "positions": "random", "table_rows": 4160,
}  # fmt: skip
FLOAT64 = FORMATS["float64"]


@dataclass(frozen=True)
class Family:
    """Cases on which one term dominates."""

    term: str
    fields: dict
    arithmetic: Arithmetic
    before_the_cast: bool = False  # judged on the float32 value that is cast to 16 bits

    def case(self, seed, **changes):
        return RopeCase(
            **{**SIZE, "interleaved": bool(seed % 2), **self.fields, **changes}, seed=seed
        )


def _families():
    single = {"dtype": "float32", "table_dtype": "float32", "data": "cancellation"}
    half = {"dtype": "float16", "table_dtype": "float16", "data": "mixed_scales"}
    yield "products", Family("products rounded to float32", single, arithmetic())
    yield "sum", Family("sum rounded to float32", half, arithmetic(), True)
    for name in ("bfloat16", "float16"):
        low = {"dtype": name, "table_dtype": name, "out_dtype": "float32"}
        given = {**low, "table_dtype": "float32"}
        table, products, total = (arithmetic(**{s: "input"}) for s in ("table", "product", "sum"))
        yield f"table-{name}", Family(f"cos and sin rounded to {name}", given, table)
        yield f"products-{name}", Family(f"products rounded to {name}", low, products)
        yield f"sum-{name}", Family(f"sum rounded to {name}", low, total)


FAMILIES = dict(_families())
SEEDS = range(40)


def pushed(pattern, rng):
    """Every inexact rounding replaced by a full half ulp; exact operations stay exact."""

    def step(stage, fmt, value, uphill):
        sign = {
            "up": 1.0,
            "down": -1.0,
            "outward": np.where(value < 0, -1.0, 1.0),
            "inward": np.where(value < 0, 1.0, -1.0),
            "uphill": uphill,
            "downhill": -np.asarray(uphill),
            "random": rng.choice([-1.0, 1.0], np.shape(value)),
        }[pattern]
        return np.where(fmt.round(value) == value, value, value + sign * fmt.half_ulp(value))

    return step


PATTERNS = ("up", "down", "outward", "inward", "uphill", "downhill", "random")


def excess(case, inputs, name, stages, budget, pattern):
    """The largest |v - y| / bound under one pattern, and where the bound is 0, whether v is y.

    The float64 evaluation of v and y rounds at most four times, 2**-53 of |P| + |Q| + |v| each.
    """
    v = kernel(case, inputs, name, stages, pushed(pattern, np.random.default_rng(case.seed)))
    x1, x2, c, s, put = split(inputs, name, case.interleaved)
    size = put(np.abs(x1 * c) + np.abs(x2 * s), np.abs(x2 * c) + np.abs(x1 * s))
    over = np.maximum(np.abs(v - budget.expected) - 2.0**-51 * (np.abs(size) + np.abs(v)), 0)
    return ratio(over, budget.bound)


def ratio(error, bound):
    """The largest error / bound; 0 / 0 is 0, anything else over 0 is infinite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.max(np.where(error == 0, 0.0, error / bound)))


STRESSED = [
    (dtype, table, stages, out)
    for dtype, table in (
        ("float32", "float32"), ("float16", "float32"), ("float16", "float16"),
        ("bfloat16", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float16"),
    )
    for stages in (
        {}, {"table": "input"}, {"product": "input"}, {"sum": "input"},
        {"table": "input", "product": "input", "sum": "input"},
    )
    for out in ("input", "float32")
]  # fmt: skip


@pytest.mark.parametrize(
    "data", ["normal", "cancellation", "mixed_scales", "subnormal", "few_bits"]
)
def test_full_half_ulp_steps_in_any_direction_stay_within_the_budget(data):
    worst = 0.0
    for number, (dtype, table_dtype, stages, out) in enumerate(STRESSED):
        case = RopeCase(
            **{**SIZE, "tokens": 6, "head_dim": 40, "rotary_dim": 32}, dtype=dtype, data=data,
            table_dtype=table_dtype, out_dtype=out, seed=number, interleaved=bool(number % 2),
            table="few_bits" if number % 3 == 0 else "unstructured",
        )  # fmt: skip
        inputs, promise = CONTRACT.inputs(case), arithmetic(**stages)
        for name, budget in CONTRACT.budget(case, inputs, promise).items():
            for pattern in PATTERNS:
                share = excess(case, inputs, name, promise, budget, pattern)
                assert share <= 1, (case, stages, name, pattern, share)
                worst = max(worst, share)
    assert worst > 0.5  # the stress reaches the budget, so it could have exceeded it


@pytest.mark.parametrize("family", FAMILIES)
def test_deleting_a_term_is_noticed(family):
    chosen = FAMILIES[family]
    case = chosen.case(0)
    inputs = CONTRACT.inputs(case)
    budget = CONTRACT.budget(case, inputs, chosen.arithmetic)["q"]
    without = budget.without(chosen.term)
    shares = [excess(case, inputs, "q", chosen.arithmetic, without, p) for p in PATTERNS]
    assert max(shares) > 1
    assert max(excess(case, inputs, "q", chosen.arithmetic, budget, p) for p in PATTERNS) <= 1


def tightness(chosen, seed, factor=1.0):
    """Worst tightness of a right kernel's output over one case."""
    case = chosen.case(seed)
    inputs, worst = CONTRACT.inputs(case), 0.0
    for name, budget in CONTRACT.budget(case, inputs, chosen.arithmetic).items():
        widened = budget.scaled(chosen.term, factor)
        v = kernel(case, inputs, name, chosen.arithmetic, nearest)
        if chosen.before_the_cast:
            share = ratio(np.abs(v - widened.expected), widened.bound)
        else:
            share = float(widened.tightness(FORMATS[budget.dtype].round(v)).max())
        worst = max(worst, share)
    return worst


@pytest.mark.parametrize("family", FAMILIES)
def test_every_term_is_tight_on_its_family_and_a_factor_of_four_shows(family):
    shares = [tightness(FAMILIES[family], seed) for seed in SEEDS]
    assert np.median(shares) >= 0.5
    assert max(shares) <= 1
    assert np.median([tightness(FAMILIES[family], seed, 4.0) for seed in SEEDS]) < 0.5


@pytest.mark.parametrize("family", FAMILIES)
def test_the_term_dominates_on_its_family(family):
    chosen = FAMILIES[family]
    case = chosen.case(0)
    budget = CONTRACT.budget(case, CONTRACT.inputs(case), chosen.arithmetic)["q"]
    last = 0.0 if chosen.before_the_cast else budget.format.half_ulp(np.abs(budget.expected))
    total = np.maximum(budget.bound + last, 5e-324)
    assert np.median(budget.terms[chosen.term] / total) >= 0.5
    assert np.median(budget.terms[chosen.term]) == max(np.median(t) for t in budget.terms.values())


def exact_float64(seed, factor=1.0):
    """Worst share |out - y| / (e + half an ulp) of a right float64 kernel, against exact values."""
    fields = {"dtype": "float64", "table_dtype": "float64", "data": "cancellation", "tokens": 4}
    case = RopeCase(**{**SIZE, **fields}, interleaved=bool(seed % 2), seed=seed)
    inputs = CONTRACT.inputs(case)
    promise, worst = arithmetic(), Fraction(0)
    budget = CONTRACT.budget(case, inputs, promise)["k"].scaled(
        "products rounded to float64", factor
    )
    out = kernel(case, inputs, "k", promise, lambda stage, fmt, value, uphill: value)
    exact = CONTRACT.exact(case, inputs, "k", range(out.size))
    last = FLOAT64.half_ulp(np.abs(budget.expected) + budget.bound)
    for v, e, h, y in zip(out.ravel(), budget.bound.ravel(), last.ravel(), exact, strict=True):
        worst = max(worst, abs(Fraction(float(v)) - y) / (Fraction(float(e)) + Fraction(float(h))))
    return float(worst)


def test_float64_is_tight_too():
    shares = [exact_float64(seed) for seed in range(10)]
    assert np.median(shares) >= 0.5
    assert max(shares) <= 1
    assert np.median([exact_float64(seed, 4.0) for seed in range(10)]) < 0.5
