"""The budget of query_scale: sound under worst-case roundings, every term needed, and tight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tightrope.arithmetic import Arithmetic
from tightrope.budget import Budget
from tightrope.formats import FORMATS, Array
from tightrope.oracles.query_scale import CONTRACT, QueryScaleCase
from tightrope.verdict import judge

LONG = np.longdouble
PLAIN = {"position": "exact", "quotient": "exact"}
# term -> arithmetic, and the case where the term dominates
FAMILIES: dict[str, tuple[dict[str, Any], QueryScaleCase]] = {
    "floor": (
        {"log": "float64"},
        QueryScaleCase(positions="steps", start=1, span=2**29, floor_scale=1000003),
    ),
    "logarithm": ({**PLAIN, "log_ulp": 3.0}, QueryScaleCase(attn_scale=1.0, span=2**20)),
    "attn_scale": ({**PLAIN, "log_ulp": 0.5}, QueryScaleCase(attn_scale=1000.0001, span=2**20)),
    "product": ({**PLAIN, "log_ulp": 0.5}, QueryScaleCase(attn_scale=96.0, span=2**20)),
    "sum": ({**PLAIN, "log": "bfloat16", "log_ulp": 0.5}, QueryScaleCase(attn_scale=2.0**-7)),
}


def grant(**stages: Any) -> Arithmetic:
    return Arithmetic(**stages).over(CONTRACT.stages)


def family(name: str, seeds: int = 40) -> Iterator[tuple[QueryScaleCase, Budget, Array]]:
    """Cases, their budgets, and the errors of the worst roundings before the last one."""
    stages, case = FAMILIES[name]
    for seed in range(seeds):
        kind = case.positions if case.positions == "steps" else "random"
        drawn = replace(case, positions=kind, tokens=64, seed=seed)
        budget = CONTRACT.budget(drawn, CONTRACT.inputs(drawn), grant(**stages))["scale"]
        yield drawn, budget, stressed(drawn, grant(**stages), budget)


def stressed(case: QueryScaleCase, a: Arithmetic, budget: Budget) -> Array:
    """The largest |v - x| where every inexact rounding is a full step, all up or all down.

    Floors are taken from float32 roundings as they are: a step of theirs is all or nothing.
    """
    tokens = CONTRACT.inputs(case)["positions"].astype(np.int64) + case.shift
    whole = (tokens // case.floor_scale).astype(LONG)
    x, fmt, found = 1 + LONG(case.attn_scale) * np.log1p(whole), FORMATS[a["log"]], []
    if a["quotient"] != "exact":
        near = (tokens - case.shift).astype(np.float32) + np.float32(case.shift)
        whole = np.floor(near / np.float32(case.floor_scale)).astype(LONG)
    for sign in (1, -1):
        log = np.log1p(whole)
        log = log + sign * np.where(log == 0, 0, a["log_ulp"] * fmt.ulp(log.astype(float)))
        factor = LONG(float(fmt.round(case.attn_scale)))
        product = factor * log
        product = product + sign * np.where(log == 0, 0, fmt.half_ulp(product.astype(float)))
        last = 0 if fmt.name == case.dtype else fmt.half_ulp((1 + product).astype(float))
        found.append(np.abs(1 + product + sign * np.where(log == 0, 0, last) - x))
    return np.maximum(np.max(found, axis=0) - budget.oracle, 0).astype(float)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_worst_roundings_stay_within(name: str) -> None:
    for case, budget, error in family(name):
        assert (error <= budget.bound).all(), case


@pytest.mark.parametrize("name", FAMILIES)
def test_without_its_term_the_budget_is_exceeded(name: str) -> None:
    def left(budget: Budget) -> Budget:
        return budget.without(*(term for term in budget.terms if term.startswith(name)))

    assert any((error > left(budget).bound).any() for _, budget, error in family(name))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_budget_is_tight_where_the_term_dominates(name: str) -> None:
    shares = []
    for _, budget, error in family(name):
        wide = np.maximum(budget.bound, np.finfo(float).tiny)
        shares.append(float((error / wide).max()))
    assert np.median(shares) >= 0.5


STARTS = (2**24 - 20, 2**24 + 1, 2**25 + 3, 2**30, 2**31, 8191, 99)


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("floor_scale", [8192, 100, 3, 1, 1000003])
def test_the_models_float32_is_a_right_stranger(floor_scale: int, shift: int) -> None:
    """Also at positions that float32 does not hold, where floors move."""
    for seed, start in enumerate(STARTS * 3):
        kind = ("range", "steps", "random")[seed % 3]
        case = QueryScaleCase(
            tokens=64, positions=kind, start=start, span=2**22, seed=seed,
            floor_scale=floor_scale, shift=shift,
        )  # fmt: skip
        inputs = CONTRACT.inputs(case)
        near = torch.from_numpy(inputs["positions"]).float() + float(shift)
        out = torch.log1p(torch.floor(near / floor_scale)) * case.attn_scale + 1.0
        budget = CONTRACT.budget(case, inputs, grant())["scale"]
        exact = lambda at, i=inputs, c=case: CONTRACT.exact(c, i, "scale", at)  # noqa: E731
        assert judge("scale", out.numpy(), budget, exact).ok
