"""The budget of `merge_attention` under stress: never exceeded, and every term needed.

Kernels: tests/simulated_merge.py.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from simulated_merge import PATTERNS, Kernel

from tightrope import Arithmetic
from tightrope.formats import FORMATS
from tightrope.oracles.merge_attention import CONTRACT, MergeAttentionCase
from tightrope.oracles.merge_attention_budget import FORMS, STAGES
from tightrope.oracles.merge_attention_cases import DATA
from tightrope.verdict import judge

FLOAT32 = FORMATS["float32"]
WAYS = (
    *((form, "once") for form in FORMS),
    *((f, how) for f in FORMS for how in ("chain", "tree")),
)
STRANGER = Arithmetic().over(STAGES)


def case(**fields):
    return MergeAttentionCase(**{"splits": 3, "rows": 40, "num_heads": 2, "head_dim": 6, **fields})


def states(inputs):
    lses = inputs["lses"].astype(np.float64)
    return np.where((lses > -np.inf)[..., None], inputs["outs"].astype(np.float64), 0.0), lses


def excess(found, budgets):
    """The largest error / bound of out and of lse; 0 / 0 is 0, anything else over 0 infinite."""
    worst = {}
    for name, value in zip(("out", "lse"), found, strict=True):
        b = budgets[name]
        finite = np.isfinite(b.expected)
        assert (np.isfinite(value) == finite).all()
        error = np.abs(np.where(finite, value, 0) - np.where(finite, b.expected, 0))
        error = np.maximum(error - b.oracle, 0.0)
        near = FLOAT32.round(value)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(error == 0, 0.0, error / b.bound)
            ratio = np.where(near == value, b.share(near), ratio)  # the last rounding is in it
        worst[name] = float(ratio.max(initial=0.0))
    return worst


@pytest.mark.parametrize("order", ["once", "chain", "tree"])
@pytest.mark.parametrize("form", FORMS)
def test_full_steps_in_any_direction_stay_within_the_budget(form, order):
    declared = Arithmetic(form=form, order="once" if order == "once" else "any").over(STAGES)
    for seed, data in enumerate(("normal", "equal", "spread", "far", "cancellation", "repeated")):
        for splits in (2, 3, 9):
            c = case(data=data, splits=splits, empty=("none", "some")[seed % 2], seed=seed)
            inputs = CONTRACT.inputs(c)
            budgets = [CONTRACT.budget(c, inputs, a) for a in (declared, STRANGER)]
            for pattern in (None, *PATTERNS):
                found = Kernel(pattern, seed=seed).run(*states(inputs), form, order)
                worst = [excess(found, b) for b in budgets]
                assert max(max(w.values()) for w in worst) <= 1, (c, pattern, worst)


@pytest.mark.parametrize("data", ["huge", "dominant"])
def test_large_lses_stay_within_the_budget(data):
    for form, order in WAYS:
        c = case(data=data, splits=5)
        inputs = CONTRACT.inputs(c)
        declared = Arithmetic(form=form, order="once" if order == "once" else "any")
        budgets = CONTRACT.budget(c, inputs, declared.over(STAGES))
        for pattern in (None, *PATTERNS):
            found = Kernel(pattern).run(*states(inputs), form, order)
            assert max(excess(found, budgets).values()) <= 1, (form, order, pattern)


def test_without_flushes_subnormal_weights_stay_within_the_budget():
    declared = Arithmetic(order="once", form="division", exp_flush=False).over(STAGES)
    c = case(data="far", splits=4)
    inputs = CONTRACT.inputs(c)
    for pattern in (None, *PATTERNS):
        found = Kernel(pattern, flush=False).run(*states(inputs), "division", "once")
        assert max(excess(found, CONTRACT.budget(c, inputs, declared)).values()) <= 1


@pytest.mark.parametrize("hidden", ["finite", "nan", "inf"])
def test_a_single_live_state_must_come_out_as_it_is(hidden):
    inputs = CONTRACT.inputs(case(empty="all but one", hidden=hidden, splits=4))
    budgets = CONTRACT.budget(None, inputs, STRANGER)
    kept = inputs["lses"] > -np.inf
    assert (kept.sum(0) == 1).all()
    out = np.where(kept[..., None], inputs["outs"], 0).sum(0)
    lse = inputs["lses"].max(0)
    for name, actual in (("out", out), ("lse", lse)):
        assert not budgets[name].bound.any()
        assert judge(name, actual, budgets[name]).ok
        off = np.nextafter(actual, np.float32(np.inf))
        assert judge(name, off, budgets[name]).wrong == actual.size


def test_places_without_a_live_state_are_empty():
    inputs = CONTRACT.inputs(case(empty="all", hidden="nan"))
    budgets = CONTRACT.budget(None, inputs, STRANGER)
    none = np.isneginf(inputs["lses"]).all(0)
    assert none.sum() == 40
    assert np.isneginf(budgets["lse"].expected[none]).all()
    assert not budgets["out"].expected[none].any()
    assert not budgets["out"].bound[none].any()


@pytest.mark.parametrize("data", DATA)
def test_float64_stays_within_its_own_bound(data):
    c = case(data=data, empty="some", rows=3, head_dim=2, splits=5)
    inputs = CONTRACT.inputs(c)
    budgets = CONTRACT.budget(c, inputs, STRANGER)
    for name in CONTRACT.outputs:
        b = budgets[name]
        flat = np.flatnonzero(np.isfinite(b.expected.ravel()))
        exact = CONTRACT.exact(c, inputs, name, flat.tolist())
        for at, value in zip(flat, exact, strict=True):
            off = abs(Fraction(float(b.expected.ravel()[at])) - value)
            assert off <= Fraction(float(np.broadcast_to(b.oracle, b.expected.shape).ravel()[at]))


MUTANTS = {
    "rounded to bfloat16": lambda w: FORMATS["bfloat16"].round(w),
    "dropped below 1/16": lambda w: np.where(w < 2.0**-4, 0.0, w),
    "off by 1e-5": lambda w: np.where(w < 1, w * (1 + 1e-5), w),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_wrong_weights_are_outside_the_widest_budget(mutant):
    kernel, caught = Kernel(), 0
    right = kernel.exp
    kernel.exp = lambda x: MUTANTS[mutant](right(x))
    for seed in range(10):
        inputs = CONTRACT.inputs(case(splits=2, seed=seed))
        out, _ = kernel.once(*states(inputs), "division")
        budget = CONTRACT.budget(None, inputs, STRANGER)["out"]
        caught += not budget.accepts(FLOAT32.round(out).astype(np.float32))
    assert caught == 10


@pytest.mark.parametrize("stage", ["form", "order", "exp_ulp", "division_ulp", "log_ulp"])
def test_an_unknown_stage_value_is_refused(stage):
    inputs = CONTRACT.inputs(case())
    value = 0.1 if stage.endswith("ulp") else "some"
    with pytest.raises(ValueError, match=stage):
        CONTRACT.budget(None, inputs, Arithmetic(**{stage: value}).over(STAGES))


DELETED = {
    ("out", "weights"): ("division", "cancellation", 2),
    ("out", "flush"): ("division", "far", 2),
    ("out", "sum"): ("direct", "equal", 9),
    ("out", "denominator"): ("division", "repeated", 9),
    ("out", "division"): ("division", "repeated", 2),
    ("lse", "weights"): ("division", "normal", 2),
    ("lse", "denominator"): ("division", "normal", 9),
    ("lse", "logarithm"): ("division", "equal", 9),
}


@pytest.mark.parametrize(("output", "term"), DELETED)
def test_a_missing_term_is_noticed(output, term):
    form, data, splits = DELETED[output, term]
    exact = {"exp_ulp": 2.5, "division_ulp": 2.5 if term == "division" else 0.5}
    declared = Arithmetic(form=form, order="once", **exact).over(STAGES)
    worst = 0.0
    for seed in range(6):
        c = case(data=data, splits=splits, rows=200, seed=seed)
        inputs = CONTRACT.inputs(c)
        budgets = CONTRACT.budget(c, inputs, declared)
        less = {**budgets, output: budgets[output].without(term)}
        for pattern in PATTERNS:
            kernel = Kernel(pattern, division_ulp=exact["division_ulp"], seed=seed)
            worst = max(worst, excess(kernel.run(*states(inputs), form, "once"), less)[output])
    assert worst > 1


def extreme(*outs):
    """States of one row and head with equal lse and the given outs."""
    o = np.array(outs, np.float32).reshape(-1, 1, 1, 1)
    return {"outs": o, "lses": np.zeros(o.shape[:3], np.float32)}


@pytest.mark.parametrize(("form", "order"), [("division", "once"), ("any", "any")])
def test_sums_that_may_overflow_have_no_bound(form, order):
    arithmetic = Arithmetic(form=form, order=order).over(STAGES)
    for outs in ((3e38, 2e38), (3e38, -2e38, 1.0)):
        assert np.isinf(CONTRACT.budget(None, extreme(*outs), arithmetic)["out"].bound).all()
    found = CONTRACT.budget(None, extreme(1e38, 1e38), arithmetic)["out"]
    assert np.isfinite(found.bound).all()


def test_weights_that_are_divided_first_keep_large_sums_finite():
    arithmetic = Arithmetic(form="normalised", order="once").over(STAGES)
    assert np.isfinite(CONTRACT.budget(None, extreme(3e38, 2e38), arithmetic)["out"].bound).all()
